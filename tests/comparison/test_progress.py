"""What a person sees while a comparison runs."""

import io
import json
import os
import sys

import pytest
from rich.console import Console

from regard.comparison import progress
from regard.comparison.folder import Folder
from regard.comparison.progress import Board
from regard.recipes.reporter import Reporter


@pytest.fixture
def outcome(made_outcome):
    train = {"train": {"steps": 100, "epochs": 0}}
    return made_outcome(settings={"small": train, "large": train})


@pytest.fixture
def folder(tmp_path):
    folder = Folder(tmp_path / "comparison")
    folder.make()
    return folder


def keep(folder, outcome, number):
    cell = outcome.plan.cells[number]
    every = [scores for system in outcome.systems for scores in system.scores]
    folder.keep_scores(cell, next(scores for scores in every if scores.key == cell.key))


def log(folder, outcome, number, *entries):
    run = folder.run(outcome.plan.cells[number])
    run.mkdir(exist_ok=True)
    with (run / "log.jsonl").open("a") as file:
        for entry in entries:
            file.write(json.dumps(entry) + "\n")


def terminal(width=80):
    """A reporter on a terminal, and what is written there."""
    stream = io.StringIO()
    reporter = Reporter(stream)
    reporter.console = Console(file=stream, force_terminal=True, width=width, height=40)
    return reporter, stream


def test_without_a_terminal_a_line_for_each_run(folder, outcome):
    said = io.StringIO()
    keep(folder, outcome, 0)
    with Board(outcome.plan, folder, 2, Reporter(said)) as board:
        keep(folder, outcome, 3)
        board.update({1}, {})
        board.update({1}, {2: "small, seed 3: the disk is full"})
        board.update({1}, {2: "small, seed 3: the disk is full"})
    lines = said.getvalue().splitlines()
    assert lines[0] == "1 run of 6 done before; training 5 runs, 2 at a time"
    assert lines[1].startswith("2/6  large, seed 1: BLEU ")
    assert lines[2:] == ["warning: small, seed 3: the disk is full"]


def test_on_a_terminal_a_table(folder, outcome, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    reporter, stream = terminal()
    log(folder, outcome, 1, {"kind": "train", "step": 40, "loss": 1.25})
    log(folder, outcome, 4, {"kind": "train", "step": 100, "loss": 1.0})
    with Board(outcome.plan, folder, 2, reporter) as board:
        keep(folder, outcome, 0)
        board.update({1, 3, 4}, {5: "large, seed 3: it failed"})
        text = stream.getvalue()
    for words in ("1 of 6 runs", "BLEU", "40%: step 40, loss 1.250", "preparing", "scoring"):
        assert words in text
    assert "waiting" in text
    assert "failed" in text


def test_a_quiet_reporter_says_only_warnings(folder, outcome):
    said = io.StringIO()
    with Board(outcome.plan, folder, 2, Reporter(said, quiet=True)) as board:
        keep(folder, outcome, 0)
        board.update(set(), {1: "it failed"})
    assert said.getvalue() == "warning: it failed\n"


def test_the_time_left_is_by_what_was_done_since_the_start(folder, outcome, monkeypatch):
    """Half of a run in 60 seconds, of six runs: eleven halves are left."""
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    board = Board(outcome.plan, folder, 1, Reporter(io.StringIO()))
    log(folder, outcome, 0, {"kind": "train", "step": 0})
    assert board._left({0}) == ""
    clock[0] += 60
    log(folder, outcome, 0, {"kind": "train", "step": 50})
    assert board._left({0}) == ", about 11 minutes left"
    clock[0] += 60
    keep(folder, outcome, 0)
    board.update(set(), {})
    assert board._left(set()) == ", about 10 minutes left"


def test_the_time_left_after_a_restart_counts_what_was_there(folder, outcome, monkeypatch):
    """Two runs of six were nearly done: a minute for their last tenths says ten for each other."""
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    for number in (0, 1):
        log(folder, outcome, number, {"kind": "train", "step": 90})
    board = Board(outcome.plan, folder, 2, Reporter(io.StringIO()))
    clock[0] += 60
    for number in (0, 1):
        keep(folder, outcome, number)
    board.update(set(), {})
    assert board._left(set()) == ", about 20 minutes left"  # four runs, two tenths a minute
    board.update(set(), {5: "it failed"})
    assert board._left(set()) == ", about 15 minutes left"


@pytest.mark.parametrize(
    "lines",
    ["", "{", "[]\n", '{"kind": "train"}\n', '{"kind": "train", "step": "x", "loss": null}\n'],
)
def test_odd_lines_of_a_log_do_no_harm(folder, outcome, lines, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    run = folder.run(outcome.plan.cells[0])
    run.mkdir()
    (run / "log.jsonl").write_text(lines)
    reporter, stream = terminal()
    with Board(outcome.plan, folder, 1, reporter) as board:
        board.update({0}, {})
    assert "6 runs" in stream.getvalue()


@pytest.mark.skipif(sys.platform == "win32", reason="Unix has these files")
def test_a_pipe_in_place_of_a_log_is_not_waited_for(folder, outcome):
    run = folder.run(outcome.plan.cells[0])
    run.mkdir()
    os.mkfifo(run / "log.jsonl")
    said = io.StringIO()
    with Board(outcome.plan, folder, 1, Reporter(said)) as board:
        board.update({0}, {})
    assert said.getvalue().startswith("training 6 runs")


def test_of_many_runs_those_around_the_ones_being_trained(folder, made_outcome, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    outcome = made_outcome({f"system {number}": 0.5 for number in range(20)}, examples=2)
    reporter, _stream = terminal()
    board = Board(outcome.plan, folder, 1, reporter)
    shown = board._shown({30})
    assert 30 in shown
    assert len(shown) <= progress.MOST_ROWS + 1
    assert board._shown(set())[0] == 0
    assert board._shown({59})[-1] == 59


def test_names_cannot_write_to_the_terminal(folder, made_outcome, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    outcome = made_outcome({"\x1b[31mred": 0.5, "[bold]b": 0.6}, examples=2)
    reporter, stream = terminal()
    with Board(outcome.plan, folder, 1, reporter) as board:
        board.update(set(), {})
    assert "\x1b[31mred" not in stream.getvalue()
    assert "[bold]b" in stream.getvalue()
