"""The log of a run, whatever happened to it."""

import json

import pytest

from regard.errors import UserError
from regard.runs import log

GOOD = {"kind": "dev", "step": 3, "loss": 0.5, "accuracy": 0.1}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.jsonl"


@pytest.mark.parametrize(
    "bad",
    [
        {"kind": "dev"},
        {"kind": "train", "step": 3},
        {"kind": "dev", "loss": 1.0},
        GOOD | {"loss": "low"},
        GOOD | {"loss": None},
        GOOD | {"bleu": [1]},
        GOOD | {"loss": 10**400},
        GOOD | {"loss": True},
        GOOD | {"step": "3"},
        GOOD | {"step": -1},
        GOOD | {"step": 1e300},
        GOOD | {"kind": 3},
        {"kind": "fallback", "step": []},
        [],
        3,
    ],
    ids=str,
)
def test_what_is_no_entry(path, bad):
    path.write_text(f"{json.dumps(GOOD)}\n{json.dumps(bad)}\n{json.dumps(GOOD)}\n")
    assert log.some_entries(path) == [GOOD, GOOD]


def test_a_line_too_long(path):
    path.write_text(f"{json.dumps(GOOD)}\n{json.dumps(GOOD | {'x': 'y' * 300_000})}\n")
    with path.open("a") as file:
        file.write(json.dumps(GOOD))
    assert log.some_entries(path) == [GOOD, GOOD]


def test_a_very_long_log(path, monkeypatch):
    monkeypatch.setattr(log, "ENTRIES", 10)
    path.write_text("".join(json.dumps(GOOD | {"step": step}) + "\n" for step in range(1000)))
    steps = [entry["step"] for entry in log.some_entries(path)]
    assert steps == [*range(0, 1000, 64)]


def test_what_is_no_file(path):
    path.mkdir()
    with pytest.raises(UserError, match=r"log.jsonl: Is a directory"):
        log.some_entries(path)


def test_no_file(path):
    assert log.some_entries(path) == []


def test_the_best_evaluation_is_finite(run, tmp_path, monkeypatch):
    lines = [GOOD | {"loss": float("nan")}, GOOD, GOOD | {"loss": float("-inf")}]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr(run, "path", tmp_path)
    assert run.best_look() == GOOD


def test_rewinding_ends_a_last_line_that_was_cut(run, tmp_path, monkeypatch):
    (tmp_path / "log.jsonl").write_text(json.dumps(GOOD))
    monkeypatch.setattr(run, "path", tmp_path)
    run.rewind_log(3)
    run.log("dev", step=4, loss=1.0)
    assert [entry["step"] for entry in run.records()] == [3, 4]


@pytest.mark.parametrize(
    "line",
    [
        '{"kind": "dev", "step": 3',
        '{"kind": "a"}, {"kind": "b"}',
        '{"kind": "a", "deep": {"kind": "b"}}',
        '{"kind": "dev", "step": 1, "loss": 0.5, "text": "}, {"}',
        '[{"kind": "a"}]',
        '"{"',
        '{"kind": "a", "kind": "b"}',
        '{"kind": "a", "values": [' + "1, " * 9_000 + "1]}",
        '{"kind": "a", "values": ' + "[" * 4_000 + "]" * 4_000 + "}",
    ],
)
def test_lines_parsed_together_are_as_lines_parsed_alone(path, line):
    good = json.dumps(GOOD)
    for lines in ([good, line, good], [line, line], [good, '{"kind": "', line], [line, "]", good]):
        content = [text.encode() + b"\n" for text in lines]
        path.write_bytes(b"".join(content))

        assert list(log.read_lines(path)) == [(text, log._entry(text)) for text in content]
