"""Parts of one's own: a score, position, block, model, metric and callback, in Python and on the
command line.
"""

import pytest
import torch

import regard
from regard.config import RNNConfig, load_config
from regard.errors import UserError
from regard.models import Seq2Seq, build_model
from regard.nn import Block, Position, Score
from regard.recipes.evaluation import evaluate_waiting
from regard.recipes.reporter import Reporter

FILE = """
import torch
from regard import nn


class Nearness(nn.Score):
    def forward(self, query, prepared):
        return -torch.cdist(query, prepared).square()


def short(answers, references):
    return sum(len(answer) < 5 for answer in answers) / len(answers)
"""
DATA = {"options": {"train": 60, "dev": 12, "test": 12, "length": 4}, "batch_sentences": 20}


class Nearness(Score):
    def forward(self, query, prepared):
        return -torch.cdist(query, prepared).square()


class Ramp(Position):
    def embed(self, x, positions):
        return torch.cat((x[..., :1] + positions[..., None], x[..., 1:]), dim=-1)


class Parallel(Block):
    def combine(self, x, attend, attend_source=None):
        if attend_source is not None:
            x = self.cross_residual(x, attend_source)
        return x + attend(x) + self.feed(x)


class Small(Seq2Seq):
    def __init__(self, source_size, target_size, width=8):
        model = build_model(RNNConfig(width=width, embedding=width), source_size, target_size)
        super().__init__(model.encoder, model.decoder)


def short(answers, references):
    return sum(len(answer) < 5 for answer in answers) / len(answers)


@pytest.fixture
def train(tiny, tmp_path):
    """Train a few steps on the task copy, quietly."""

    def call(*, out="run", parts=None, **sections):
        given = {**tiny, "data": DATA, **sections}
        quiet = Reporter(quiet=True)
        return regard.train("copy", out=tmp_path / out, parts=parts, reporter=quiet, **given)

    return call


def test_every_part_of_a_model(train):
    parts = {"score": Nearness, "position": Ramp, "block": Parallel}
    run = train(parts=parts)
    model = run.config.model
    names = (model.score, model.position, model.block)
    assert names == ("custom:Nearness", "custom:Ramp", "custom:Parallel")
    assert load_config(run.path / "config.toml") == run.config

    kinds = {type(module) for module in run.model(parts=parts).modules()}
    assert {Nearness, Ramp, Parallel} <= kinds
    translator = regard.load(run, parts=[Parallel, Ramp, Nearness])  # in any order, without kinds
    assert translator("a b c").attention.blocks["cross"].shape[:2] == (1, 2)
    assert regard.evaluate(run, parts=parts, against=run).report.examples > 0
    with pytest.raises(UserError, match=r"look ahead|causal"):
        evaluate_waiting(run, [1], parts=parts)


def test_loading_without_them_says_what_to_pass(train):
    run = train(parts=[Nearness, Ramp])
    with pytest.raises(UserError) as caught:
        regard.load(run)
    assert str(caught.value) == (
        "model.score=custom:Nearness, model.position=custom:Ramp are your own: pass "
        'parts={"score": Nearness, "position": Ramp}, or on the command line '
        "--parts FILE.py:Nearness --parts FILE.py:Ramp"
    )

    class Other(Nearness):
        pass

    with pytest.raises(UserError, match=r'parts=\{"score": Nearness\}, not Other'):
        regard.load(run, parts=[Other, Ramp])


def test_a_model_of_ones_own(train):
    parts = {"model": Small}
    run = train(parts=parts, model={"options": {"width": 12}})
    assert run.config.model.kind == "custom:Small"
    assert run.model(parts=parts).decoder.cells.torch.hidden_size == 12
    assert regard.load(run, parts=parts)("a b c").tokens is not None
    assert "custom:Small" in run._repr_html_()
    assert "custom:Small" in (run.path / "README.md").read_text(encoding="utf-8")
    with pytest.raises(UserError, match="unexpected keyword argument 'size'"):
        train(parts=parts, model={"options": {"size": 12}}, out="other")


def test_a_metric_of_ones_own(train):
    run = train(parts={"metric": short})
    assert run.config.train.metric == "custom:short"
    look = run.best_look()
    assert 0 <= look["custom:short"] <= 1
    assert "custom:short" in (run.path / "README.md").read_text(encoding="utf-8")

    regard.load(run)  # needs no metric
    evaluation = regard.evaluate(run, parts={"metric": short})
    assert evaluation.metrics == {"short": short(evaluation.answers, [])}
    assert evaluation.rows()[-1][0] == "short"


def test_a_callback_is_told_and_may_end_the_training(train):
    told = []

    def watcher(event):
        told.append((event.kind, event.step))
        assert event.values["loss"] > 0
        assert isinstance(event.model, Seq2Seq)
        return event.kind == "train" and event.step == 4

    run = train(parts={"callback": watcher})
    assert told == [("train", 2), ("dev", 3), ("train", 4)]
    assert run.config.train.callback == "custom:watcher"
    assert run.checkpoints()[-1] == "step-00000004"


@pytest.mark.parametrize(
    ("parts", "sections", "message"),
    [
        ({"scores": Nearness}, {}, "no kind 'scores'; did you mean score?"),
        ({"score": Ramp}, {}, r"the score Ramp must be a subclass of regard\.nn\.Score"),
        ({"metric": 3}, {}, "must be a function"),
        ([short], {}, r'what is this function for\? Write parts=\{"metric": short\}'),
        ([int], {}, "int is no part"),
        ("score.py", {}, r'write parts=\{"score": MyScore\}'),
        ([Nearness], {"model": {"score": "dot"}}, "model.score=dot, but parts has the score"),
        ([Nearness, type("B", (Score,), {})], {}, "say which by model.score=custom:Nearness"),
    ],
)
def test_a_wrong_part_is_told(train, parts, sections, message):
    with pytest.raises(UserError, match=message):
        train(parts=parts, **sections)


def test_the_command_line(here, command):
    (here / "mine.py").write_text(FILE, encoding="utf-8")
    sizes = ["width=8", "ffn=8", "heads=2", "encoder_layers=1", "decoder_layers=1"]
    options = ["data.options.train=60", "data.options.dev=12", "data.options.test=12"]
    settings = [*(f"model.{size}" for size in sizes), *options, "train.steps=2"]
    parts = ["--parts", "mine.py:Nearness", "--parts", "metric=mine.py:short"]
    done = command("train", "copy", *settings, "--out", "run", *parts)
    assert done.returncode == 0, done.stderr
    config = load_config(here / "run" / "config.toml")
    assert (config.model.score, config.train.metric) == ("custom:Nearness", "custom:short")

    done = command("translate", "run", "a b c")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--parts FILE.py:Nearness" in done.stderr
    for words in (
        ["translate", "run", "a b c"],
        ["evaluate", "run", "--json"],
        ["show", "attention", "run", "a b c"],
        ["show", "model", "run"],
    ):
        done = command(*words, *parts)
        assert done.returncode == 0, (words, done.stderr)
    assert "Nearness" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mine.py:Nearnes"], "mine.py has no Nearnes; did you mean Nearness?"),
        (["mine.py"], "--parts mine.py: write FILE.py:Name"),
        (["other.py:Nearness"], "other.py: no such file"),
        (["broken.py:Nearness"], "broken.py line 2: "),
        (["failing.py:Nearness"], "failing.py line 1: ZeroDivisionError: division by zero"),
        (["mine.py:short"], "--parts metric=FILE.py:short"),
    ],
)
def test_a_wrong_word_after_parts(here, words, message):
    from regard.cli.parts import read_parts

    (here / "mine.py").write_text(FILE, encoding="utf-8")
    (here / "broken.py").write_text("import torch\nclass :\n", encoding="utf-8")
    (here / "failing.py").write_text("1 / 0\n", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        read_parts(words)
    assert message in str(caught.value)


def test_a_file_is_run_once(here):
    from regard.cli.parts import read_parts

    (here / "mine.py").write_text(FILE, encoding="utf-8")
    one, two = read_parts(["mine.py:Nearness", "mine.py:Nearness"])
    assert one.value is two.value
