"""What a user reads is in the words of the field, with its plurals right."""

import ast
import re
from pathlib import Path

import pytest

import regard
from regard.errors import counted

ROOT = Path(regard.__file__).parent
LATER: tuple[str, ...] = ()
"""Rooms and files whose texts are not reworded yet."""
FILES = [
    path
    for path in sorted(ROOT.rglob("*.py"))
    if not path.relative_to(ROOT).as_posix().startswith(LATER)
]

PUZZLES = re.compile(
    r"\b(so many|but for|hangs? on|far out|go(es|ing) on|wish(es)?|mixed from|flatters?|stands?|"
    r"tells?|is whole|of your own|in vain|demanded|come not|no room|in company|not judged|"
    r"optimiser|normalis)\b"
)


def texts(path):
    """The string literals of a file, with their lines, other than documentation."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documentation = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and node not in documentation:
            yield node.lineno, node.value


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_text_puzzles_its_reader(path):
    puzzling = [(line, text) for line, text in texts(path) if PUZZLES.search(text)]
    assert puzzling == []


def test_how_to_pages_and_contributing_do_not_puzzle_either():
    docs = Path(__file__).parents[1]
    for page in (*(docs / "docs" / "how-to").glob("*.md"), docs / "CONTRIBUTING.md"):
        assert PUZZLES.search(page.read_text(encoding="utf-8")) is None, page.name


def test_a_number_agrees_with_its_noun():
    assert counted(1, "head") == "1 head"
    assert counted(0, "head") == "0 heads"
    assert counted(2000, "pair") == "2,000 pairs"
    assert counted(1, "batch", "batches") == "1 batch"
    assert counted(3, "batch", "batches") == "3 batches"
