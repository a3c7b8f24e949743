"""Checkpoints of a real run: the newest whole one is used, averages are means, the best is the
best.
"""

import io
import json
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

import regard
from regard.errors import UserError
from regard.files import write_text
from regard.recipes.reporter import Reporter
from regard.runs import storage
from regard.training.trainer import Trainer

MODEL = {"width": 16, "ffn": 24, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
DATA = {
    "limit": 60,
    "dev": 12,
    "test": 4,
    "batch_sentences": 8,
    "options": {"length": 4, "symbols": 5},
}
TRAIN = {
    "steps": 12,
    "epochs": 0,
    "warmup": 3,
    "save_every": 3,
    "evaluate_every": 4,
    "log_every": 3,
    "threads": 1,
    "keep": 3,
}
TRAIN |= {"tensorboard": "off", "device": "cpu"}


def train(out, *, stream=None, **train):
    given = {} if out.exists() else {"model": MODEL, "data": DATA, "train": TRAIN | train}
    return regard.train(
        "copy",
        out=out,
        resume=True,
        reporter=Reporter(stream or io.StringIO(), quiet=True),
        **given,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs") / "run", average=2)


@pytest.fixture
def run(finished, tmp_path):
    """A copy that may be broken."""
    shutil.copytree(finished.path, tmp_path / "run")
    return regard.Run.open(tmp_path / "run")


def test_early_checkpoints_are_kept_for_show_training(tmp_path):
    run = train(tmp_path / "run", milestones=3, keep=1, save_every=5, evaluate_every=12)
    assert run.checkpoints() == [f"step-{step:08d}" for step in (1, 3, 6, 12)]
    plain = train(tmp_path / "plain", keep=1, save_every=5, evaluate_every=12)
    assert plain.checkpoints() == ["step-00000012"]
    assert all(
        torch.equal(weight, weights(plain, plain.best)[name])
        for name, weight in weights(run, run.best).items()
    )


def weights(run, name):
    return load_file(run.path / "checkpoints" / name / "model.safetensors")


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def test_checkpoints_that_are_kept(run):
    steps = [int(name.removeprefix("step-")) for name in run.checkpoints()]
    regular = [step for step in steps if step % 3 == 0]
    assert regular[-3:] == [6, 9, 12]
    dev = {r["step"]: r["loss"] for r in run.records() if r["kind"] == "dev"}
    best = min(dev, key=dev.get)
    assert run.best in ("averaged", f"step-{best:08d}")
    assert best in steps


def test_average_is_judged_again(run):
    average = [r for r in run.records() if r["kind"] == "average"]
    assert len(average) == 1
    shutil.rmtree(run.path / "checkpoints" / "averaged", ignore_errors=True)
    best = min(r["loss"] for r in run.records() if r["kind"] == "dev")
    train(run.path)
    assert (run.best == "averaged") == (average[0]["loss"] < best)


def test_average_is_the_mean_of_the_last(run, monkeypatch):
    shutil.rmtree(run.path / "checkpoints" / "averaged", ignore_errors=True)
    monkeypatch.setattr(Trainer, "better", lambda trainer, found: True)
    train(run.path)
    assert run.best == "averaged"
    for name, w in weights(run, "averaged").items():
        mean = (
            weights(run, "step-00000009")[name].double()
            + weights(run, "step-00000012")[name].double()
        ) / 2
        assert torch.equal(w, mean.float())


@pytest.mark.parametrize(
    "damaged", ["model.safetensors", "optimizer.safetensors", "progress.json", "manifest.json"]
)
def test_a_damaged_checkpoint_is_told_and_the_one_before_is_used(finished, run, damaged):
    newest = run.path / "checkpoints" / "step-00000012"
    flip(newest / damaged)
    told = io.StringIO()
    train(run.path, stream=told)
    assert "warning" in told.getvalue()
    assert damaged in told.getvalue()
    assert "using the previous checkpoint" in told.getvalue()
    for name, w in weights(run, "step-00000012").items():
        assert torch.equal(w, weights(finished, "step-00000012")[name])


def test_a_missing_manifest_is_told(run):
    (run.path / "checkpoints" / "step-00000012" / "manifest.json").unlink()
    told = io.StringIO()
    train(run.path, stream=told)
    assert "manifest.json" in told.getvalue()


def test_if_none_is_whole_nothing_is_deleted(run):
    for name in run.checkpoints():
        flip(run.path / "checkpoints" / name / "model.safetensors")
    before = sorted(str(p) for p in run.path.rglob("*"))
    with pytest.raises(UserError, match="no intact checkpoint"):
        train(run.path)
    assert sorted(str(p) for p in run.path.rglob("*") if p.name != "lock") == [
        p for p in before if not p.endswith("lock")
    ]


@pytest.mark.parametrize("name", ["config.toml", "tokenizer.json"])
def test_a_damaged_run_is_told(run, name):
    flip(run.path / name)
    with pytest.raises(UserError, match="run"):
        regard.load(run.path)


def test_a_damaged_best_is_not_used(run):
    flip(run.path / "checkpoints" / run.best / "model.safetensors")
    with pytest.raises(UserError, match="SHA-256"):
        regard.load(run.path)


def test_other_data_is_refused(run):
    about = run.path / "data" / "train" / "corpus.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"digest": "0" * 64}))
    with pytest.raises(UserError, match="digest"):
        train(run.path)


def test_settings_of_a_resumed_run_stay(run):
    with pytest.raises(UserError, match=r"train\.rate"):
        regard.train(
            "copy", out=run.path, resume=True, train={"rate": 0.5}, reporter=Reporter(quiet=True)
        )
    with pytest.raises(UserError, match=r"model\.width"):
        regard.train(
            "copy", out=run.path, resume=True, model={"width": 32}, reporter=Reporter(quiet=True)
        )


def test_a_run_can_be_made_longer(run):
    longer = regard.train(
        "copy",
        out=run.path,
        resume=True,
        train={"steps": 15},
        reporter=Reporter(io.StringIO(), quiet=True),
    )
    assert longer.checkpoints()[-1] == "step-00000015"
    assert [r["step"] for r in longer.records() if r["kind"] == "train"] == [3, 6, 9, 12, 15]


def test_what_was_made_longer_stays_longer(run):
    """Asked for 15 steps and killed: going on without saying it again goes on to 15."""
    regard.train(
        "copy",
        out=run.path,
        resume=True,
        train={"steps": 15},
        reporter=Reporter(io.StringIO(), quiet=True),
    )
    assert regard.Run.open(run.path).config.train.steps == 15


def test_two_cannot_train_one_run(run):
    with run.locked(), pytest.raises(UserError, match="another process"):
        train(run.path)


def test_an_existing_run_is_not_overwritten(run):
    with pytest.raises(UserError, match="exists"):
        regard.train("copy", out=run.path, model=MODEL, data=DATA, train=TRAIN)


def rotate(run, name, files):
    """What a training does at each new best: write it, point at it, delete the one before."""
    old = run.best
    storage.write_directory(run.path / "checkpoints" / name, files)
    write_text(run.path / "best", name + "\n")
    shutil.rmtree(run.path / "checkpoints" / old)


@pytest.mark.parametrize("moment", ["before the manifest", "after the manifest"])
def test_a_checkpoint_deleted_while_it_is_read(run, monkeypatch, moment):
    files, names = run.checkpoint(run.best), iter(["step-00000100", "step-00000101"])
    real = storage.read_manifest

    def reading(path):
        manifest = real(path) if moment == "after the manifest" else None
        name = next(names, None)
        if name is not None:
            rotate(run, name, files)
        return manifest or real(path)

    monkeypatch.setattr(storage, "read_manifest", reading)
    assert run.model()
    assert run.best == "step-00000101"


def test_a_reader_beside_a_training(run):
    """Another process replaces the best checkpoint as fast as it can, while this one loads it again
    and again.
    """
    script = (
        "import shutil, sys\n"
        "from pathlib import Path\n"
        "from regard.runs import storage\n"
        "from regard.files import write_text\n"
        "run, best = Path(sys.argv[1]), sys.argv[2]\n"
        "files = storage.read_directory(run / 'checkpoints' / best)\n"
        "for step in range(1000, 100000):\n"
        "    name = f'step-{step:08d}'\n"
        "    storage.write_directory(run / 'checkpoints' / name, files)\n"
        "    write_text(run / 'best', name)\n"
        "    shutil.rmtree(run / 'checkpoints' / best)\n"
        "    best = name\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", script, str(run.path), run.best])
    try:
        began = run.best
        while run.best == began:
            assert writer.poll() is None
        for _ in range(200):
            assert run.model()
        assert writer.poll() is None
        assert run.best != began
    finally:
        writer.kill()
        writer.wait()


def test_a_damaged_best_is_still_told(run):
    flip(run.path / "checkpoints" / run.best / "model.safetensors")
    with pytest.raises(storage.Corrupt, match="its SHA-256 does not match"):
        run.model()
    shutil.rmtree(run.path / "checkpoints" / run.best)
    with pytest.raises(UserError, match="no checkpoint"):
        run.model()
