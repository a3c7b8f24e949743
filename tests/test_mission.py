"""docs/mission.md is true: each test, command, option, setting, call and file in it exists."""

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
import typer

from regard.cli import app
from regard.config import all_settings

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "mission.md").read_text(encoding="utf-8")
PROMISES, _, COURSE = PAGE.partition("## 12. ")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PROMISES.splitlines()
    if line.startswith("| ") and not line.startswith("| promise")
]
SETTINGS = {spec.full_name: spec for spec in all_settings()}


def codes(column):
    """What is between backticks in a column of all tables."""
    return sorted({code for row in ROWS for code in re.findall(r"`([^`]+)`", row[column])})


@cache
def names_in(path):
    """The names of the functions in a file of tests."""
    tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_row_has_four_columns_and_is_kept_or_not_yet():
    assert len(ROWS) > 80
    for row in ROWS:
        assert len(row) == 4, row
        promise, how, test, _ = row
        assert promise
        assert how
        assert test or how.startswith("*not yet*: "), promise


def test_no_figure_is_left_to_be_filled_in():
    assert [row[3] for row in ROWS if re.fullmatch(r"[A-Z]+", row[3])] == []


def test_every_test_exists():
    names = [name.split("::") for name in codes(2)]
    missing = [f"{path}::{test}" for path, test in names if test not in names_in(path)]
    assert missing == []


def test_every_command_call_setting_and_file_exists():
    for code in codes(1):
        check(code)


def course_rows():
    """The rows of the course, ranges written out: A1–A3 is A1, A2, A3."""
    for group, first, last in re.findall(r"\b([A-E])(\d+)(?:–[A-E](\d+))?", COURSE):
        for number in range(int(first), int(last or first) + 1):
            yield f"{group}{number}".lower()


def test_every_row_of_the_course_has_a_test():
    names = set()
    for path in (ROOT / "tests" / "course").glob("test_*.py"):
        names |= names_in(path.relative_to(ROOT / "tests"))
    tested = {row for name in names for row in re.findall(r"(?<=_)[a-e]\d+(?=_)", name)}
    rows = list(course_rows())
    assert len(rows) > 70
    assert [row for row in rows if row not in tested] == []


def check(code):
    words = code.split()
    if "regard" in words:
        check_command(words[words.index("regard") + 1 :])
    elif code.startswith("regard."):
        check_call(code)
    elif code.startswith(("examples/", "experiments/", "benchmarks/")):
        assert (ROOT / code).is_file(), code
    elif code.split(".")[0] in ("data", "text", "model", "train", "search"):
        assert code.partition("=")[0] in SETTINGS, code
    else:
        assert code in ("REGARD_DATA", "--out page.html", "result.attention.alignment()"), code


def check_command(words):
    """A verb, perhaps with a kind of it (`show beam`), and options that it has."""
    command = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    options = {option for parameter in command.params for option in parameter.opts}
    for word in words:
        if word.startswith("--"):
            assert word in options, word


def check_call(name):
    """A module of regard, or what can be had from one by its name."""
    parts = name.split(".")
    value = import_module("regard")
    for i, part in enumerate(parts[1:], 2):
        if not hasattr(value, part):
            import_module(".".join(parts[:i]))
        value = getattr(value, part)


def test_a_wrong_name_would_be_noticed():
    assert "test_nothing" not in names_in("test_mission.py")
    for words in (["shout"], ["show", "nothing"], ["translate", "--nothing"]):
        with pytest.raises((KeyError, AssertionError)):
            check_command(list(words))
    with pytest.raises(ModuleNotFoundError):
        check_call("regard.nn.Nothing")
