"""What training says before it starts and when it ends."""

import io
import json
import re
from types import SimpleNamespace

import pytest

import regard
from regard.config import Config, TrainConfig
from regard.recipes.outcome import advice_about_time
from regard.recipes.reporter import Reporter


@pytest.fixture
def told(tiny, tmp_path):
    """Train a little, and return the run and all that was said."""

    def train(data="arithmetic", overlap=False, **changes):
        stream = io.StringIO()
        options = {"train": 60, "dev": 12, "test": 12, "complexity": 1, "overlap": overlap}
        settings = tiny | {
            "data": {"batch_sentences": 20}
            | ({"options": options} if data == "arithmetic" else {}),
            "text": {"tokenizer": "characters"},
            "train": tiny["train"] | changes,
        }
        run = regard.train(
            data, out=tmp_path / "run", reporter=Reporter(stream), preset="tiny", **settings
        )
        return run, stream.getvalue()

    return train


def test_the_end_tells_score_sample_and_file(told):
    run, said = told()
    length = r"Trained for 6 steps \([\d.]+ epochs?\) in \d+ seconds?: [\d,]+ examples/s\.\n"
    assert re.search(length, said)
    best = run.best_look()
    assert f"Best dev score: loss {best['loss']:.3f}, perplexity " in said
    assert f"(step {best['step']})." in said
    first = (run.path / "samples.txt").read_text().split("\n\n")[0]
    lines = "".join(f"  {line}\n" for line in first.splitlines())
    assert f"A dev example:\n{lines}" in said
    assert re.search(r"\d+ of 12 sample answers match the reference; see .*samples\.txt\n", said)


def test_the_number_of_parameters_is_told_once(told):
    run, said = told(steps=25)
    assert said.count(" parameters") == 1
    assert f"{run.manifest['parameters']:,} parameters" in said


def test_a_time_limit_is_told_at_the_end(told):
    _, said = told(steps=100_000, minutes=1e-4, warmup=50_000, evaluate_every=50_000, path="plain")
    assert "all within the warm-up of 50,000 steps (done around" in said
    assert re.search(
        r"Stopped at step \d+ of 100,000: the time limit is reached \(train.minutes=0.0001\), "
        r"still in the warm-up \(train.warmup=50000\)\. Add --resume train.minutes=0.0002 to "
        r"continue\.\n",
        said,
    )
    assert re.search(r"\d+/100,000  loss .*  0:00 left\n", said)
    assert "Trained for" not in said


def test_patience_is_told_at_the_end(told):
    _, said = told(steps=5000, rate=0.0, patience=2, evaluate_every=3, warmup=0)
    assert "Stopped at step 9 of 5,000: the dev loss did not improve in 2 evaluations.\n" in said


def test_too_few_checkpoints_are_told_before_training(told, monkeypatch):
    monkeypatch.setattr("regard.recipes.fitting.SOON_REPEATED", 6)
    _, said = told(save_every=6)
    line = (
        "only 1 checkpoint will be kept, but `regard show training` needs at least two: to keep "
        "more, add train.save_every=1 train.keep=10\n"
    )
    assert line in said
    assert said.index(line) < said.index("Trained for")


def test_too_few_checkpoints_of_a_short_training_are_no_topic(told):
    """It is soon repeated, and most short trainings are tries."""
    _, said = told(save_every=6)
    assert "will be kept" not in said


def test_enough_checkpoints_are_no_topic(told):
    _, said = told()
    assert "will be kept" not in said


def test_built_in_data_has_no_leak_warning(told):
    """Not even where a task was asked for dev sources that training has too."""
    run, said = told("arithmetic", overlap=True)
    assert run.manifest["leaks"] > 0
    assert "also occur in the training data" not in said
    assert "warning" not in said


def test_other_data_has_one(told, tmp_path):
    (tmp_path / "data").mkdir()
    lines = [f"{n} apples\t{n} pommes\n" for n in range(40)]
    (tmp_path / "data" / "train.tsv").write_text("".join(lines))
    (tmp_path / "data" / "dev.tsv").write_text("".join(lines[:5]))
    _, said = told(tmp_path / "data")
    assert "5 of the dev sources also occur in the training data" in said


def test_one_dev_source_is_singular(told, tmp_path):
    (tmp_path / "data").mkdir()
    lines = [f"{n} apples\t{n} pommes\n" for n in range(40)]
    (tmp_path / "data" / "train.tsv").write_text("".join(lines))
    (tmp_path / "data" / "dev.tsv").write_text(lines[0] + "99 pears\t99 poires\n")
    _, said = told(tmp_path / "data")
    assert "1 of the dev sources also occurs in the training data" in said


def test_a_run_that_had_ended_says_so(told, tiny):
    run, _ = told()
    stream = io.StringIO()
    regard.train(run.config, out=run.path, resume=True, reporter=Reporter(stream))
    said = stream.getvalue()
    assert "already trained: " in said
    assert "Trained for" not in said
    assert "resuming" not in said


class Curve:
    """A run whose dev accuracy was so at steps 1, 2, 3 …, and where its decay began."""

    def __init__(self, values, *, metric="accuracy", minutes=10.0, seconds=0.0, given_up=0):
        start = len(values)
        train = TrainConfig(
            schedule="wsd",
            metric=metric,
            minutes=minutes,
            decay_start=start,
            decay_end=start + 3,
        )
        self.config = Config(train=train)
        self.steps = start + 3
        self._values = values
        self._seconds = seconds
        self.progress = SimpleNamespace(given_up=given_up)

    def looks(self):
        metric = self.config.train.metric
        for step, value in enumerate(self._values, 1):
            yield {"kind": "dev", "step": step, metric: value}
        yield {"kind": "dev", "step": self.steps, metric: 1.0}  # after the rate has fallen

    def checkpoint(self, name):
        assert name == f"step-{len(self._values):08d}"
        return {"progress.json": json.dumps({"seconds": self._seconds}).encode()}


def advice(curve):
    trainer = SimpleNamespace(config=curve.config.train, steps=curve.steps, progress=curve.progress)
    return advice_about_time(curve, trainer)


def test_more_time_is_advised_while_dev_improves():
    said = advice(Curve([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], seconds=480))
    assert "still went from 0.400 to 0.600" in said
    assert said.endswith("add --resume train.minutes=20.")


def test_more_steps_are_advised_where_steps_ended_it():
    said = advice(Curve([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], seconds=60))
    assert said.endswith("add --resume train.steps=18.")
    no_limit = advice(Curve([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], minutes=0))
    assert no_limit.endswith("add --resume train.steps=18.")


def test_a_loss_that_still_falls_is_told_as_it_is():
    said = advice(Curve([5.0, 4.0, 3.0, 2.0, 1.5, 1.0], metric="loss", seconds=480))
    assert "still went from 2.000 to 1.000" in said


@pytest.mark.parametrize("values", [[0.0] * 6, [0.5, 0.9, 0.9, 0.9, 0.9, 0.9], [0.9, 0.5, 0.5]])
def test_no_more_time_is_advised_where_dev_stood_still(values):
    assert "would hardly help" in advice(Curve(values, seconds=480))


def test_no_more_time_is_advised_where_dev_became_worse():
    """Its last look before the decay is the best one, since training went back to it."""
    rising = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    assert "would hardly help" in advice(Curve(rising, seconds=60, given_up=3))


def test_no_advice_where_nobody_looked():
    assert advice(Curve([0.1, 0.2])) == ""
    assert advice(Curve([1, 2, 3, 4, 5, 6], metric="step")) == ""
