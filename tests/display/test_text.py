"""Text from data, names and answers, made harmless for a terminal, a card and a page."""

import ast
import json
import re
from pathlib import Path, PureWindowsPath

import pytest

import regard
from regard.display import (
    bounded,
    html,
    json_text,
    markdown,
    one_line,
    page_text,
    plain,
    safe,
    say,
    say_answer,
    shell_word,
    table,
    undirected,
    warn,
)

HOSTILE = "\x1b]0;x\x07\x1b[31m[bold]<script>|\u202e\x9b2J\b\r\nerror: spoof \udcff\ud800"
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
ROOT = Path(regard.__file__).parent


def test_plain_shows_what_a_terminal_would_obey():
    assert plain(HOSTILE) == (
        r"\x1b]0;x\x07\x1b[31m[bold]<script>|\u202e\x9b2J\x08\r\nerror: spoof \xff\ud800"
    )


@pytest.mark.parametrize(
    "text", ["déjà vu", "שלום", "مرحبا\u200f", "می\u200cخواهم", "👩\u200d👧", "猫", r"C:\runs\a"]
)
def test_plain_leaves_ordinary_text_alone(text):
    assert plain(text) == text


def test_safe_keeps_lines_and_tabs():
    assert safe("a\tb\nc\x1b[0m") == "a\tb\nc\\x1b[0m"


def test_one_line_breaks_no_file_of_lines():
    text = one_line("a\nb\rc\x0bd\x0ce\x1cf\x85g\u2028h\u2029i\x1bj\tk\udcff")
    assert text == "a b c d e f g h i j\tk\ufffd"
    assert len(text.splitlines()) == 1
    text.encode("utf-8")


@pytest.mark.parametrize("value", ["x" * 2000, "x y " * 500, HOSTILE * 200])
def test_an_error_line_is_bounded(value):
    line = bounded(f"{value}: no such file")
    assert len(line) <= 600
    assert "…" in line
    assert line.endswith("no such file")
    assert not RAW.search(line)
    assert "\n" not in line


def test_a_long_name_is_shortened_in_its_middle():
    line = bounded(f"runs/{'a' * 1000}{'b' * 1000}: no such file")
    assert re.fullmatch(r"runs/a+…b+: no such file", line)
    assert 200 <= len(line) <= 220


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("runs/a", "runs/a"),
        ("my runs/a", '"my runs/a"'),
        ("a$(reboot)", "'a$(reboot)'"),
        ("it's `x`", "'it'\"'\"'s `x`'"),
        ("a\x1b[31m", r"'a\x1b[31m'"),
    ],
)
def test_a_path_is_one_word_of_a_command(path, word):
    assert shell_word(path) == word


def test_a_windows_path_is_one_word_too():
    assert shell_word(PureWindowsPath(r"C:\My runs\demo")) == r'"C:\My runs\demo"'


def test_undirected_has_no_marks_of_direction():
    assert undirected("a\u202eb\u2069c\u200f") == "abc\u200f"


def test_markdown_has_no_markup():
    escaped = markdown(HOSTILE + "*a* _b_ `c` [d](e) ![f](g) $h$ exact_match https://i")
    assert not RAW.search(escaped)
    assert "\n" not in escaped
    assert "&lt;script&gt;" in escaped
    assert r"\|" in escaped
    assert r"\*a\* \_b\_ \`c\` \[d\](e) \!\[f\](g) \$h\$ exact_match https&#58;//i" in escaped


def test_html_keeps_a_character_for_each():
    assert "<" not in html(HOSTILE)
    assert not RAW.search(page_text(HOSTILE).replace("\r", ""))
    assert len(page_text(HOSTILE)) == len(HOSTILE)


def test_json_reads_back_equal():
    text = json_text({"text": HOSTILE + "é\u2028"})
    assert json.loads(text) == {"text": HOSTILE + "é\u2028"}
    assert not RAW.search(text)
    assert "é" in text


def test_nothing_raw_is_printed(capsys):
    say(HOSTILE)
    say_answer(HOSTILE, HOSTILE)
    warn(HOSTILE)
    table([HOSTILE], [[HOSTILE]])
    said = capsys.readouterr()
    assert not RAW.search((said.out + said.err).replace("\u202e", ""))
    assert "[bold]" in said.out.splitlines()[0]
    assert said.out.count("[bold]") == 5
    assert not re.search(r"^error: spoof", said.out + said.err, re.MULTILINE)


def offences(tree: ast.Module):
    """Ways to print or to write HTML that do not go through this room."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in ("print", "Console", "rich.print", "typer.echo", "sys.stdout.write"):
                yield name
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            module = getattr(node, "module", None) or ""
            if module == "html" or ("html" in names and not module.startswith("regard")):
                yield "html"


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(ROOT.rglob("*.py")) if "display" not in path.parts],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_nothing_else_prints(path):
    assert list(offences(ast.parse(path.read_text(encoding="utf-8")))) == []


def test_the_walk_sees_printing():
    text = "from html import escape\nimport html\nprint(1)\nConsole().print(2)\ntyper.echo(3)"
    assert len(list(offences(ast.parse(text)))) == 5
