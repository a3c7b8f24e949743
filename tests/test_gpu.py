"""A user's way to a GPU: load, translate, evaluate, prune, doctor and the command line. Needs a
CUDA device.
"""

import json
import pickle
import subprocess
import sys
import warnings

import pytest
import torch

import regard
from regard.data.tasks import TASKS
from regard.inference import decoding
from regard.inference.translator import Sampling
from regard.inspection.doctor import doctor
from regard.inspection.evidence import heads_of, without
from regard.recipes.pruning import prune
from regard.recipes.reporter import Reporter

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def sorting(tmp_path_factory):
    """A run that has learned to sort a few letters, so that its answers do not hang on rounding."""
    return regard.train(
        "sort",
        out=tmp_path_factory.mktemp("gpu") / "sort",
        data={"options": {"train": 4000, "dev": 200, "test": 200, "length": 6, "symbols": 6}},
        model={
            "width": 64,
            "ffn": 128,
            "heads": 4,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "dropout": 0.0,
        },
        train={
            "steps": 600,
            "epochs": 0,
            "warmup": 50,
            "tensorboard": "off",
            "evaluate_every": 300,
        },
        reporter=Reporter(quiet=True),
    )


@pytest.fixture(scope="module")
def texts():
    options = {"length": 6, "symbols": 6}
    return [source for source, _ in TASKS["sort"].pairs(300, 5, split="test", options=options)]


def answers(translator, texts, **wishes):
    return [result.text for result in translator.translate(texts, **wishes)]


@pytest.mark.parametrize("beam", [1, 5])
def test_a_gpu_answers_what_a_cpu_answers(sorting, texts, beam):
    there = regard.load(sorting, device="cuda", beam=beam)
    assert there.device.type == "cuda"
    here = regard.load(sorting, device="cpu", beam=beam)
    assert answers(there, texts) == answers(here, texts)
    assert (
        there(texts[0]).attention.blocks["cross"].shape
        == here(texts[0]).attention.blocks["cross"].shape
    )


def test_wishes_that_graphs_do_not_know(sorting, texts):
    there = regard.load(sorting, device="cuda", beam=5)
    here = regard.load(sorting, device="cpu", beam=5)
    few = texts[:40]
    for wishes in (
        {"prefix": "a"},
        {"forbid": ["b"]},
        {"sampling": Sampling(seed=3)},
        {"n_best": 3},
    ):
        assert answers(there, few, **wishes) == answers(here, few, **wishes)


def test_auto_moves_when_there_is_enough_to_do(sorting, texts, monkeypatch):
    ours = regard.load(sorting)
    expected = answers(ours, texts[:20])
    assert ours.device.type == "cpu"
    monkeypatch.setattr(decoding, "WORTH", 0.0)
    assert answers(ours, texts[:20]) == expected
    assert ours.device.type == "cuda"
    again = pickle.loads(pickle.dumps(ours))
    assert answers(again, texts[:20]) == expected
    assert again.device.type == "cuda"
    assert answers(ours.to("cpu"), texts[:20]) == expected


def test_silenced_heads_are_silent_in_graphs_too(sorting, texts):
    ours = regard.load(sorting, device="cuda", beam=1)
    whole = answers(ours, texts)
    every = [head for head in heads_of(ours.model) if head.block == "cross"]
    with without(ours.model, every):
        assert answers(ours, texts) != whole
    assert answers(ours, texts) == whole


def test_a_full_gpu_is_told_and_the_cpu_answers(sorting, texts, monkeypatch):
    monkeypatch.setattr(decoding, "WORTH", 0.0)
    expected = answers(regard.load(sorting, device="cpu"), texts[:20])
    ours = regard.load(sorting)
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-6)
    try:
        with pytest.warns(UserWarning, match="continuing on the CPU"):
            assert answers(ours, texts[:20]) == expected
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert ours.device.type == "cpu"


def test_evaluate_prune_and_doctor(sorting, tmp_path):
    reports = [regard.evaluate(sorting, device=device).report for device in ("cpu", "cuda")]
    assert reports[0].exact_match == reports[1].exact_match
    assert reports[0].loss == pytest.approx(reports[1].loss, rel=1e-4)
    pruned = prune(sorting.path, tmp_path / "less", device="cuda").manifest["pruned"]
    assert pruned["after"]["loss"] >= 0
    rows = doctor(sorting.path, device="cuda")
    assert [row for row in rows if row.passed is False] == []


def test_the_command_line(sorting, texts, tmp_path):
    (tmp_path / "in.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")

    def regard_cli(*words):
        done = subprocess.run(
            [sys.executable, "-m", "regard", *map(str, words)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    found = {}
    for device in ("cpu", "cuda", "cuda:0", "auto"):
        found[device] = regard_cli(
            "translate", sorting.path, "--input", tmp_path / "in.txt", "--device", device
        )
    assert len(set(found.values())) == 1
    report = json.loads(regard_cli("evaluate", sorting.path, "--json", "--device", "cuda"))
    assert report["examples"] > 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        regard_cli(
            "show",
            "attention",
            sorting.path,
            texts[0],
            "--device",
            "cuda",
            "--out",
            tmp_path / "a.png",
        )
