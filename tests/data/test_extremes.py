"""Data at the edge of being none: it trains, or is refused in one sentence."""

import io
import math
import re
from pathlib import Path

import pytest

import regard
from regard.config import merge
from regard.errors import UserError
from regard.recipes import preparing
from regard.recipes.reporter import Reporter


@pytest.fixture
def train(tiny, tmp_path: Path):
    """Train on lines, pairs or a folder; returns the run and what was said."""

    def call(data, **sections):
        if isinstance(data, str):
            (tmp_path / "pairs.tsv").write_text(data, encoding="utf-8")
            data = tmp_path / "pairs.tsv"
        said = io.StringIO()
        given = merge(tiny, {"data": {"batch_sentences": 4}}, sections)
        return regard.train(
            data, out=tmp_path / "run", reporter=Reporter(said, quiet=True), **given
        ), said.getvalue()

    return call


FEW = {"one line": "a b\tc\n", "two lines": "a b\tc\nd\te f\n", "all the same": "a b\tc\n" * 60}


@pytest.mark.parametrize("text", FEW.values(), ids=FEW)
def test_too_few_pairs_to_hold_any_out_train(train, text: str) -> None:
    run, said = train(text)
    assert "dev uses the training pairs" in said
    assert re.search(r"also occurs? in the training data: dev scores will be too high", said)
    assert run.manifest["pairs"] == text.count("\n")
    assert math.isfinite(run.records()[-1]["loss"])
    regard.load(run)("a b")


EMPTY = {
    "targets": ("a\t\n", "empty target"),
    "sources": ("\ta\n", "empty source"),
    "both": ("\t\n", "empty line"),
}


@pytest.mark.parametrize(("line", "reason"), EMPTY.values(), ids=EMPTY)
def test_only_empty_sides_are_refused(train, line: str, reason: str) -> None:
    with pytest.raises(
        UserError, match=rf"no usable pairs \(a pair.*: pairs.tsv: skipped 20 lines: {reason}"
    ) as error:
        train(line * 20)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["words", "characters", "bpe"])
def test_dev_without_a_known_token(train, tmp_path: Path, kind: str) -> None:
    (tmp_path / "train.tsv").write_text("".join(f"a {i} b\tc {i}\n" for i in range(30)))
    (tmp_path / "dev.tsv").write_text("жук\tйод\nщи\tюг\n", encoding="utf-8")
    run, _ = train(tmp_path, text={"tokenizer": kind})
    assert all(math.isfinite(record["loss"]) for record in run.records() if record["kind"] == "dev")
    regard.load(run)("жук")


def test_a_line_of_a_hundred_thousand_tokens_is_left_out_and_counted(train) -> None:
    bomb = " ".join(["a"] * 100_000)
    run, said = train(f"{bomb}\tb\n" + "".join(f"a {i}\tb\n" for i in range(30)))
    assert "pairs.tsv: skipped 1 line: a text of more than 10,000 characters (line 1)" in said
    assert run.manifest["skipped"] == 1


def test_a_pair_of_a_hundred_thousand_tokens_is_left_out_and_counted(train) -> None:
    pairs = [(f"a {i}", "b") for i in range(30)]
    run, said = train(
        [*pairs, ("a", " ".join(["b"] * 100_000)), *pairs], text={"tokenizer": "words"}
    )
    assert "skipped 1 line: more than 256 tokens (line 31)" in said
    assert run.manifest["skipped"] == 1
    assert run.manifest["pairs"] + run.manifest["skipped"] <= 61


LEAKS = {  # dev sources: the warning, up to what it means for scores
    "one": (["stop"], "1 of the dev sources also occurs in the training data: "),
    "two": (["stop", "wait"], "2 of the dev sources also occur in the training data: "),
    "one, and one nearly": (
        ["stop", "GO ON"],
        "1 of the dev sources also occurs in the training data "
        "(1 more differs only in case or punctuation): ",
    ),
    "two, and two nearly": (
        ["stop", "wait", "go  on!", "GO ON"],
        "2 of the dev sources also occur in the training data "
        "(2 more differ only in case or punctuation): ",
    ),
    "one nearly": (
        ["GO ON"],
        "1 of the dev sources differs from a training source only in case or punctuation: ",
    ),
    "two nearly": (
        ["go  on!", "GO ON"],
        "2 of the dev sources differ from a training source only in case or punctuation: ",
    ),
}


@pytest.mark.parametrize(("sources", "warning"), LEAKS.values(), ids=LEAKS)
def test_dev_sources_that_training_has_are_told(train, tmp_path: Path, sources, warning) -> None:
    (tmp_path / "train.tsv").write_text("Go on .\tx\nstop\ty\nwait\tz\n")
    (tmp_path / "dev.tsv").write_text("".join(f"{source}\ty\n" for source in [*sources, "new"]))
    _, said = train(tmp_path)
    means = "will" if "also" in warning else "may"
    assert f"{warning}dev scores {means} be too high\n" in said
    assert said.count("of the dev sources") == 1


def test_no_dev_source_that_training_has_is_no_topic(train, tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("Go on .\tx\nstop\ty\n")
    (tmp_path / "dev.tsv").write_text("new\ty\n")
    _, said = train(tmp_path)
    assert "dev sources" not in said


def test_how_many_sentences_sources_have_is_told_by_all_of_a_sorted_file(train, monkeypatch):
    """The first half are single sentences."""
    monkeypatch.setattr(preparing, "SENTENCES_SAMPLE", 12)
    one = "".join(f"Stop {i}.\tx\n" for i in range(40))
    two = "".join(f"Stop {i}. Go on now.\tx y\n" for i in range(40))
    run, _ = train(one + two)
    assert 0.3 < run.manifest["several_sentences"] < 0.7
