"""The story end to end, on tiny data: what `regard.train` and `regard.evaluate` promise."""

import dataclasses
import hashlib
import json
import os
import random
import shutil
import socket
from contextlib import nullcontext

import numpy as np
import pytest
import torch

import regard
from regard.config import merge
from regard.data.splits import open_data
from regard.recipes.planning import choose
from regard.recipes.reporter import Reporter
from regard.runs.weights import get_weights
from regard.training.trainer import Trainer

WORDS = [
    f"{a} {b}" for a in ("red", "green", "blue", "old", "new") for b in ("cat", "dog", "hat", "box")
]
PAIRS = [(f"the {words} .", f"{' '.join(reversed(words.split()))} !") for words in WORDS]
FILES = [
    "config.toml",
    "tokenizer.json",
    "log.jsonl",
    "best",
    "samples.txt",
    "curves.png",
    "manifest.json",
    "README.md",
]


@pytest.fixture
def train(tiny, tmp_path):
    """Train on pairs, or on what else is given, quietly."""

    def call(data=PAIRS, /, *, out="run", config=None, start_from=None, resume=False, **sections):
        words = {"text": {"tokenizer": "words"}, "data": {"batch_sentences": 5}}
        given = (
            sections if config or resume else merge(tiny, words if data is PAIRS else {}, sections)
        )
        folder, quiet = tmp_path / out, Reporter(quiet=True)
        return regard.train(
            data,
            out=folder,
            config=config,
            start_from=start_from,
            resume=resume,
            reporter=quiet,
            **given,
        )

    return call


def weights(run, name="best"):
    return get_weights(run.model(name))


def same(ours, theirs):
    return ours.keys() == theirs.keys() and all(
        torch.equal(ours[name], theirs[name]) for name in ours
    )


def records(run, kind):
    return [record for record in run.records() if record["kind"] == kind]


def digests(run):
    paths = sorted(path for path in run.path.rglob("*") if path.is_file() and path.suffix != ".png")
    return {
        str(path.relative_to(run.path)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
    }


def test_thin_thread(run, capsys):
    """Trained and saved by the fixture: load, decode, score, print."""
    result = regard.load(run.path)("12+34")
    assert result.source == "12+34"
    assert str(result) == result.text
    assert len(result.tokens) <= len(result.logprobs)
    assert result.attention.blocks["cross"].shape == (
        1,
        2,
        len(result.attention.target),
        len("12+34") + 1,
    )
    found = regard.evaluate(run.path)
    assert found.report.examples == len(found.pairs) == len(found.answers) == 12
    assert found.answers == [
        answer.text for answer in regard.load(run)([pair.source for pair in found.pairs])
    ]
    for row in found.report.rows():
        print(*row)
    assert "sequence error" in capsys.readouterr().out


def test_the_folder(run):
    assert all((run.path / name).exists() for name in FILES)
    assert (run.path / "checkpoints" / run.best).is_dir()
    assert (run.path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (run.path / "samples.txt").read_text().count("answer ") == 12
    card = (run.path / "README.md").read_text()
    assert all(
        word in card
        for word in (
            "arithmetic",
            "60 pairs",
            "characters",
            "transformer",
            run.best,
            "regard translate",
        )
    )
    assert [r["step"] for r in records(run, "train")] == [2, 4, 6]
    assert [r["step"] for r in records(run, "dev")] == [3, 6]
    assert regard.Run.open(run.path).config == run.config
    assert not list(run.path.rglob("*.tmp*"))


def test_config_repeats_the_run(train, run, tiny):
    again = train("arithmetic", out="again", config=run.path / "config.toml")
    assert again.config == run.config
    assert run.checkpoints() == again.checkpoints()
    assert all(same(weights(run, name), weights(again, name)) for name in run.checkpoints())


def test_train_a_config(train, run):
    again = train(run.config, out="again", config=run.path / "config.toml")
    plain = regard.train(
        run.config, out=again.path.with_name("plain"), reporter=Reporter(quiet=True)
    )
    assert plain.config == again.config == run.config
    assert same(weights(plain), weights(run))


def test_another_seed_is_another_model(train):
    one, other = train(out="one"), train(out="other", train={"seed": 2})
    assert not same(weights(one), weights(other))


@pytest.mark.parametrize("form", [list, iter, dict, tuple, lambda pairs: (pair for pair in pairs)])
def test_any_iterable_of_pairs(train, tiny, form):
    data = form(PAIRS) if form is not dict else dict(PAIRS).items()
    run = train(data, text={"tokenizer": "words"}, data={"batch_sentences": 5})
    assert run.manifest["pairs"] == len(PAIRS) - 2  # one for dev, one for test
    assert same(weights(run), weights(train(out="list")))


def test_several_targets_are_several_pairs(train):
    run = train(
        [(source, [target, target.upper()]) for source, target in PAIRS],
        data={"batch_sentences": 5},
    )
    assert run.manifest["pairs"] == 2 * (len(PAIRS) - 2)


def test_fine_tuning_starts_from_the_old_weights(train):
    old = train(out="old")
    new = train(
        [("cat the", "un chat"), ("dog the", "un chien")] * 5,
        out="new",
        start_from=old.path,
        train={"rate": 0.0},
    )
    assert same(weights(old), weights(new, new.checkpoints()[-1]))
    assert (new.path / "tokenizer.json").read_bytes() == (old.path / "tokenizer.json").read_bytes()
    assert new.config.model == old.config.model
    assert str(old.path) in (new.path / "config.toml").read_text()


def test_fine_tuning_moves_on(train):
    old = train(out="old")
    new = train(out="new", start_from=old.path)
    assert not same(weights(old), weights(new))
    assert records(new, "dev")[0]["loss"] < records(old, "dev")[0]["loss"]


AVERAGE = {"average": 3, "steps": 12, "evaluate_every": 12, "save_every": 2, "schedule": "constant"}


@pytest.mark.parametrize("rate", [1e-3, 0.3])
def test_average(train, rate):
    """The mean of the last checkpoints becomes the best if, and only if, dev agrees."""
    run = train(train=AVERAGE | {"rate": rate})
    (mean,), looks = records(run, "average"), records(run, "dev")
    better = mean["loss"] < min(look["loss"] for look in looks)
    assert (run.best == "averaged") == better


@pytest.mark.parametrize("wins", [True, False])
def test_average_is_the_mean(train, monkeypatch, wins):
    """Whatever dev would say of it: what is judged last, when training is over, is the average."""
    better = Trainer.better
    monkeypatch.setattr(
        Trainer,
        "better",
        lambda made, found: wins if made.progress.finished else better(made, found),
    )
    run = train(train=AVERAGE)
    assert run.best == ("averaged" if wins else "step-00000012")
    assert (run.path / "checkpoints" / "averaged").exists() == wins
    last = [weights(run, f"step-{step:08d}") for step in (8, 10, 12)]
    for name, weight in weights(run).items():
        mean = sum(checkpoint[name].double() for checkpoint in last) / 3
        assert torch.equal(weight, mean.float() if wins else last[-1][name]), name


@pytest.mark.parametrize("metric", ["exact_match", "bleu", "accuracy"])
def test_best_by_another_metric(train, metric):
    run = train(
        train={"metric": metric, "steps": 60, "evaluate_every": 10, "rate": 0.01}, data={"dev": 4}
    )
    looks = records(run, "dev")
    assert all(0 <= look[metric] <= (100 if metric == "bleu" else 1) for look in looks)
    best = max(looks, key=lambda look: look[metric])  # the first of equals
    assert run.best == f"step-{best['step']:08d}"


def test_the_card_tells_the_scores_of_the_best(train):
    run = train(
        train={"metric": "accuracy", "steps": 60, "evaluate_every": 10, "rate": 0.01},
        data={"dev": 4},
    )
    best = next(look for look in records(run, "dev") if run.best == f"step-{look['step']:08d}")
    row = next(
        line
        for line in (run.path / "README.md").read_text().splitlines()
        if line.startswith("| best on dev")
    )
    assert f"loss {best['loss']:.4g}, accuracy {best['accuracy']:.4g}" in row
    assert run.best in row


def test_patience(train):
    run = train(train={"rate": 0.0, "patience": 2, "steps": 1000, "evaluate_every": 3})
    assert [look["step"] for look in records(run, "dev")] == [3, 6, 9]
    assert run.best == "step-00000003"
    assert run.checkpoints()[-1] == "step-00000009"


def test_resume_of_an_early_stop_stays_stopped(train):
    run = train(train={"rate": 0.0, "patience": 2, "steps": 1000, "evaluate_every": 3})
    before = digests(run)
    train(resume=True)
    assert digests(run) == before


def test_resume_of_a_finished_run_changes_nothing(train):
    run = train(train={"average": 2, "rate": 0.3, "schedule": "constant"})
    before = digests(run)
    train(resume=True)
    assert digests(run) == before


def test_resume_with_more_steps_goes_on(train):
    run = train()
    train(resume=True, train={"steps": 9})
    assert [r["step"] for r in records(run, "train")] == [2, 4, 6, 8, 9]
    assert run.checkpoints()[-1] == "step-00000009"


def test_resume_may_not_change_the_model(train):
    train()
    with pytest.raises(regard.UserError, match=r"model\.width"):
        train(resume=True, model={"width": 32})


def test_resume_may_repeat_the_settings(train, tiny):
    """The command that started a run, with --resume after it."""
    run = train()
    before = digests(run)
    train(resume=True, model=tiny["model"])
    assert digests(run) == before


def test_steps_alone_are_obeyed(train):
    """Nothing that was chosen for the caller may overrule what the caller said."""
    run = train(train={"epochs": 0, "steps": 4})
    assert run.checkpoints()[-1] == "step-00000004"
    quiet = Reporter(quiet=True)
    run = regard.train(
        PAIRS,
        out=run.path.with_name("bare"),
        train={"steps": 4},
        model={"width": 16, "ffn": 16},
        reporter=quiet,
    )
    assert run.checkpoints()[-1] == "step-00000004"


def test_a_folder_that_exists_is_not_overwritten(train):
    run = train()
    before = digests(run)
    with pytest.raises(regard.UserError, match="exists"):
        train()
    assert digests(run) == before


def test_batches_of_sentences(train):
    run = train(data={"batch_sentences": 6, "dev": 1, "test": 1}, train={"epochs": 2})
    assert records(run, "train")[-1]["step"] == 2 * 3  # 18 pairs are three batches of six


def test_batches_of_tokens(train):
    steps = {}
    for budget in (20, 80):
        run = train(
            out=str(budget),
            data={"batch_sentences": 0, "batch_tokens": budget},
            train={"epochs": 1},
        )
        steps[budget] = records(run, "train")[-1]["step"]
    assert (
        steps[20] > 2 * steps[80] > 0
    )  # a source of 5 tokens with its <eos>: 4 and 16 pairs a batch


@pytest.mark.parametrize("attention", ["none", "before", "after"])
def test_rnn(train, attention):
    run = train(
        train={"steps": 3},
        model={"kind": "rnn", "cell": "gru", "width": 12, "embedding": 8, "attention": attention},
    )
    result = regard.load(run)("the red cat .")
    assert ("cross" in result.attention.blocks) == (attention != "none")
    assert "gru" in (run.path / "config.toml").read_text()


def test_one_process_at_a_time(train, command, run):
    mine = train()
    with mine.locked():
        done = command("train", "pairs", "--out", mine.path, "--resume", "train.steps=9")
    assert done.returncode == 2
    who = f"process {os.getpid()} on {socket.gethostname()}"
    told = f"error: {mine.path}: another process is training this run ({who})"
    assert done.stderr.splitlines() == [told]
    assert mine.checkpoints()[-1] == "step-00000006"
    assert regard.Run.open(mine.path).config == mine.config  # the one that trains goes on by it


def test_evaluate_with_several_references(run, tmp_path):
    """Each source once, right if it equals any of its references."""
    sources = ["1+1", "2+2", "3+3"]
    answers = [result.text for result in regard.load(run)(sources)]
    lines = [{"source": s, "target": ["no", a]} for s, a in zip(sources[:2], answers)] + [
        {"source": "3+3", "target": "no"}
    ]
    lines += [{"source": "1+1", "target": "neither"}]
    file = tmp_path / "three.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = regard.evaluate(run, file)
    assert [pair.source for pair in found.pairs] == sources
    assert found.pairs[0].targets == ("no", answers[0], "neither")
    assert found.answers == answers
    assert found.report.exact_match == pytest.approx(2 / 3)
    assert found.report.sequence_error == pytest.approx(1 / 3)


def test_evaluate_against_itself(run):
    comparison = regard.evaluate(run, against=run).comparison
    assert comparison.difference == 0
    assert comparison.p > 0.5


def test_unknown_split(run):
    with pytest.raises(regard.UserError, match="no split 'tset'"):
        regard.evaluate(run, split="tset")


def test_a_loss_that_is_no_number_is_told(train, monkeypatch):
    update = Trainer.update

    def poison(self, parts):
        next(self.model.parameters()).data.fill_(float("nan"))
        update(self, parts)

    monkeypatch.setattr(Trainer, "update", poison)
    with pytest.raises(regard.UserError, match=r"lower train\.rate"):
        train()


def test_python_speaks_of_the_same_settings(train):
    with pytest.raises(regard.UserError, match=r"did you mean train\.steps"):
        train(train={"stesp": 3})
    assert dataclasses.asdict(regard.Config())["train"]["steps"] == 10_000


def test_the_plan_tells_what_is_trained():
    """What the user has set stands in its reasons as he set it, or not at all; and the rest is
    chosen all the same.
    """
    splits = open_data("copy", options={"train": 300, "dev": 10, "test": 10})
    free, choices = choose(splits, {})
    assert "of width 128" in " ".join(map(str, choices))
    chosen, choices = choose(
        splits, {"model": {"width": "64"}, "train": {"steps": "9"}, "text": {"tokenizer": "bytes"}}
    )
    assert "2+2 layers of width 64" in " ".join(map(str, choices))
    assert not {"tokens", "time"} & {choice.what for choice in choices}
    assert "epochs" not in chosen["train"]
    assert chosen["data"] == free["data"]


NEW_PAIRS = [("cat the", "un chat"), ("dog the", "un chien")] * 5


def test_a_fine_tuned_run_goes_on_when_its_base_is_gone(train):
    old = train(out="old")
    new = train(NEW_PAIRS, out="new", start_from=old.path)
    shutil.rmtree(old.path)
    longer = train(NEW_PAIRS, out="new", resume=True, train={"steps": 8})
    assert longer.checkpoints()[-1] == "step-00000008"
    assert records(new, "train")[-1]["step"] == 8


def test_a_fine_tuned_run_starts_though_its_base_is_gone(train, monkeypatch):
    """Killed after it was prepared, before its first checkpoint."""
    old = train(out="old")
    expected = weights(old)

    def killed(*args, **more):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("regard.recipes.training.fit", killed)
        with pytest.raises(KeyboardInterrupt):
            train(NEW_PAIRS, out="new", start_from=old.path, train={"rate": 0.0})
    shutil.rmtree(old.path)
    new = train(NEW_PAIRS, out="new", resume=True)
    assert same(weights(new, new.checkpoints()[-1]), expected)


def test_a_base_without_checkpoints_is_told_before_anything_is_read(train):
    old = train(out="old")
    shutil.rmtree(old.path / "checkpoints")
    (old.path / "best").unlink()

    def pairs():
        raise AssertionError("the data was read")
        yield

    with pytest.raises(regard.UserError, match="no checkpoint yet"):
        train(pairs(), out="new", start_from=old.path)


def test_weights_to_start_from_that_were_damaged_are_told(train, monkeypatch):
    old = train(out="old")
    with monkeypatch.context() as patch:
        patch.setattr("regard.recipes.training.fit", lambda run, **more: run)
        new = train(NEW_PAIRS, out="new", start_from=old.path)
    file = new.path / "start" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(regard.UserError, match=r"start/model\.safetensors: its SHA-256"):
        train(NEW_PAIRS, out="new", resume=True)


@pytest.mark.parametrize("fails", [False, True], ids=["to its end", "with an error"])
def test_training_leaves_torch_as_it_was(train, monkeypatch, fails):
    """Its threads, and what is drawn next: from torch, NumPy and Python."""
    threads = torch.get_num_threads()
    if fails:
        monkeypatch.setattr("regard.recipes.fitting.finish", lambda *args, **more: 1 / 0)

    def drawn():
        return torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()

    def seed():
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)

    seed()
    expected = drawn()
    try:
        torch.set_num_threads(3)
        seed()
        with pytest.raises(ZeroDivisionError) if fails else nullcontext():
            train(train={"threads": 2})
        assert drawn() == expected
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("metric", ["loss", "accuracy", "exact_match", "bleu"])
def test_a_run_shows_the_best_by_its_own_metric(train, metric):
    """In these looks every metric is best at another step."""
    run = train(train={"metric": metric})
    looks = [
        {"loss": 1.0, "accuracy": 0.1, "exact_match": 0.1, "bleu": 10.0},
        {"loss": 2.0, "accuracy": 0.9, "exact_match": 0.2, "bleu": 20.0},
        {"loss": 3.0, "accuracy": 0.3, "exact_match": 0.8, "bleu": 30.0},
        {"loss": 4.0, "accuracy": 0.4, "exact_match": 0.3, "bleu": 70.0},
    ]
    (run.path / "log.jsonl").unlink()
    for step, look in enumerate(looks, 1):
        run.log("dev", step=step, **look)
    shown = {
        "loss": "dev loss 1.0000 at step 1",
        "accuracy": "dev accuracy 0.9000 at step 2",
        "exact_match": "dev exact match 0.8000 at step 3",
        "bleu": "dev bleu 70.0000 at step 4",
    }
    assert shown[metric] in run._repr_html_()
    assert f"chosen by {metric}" in (run.path / "README.md").read_text()


def test_a_run_without_a_look_at_dev_says_so(train):
    run = train()
    (run.path / "log.jsonl").unlink()
    assert "not evaluated yet" in run._repr_html_()


def test_dev_has_no_bleu_for_one_word_answers(train):
    looks = [
        record
        for record in train(train={"metric": "exact_match"}).records()
        if record["kind"] == "dev"
    ]
    assert looks
    assert all("exact_match" in look and "bleu" not in look for look in looks)


@pytest.mark.parametrize("names", [("text.en", "text.de"), ("english.txt", "german.txt")])
def test_two_files_side_by_side(tiny, tmp_path, names, monkeypatch):
    """From Python as on the command line; the run finds both again from anywhere."""
    monkeypatch.chdir(tmp_path)
    for name in names:
        (tmp_path / name).write_text("".join(f"{name} {i}\n" for i in range(40)))
    (tmp_path / "dev.tsv").write_text("dev 1\tdev 2\n")
    quiet = Reporter(quiet=True)
    data = {"dev_file": "dev.tsv", "test_file": "dev.tsv"}
    run = regard.train(*names, out=tmp_path / "run", reporter=quiet, **tiny)
    dev = regard.train(*names, out=tmp_path / "dev", reporter=quiet, **tiny, data=data)
    assert run.manifest["pairs"] == 36
    assert dev.manifest["pairs"] == 40
    again = regard.train(*names, out="dev", resume=True, reporter=quiet, data=data)
    assert again.config == dev.config

    monkeypatch.chdir("/")
    (pair, *_) = regard.evaluate(run).pairs
    assert (pair.source.split()[0], pair.targets[0].split()[0]) == names
    assert [pair.source for pair in regard.evaluate(dev).pairs] == ["dev 1"]
    with pytest.raises(regard.UserError, match="a second file needs a first one"):
        regard.train(PAIRS, tmp_path / names[1])
