"""Data that is probably not what its owner means is questioned in one line each."""

import pytest

from regard.data.doubts import find_doubts
from regard.data.pairs import Pair

GOOD = [(f"the cat {i}", f"le chat {i}") for i in range(30)]


def doubts(rows):
    return find_doubts(Pair(source, (target,), line) for line, (source, target) in enumerate(rows))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([(source, "eng") for source, _ in GOOD], "every target is 'eng'"),
        ([(str(i), target) for i, (_, target) in enumerate(GOOD)], "every source is a number"),
        ([(source, source) for source, _ in GOOD], "nearly every target equals its source"),
        ([(f"<div>{s}</div>", t) for s, t in GOOD], "contain HTML"),
        ([(f"{s}&nbsp;", t) for s, t in GOOD], "contain HTML"),
        ([(s, f"{t} dÃ©jÃ ") for s, t in GOOD], "garbled letters"),
    ],
)
def test_what_looks_wrong_is_said(rows, words):
    (line,) = doubts(rows)
    assert words in line


def test_clean_text_and_few_pairs_are_not_questioned():
    assert doubts(GOOD) == []
    assert doubts([("a < b and c > d", "a & b; Ã Ö")] * 1 + GOOD) == []
    assert doubts([("1", "eng")] * 19) == []


@pytest.mark.usefixtures("quick_pace")
def test_training_and_inspecting_say_it(command, tmp_path):
    """A Tatoeba export: id, language, text, id, language, text."""
    lines = [f"{i}\teng\tthe cat {i}\t{i + 9}\tfra\tle chat {i}\n" for i in range(60)]
    (tmp_path / "export.tsv").write_text("".join(lines), encoding="utf-8")
    sizes = ["train.steps=1", "model.width=16", "model.ffn=16", "model.heads=2"]
    for words in (["data", "inspect", "export.tsv"], ["train", "export.tsv", *sizes]):
        done = command(*words, cwd=tmp_path)
        assert done.returncode == 0
        told = " ".join((done.stdout + done.stderr).split())
        assert "every target is 'eng'" in told
        assert "every source is a number" in told
