"""`regard runs`: one row a run."""

import json
import os
import shutil

import pytest
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.cli.runs import _rounded
from regard.errors import UserError


def call(*words: str) -> str:
    done = CliRunner().invoke(app, ["runs", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def two(run, here):
    """Two runs, one of them in a folder inside, and one that is damaged."""
    shutil.copytree(run.path, here / "runs" / "sums")
    shutil.copytree(run.path, here / "runs" / "old" / "first")
    shutil.copytree(run.path, here / "runs" / "broken")
    (here / "runs" / "broken" / "manifest.json").write_text("{")
    for name, day in (("sums", 20), ("old/first", 10), ("broken", 1)):
        os.utime(here / "runs" / name / "log.jsonl", (86400 * day, 86400 * day))
    return here


def test_a_table(two, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    said = call()
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in said.splitlines()]
    rows = [row for row in rows if row]
    loss = run.best_look()["loss"]
    parameters = _rounded(run.manifest["parameters"])
    assert [row[0] for row in rows] == ["runs/sums", "runs/old/first", "runs/broken"]
    assert rows[0][1:5] == ["arithmetic", "60", parameters, f"loss {loss:.3f}"]
    assert rows[0][5].startswith("1970-01-2")
    assert "damaged" in rows[2][1]


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_it_fits(columns, two, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert max(map(len, call().splitlines())) <= columns


def test_names_are_not_folded_at_80_columns(run, here, monkeypatch):
    name = "runs/french-english-large-2"
    shutil.copytree(run.path, here / name)
    monkeypatch.setenv("COLUMNS", "80")
    assert f"│ {name} │" in call()


def test_json(two, run):
    entries = json.loads(call("--json"))
    assert entries[0]["path"] == "runs/sums"
    assert entries[0]["parameters"] == run.manifest["parameters"]
    assert entries[0]["score"]["value"] == run.best_look()["loss"]
    assert entries[2]["problem"]


def test_no_runs(here):
    assert call() == "No runs in runs. Train one: regard train pairs.tsv\n"
    with pytest.raises(UserError, match=r"nowhere: no such folder"):
        call("nowhere")


def test_a_run_before_its_first_evaluation(two):
    (two / "runs" / "sums" / "log.jsonl").write_text("")
    assert "not scored" in call("runs/sums")
    assert regard.Run.open("runs/sums").best_look() is None


@pytest.mark.parametrize(
    ("number", "words"),
    [(950, "950"), (1000, "1k"), (12_345, "12.3k"), (999_900, "1M"), (6_550_000, "6.55M")],
)
def test_counts_are_short(number, words):
    assert _rounded(number) == words
