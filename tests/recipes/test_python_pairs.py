"""Train on pairs given from Python, and judge the run by what it kept, or by other pairs."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.recipes.fitting import _way_on
from regard.recipes.reporter import Reporter

WORDS = ("cat", "dog", "tree")
PAIRS = [(f"{word} {i}", f"{i} {word}") for i in range(20) for word in WORDS]
DICTS = [{"en": source, "fr": target} for source, target in PAIRS]


@pytest.fixture(scope="module")
def trained(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> regard.Run:
    """A run on a generator of dicts with other keys than source and target."""
    return regard.train(
        (item for item in DICTS),
        out=tmp_path_factory.mktemp("python") / "run",
        reporter=Reporter(quiet=True),
        **tiny,
        data={"source": "fr", "target": "en"},
        text={"tokenizer": "words"},
    )


def test_dicts_train_on_their_values(trained: regard.Run) -> None:
    known = {trained.source.decode([id]) for id in range(trained.source.size)}
    assert {"cat", "dog", "tree"} <= known
    assert not {"en", "fr"} & known


def test_the_run_keeps_its_dev_and_test(trained: regard.Run) -> None:
    test = regard.evaluate(trained)
    dev = regard.evaluate(trained, split="dev")
    swapped = {target: source for source, target in PAIRS}
    assert len(test.pairs) == len(dev.pairs) == 3
    assert all(pair.targets == (swapped[pair.source],) for pair in test.pairs + dev.pairs)
    assert not {pair.source for pair in test.pairs} & {pair.source for pair in dev.pairs}


def test_the_command_line_judges_it_too(trained: regard.Run) -> None:
    words = ["evaluate", str(trained.path), "--json"]
    own = CliRunner().invoke(app, words, catch_exceptions=False)
    assert json.loads(own.stdout)["examples"] == 3
    assert regard.evaluate(trained).report.examples == 3
    assert len((trained.path / "data" / "test.jsonl").read_text().splitlines()) == 3


def test_what_it_did_not_keep_is_told(trained: regard.Run) -> None:
    with pytest.raises(regard.UserError, match=r"kept dev and test, not 'train'.*evaluate\(run, "):
        regard.evaluate(trained, split="train")


@pytest.mark.parametrize(
    "data",
    [
        DICTS[:5],
        [(target, source) for source, target in PAIRS[:5]],
        ({"source": target, "target": source} for source, target in PAIRS[:5]),
        {"test": DICTS[:5], "dev": DICTS[5:]},
    ],
    ids=["dicts", "tuples", "generator", "splits"],
)
def test_evaluate_on_other_pairs(trained: regard.Run, data: Any) -> None:
    """Found by the names that it was trained with, or by the usual ones."""
    found = regard.evaluate(trained, data)
    assert [pair.source for pair in found.pairs] == [target for _, target in PAIRS[:5]]


def test_a_run_on_a_task_is_judged_by_pairs(run: regard.Run) -> None:
    found = regard.evaluate(run, [("1+1", "2"), ("2+2", ["4", "four"])])
    assert [pair.targets for pair in found.pairs] == [("2",), ("4", "four")]
    with pytest.raises(regard.UserError, match="no split 'test'; it has dev"):
        regard.evaluate(run, {"dev": [("1+1", "2")]})


def test_it_is_not_called_by_an_empty_name(trained: regard.Run) -> None:
    assert "on pairs from Python" in trained._repr_html_()


def test_going_on_is_told_in_pythons_words(trained: regard.Run) -> None:
    assert _way_on(trained) == f"regard.train(pairs, out={str(trained.path)!r}, resume=True)"


def test_it_goes_on_without_its_pairs(trained: regard.Run, tmp_path: Path) -> None:
    copy = shutil.copytree(trained.path, tmp_path / "copy")
    more = regard.train(
        [], out=copy, resume=True, reporter=Reporter(quiet=True), train={"steps": 8}
    )
    assert more.checkpoints()[-1] == "step-00000008"
    assert len(regard.evaluate(more).pairs) == 3
