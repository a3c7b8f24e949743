"""Text that holds no columns but is easy to recognise: what it is, and how to make pairs of it."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

from regard.data.readers.files import Start, plain_name

_MANY = 0.6  # of the lines
_NEARLY_ALL = 0.9
_NO_ENTRIES = ("#", ";", "//", "---", "...")
_FEWEST = 2  # lines
_SUBTITLE = re.compile(r"(\d+:)?\d+:\d+[.,]\d+ --> ")
_MARKDOWN_RULE = re.compile(r"\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)+\|?")
_CHAT = re.compile(
    r"\W?\[?\d{1,4}[./-]\d{1,2}[./-]\d{1,4},? \d{1,2}[:.]\d{2}.{0,12}?[]-] [^:]{1,40}: "
)
_SECTION = re.compile(r"\[[^]]+\]")
_SIGNS = ("=>", "->", "→", "=", "::", " – ", " - ", ":")  # between the two texts of a line


def lookalike(path: Path, start: Start) -> str | None:
    """What a file without columns looks like, and the way out; None: nothing that is known."""
    lines = [line.strip() for line in start.text().split("\n") if line.strip()]
    if len(lines) < _FEWEST:
        return None
    suffix = Path(plain_name(path)).suffix.lower()
    for recognise in (_gettext, _subtitles, _markdown, _chat, _yaml):
        found = recognise(path, suffix, lines)
        if found is not None:
            return found
    return None


def _share(lines: list[str], fits: Callable[[str], object]) -> float:
    return sum(bool(fits(line)) for line in lines) / len(lines)


def _gettext(path: Path, suffix: str, lines: list[str]) -> str | None:
    has_both = any(line.startswith('msgid "') for line in lines) and any(
        line.startswith('msgstr "') for line in lines
    )
    if suffix not in (".po", ".pot") and not has_both:
        return None
    return (
        f"a gettext file (PO); convert it to TMX with the Translate Toolkit: po2tmx -l LANGUAGE "
        f"{_quoted(path)} {_renamed(path, '.tmx')}"
    )


def _subtitles(path: Path, suffix: str, lines: list[str]) -> str | None:
    if suffix not in (".srt", ".vtt") and _share(lines, _SUBTITLE.match) < 0.15:
        return None
    return (
        "subtitles, which hold one language; write the lines of both languages into two files, "
        "line by line (text.en and text.de), and give both"
    )


def _markdown(path: Path, suffix: str, lines: list[str]) -> str | None:
    if any(map(_MARKDOWN_RULE.fullmatch, lines)) and _share(lines, lambda line: "|" in line) > 0.3:
        script = r"/|/!d; /^[-|: ]*$/d; s/^ *| *//; s/ *| *$//; s/ *| */\t/g"
        return (
            f"a Markdown table; turn it into TSV: sed '{script}' {_quoted(path)} > "
            f"{_renamed(path, '.tsv')}"
        )
    if suffix in (".md", ".markdown", ".rst", ".tex"):
        return "a document, not data; write its pairs to a TSV file, one pair per line"
    return None


def _chat(path: Path, suffix: str, lines: list[str]) -> str | None:
    if _share(lines, _CHAT.match) < _MANY:
        return None
    return (
        "a chat export; a pair is a message and its answer: write both on one line, with a tab "
        "between them, to a TSV file"
    )


def _yaml(path: Path, suffix: str, lines: list[str]) -> str | None:
    listed = suffix in (".yaml", ".yml") and _share(lines, lambda line: line[0] == "-") > 0.2
    if not listed:
        return None
    return (
        f"a YAML file; convert it to JSON: yq -o=json {_quoted(path)} > {_renamed(path, '.json')}"
    )


def list_of_pairs(path: Path, start: Start) -> str | None:
    """What a file is whose lines are like "a = b", and the way out; None: it is no such file.

    Such are also INI files and flat YAML files.
    """
    lines = [line.strip() for line in start.text().split("\n") if line.strip()]
    sections = {line for line in lines if _SECTION.fullmatch(line)}
    entries = [line for line in lines if not line.startswith(_NO_ENTRIES) and line not in sections]
    if len(entries) < _FEWEST:
        return None
    for sign in _SIGNS:
        if sum(_two_texts(line, sign) for line in entries) < _NEARLY_ALL * len(entries):
            continue
        suffix = Path(plain_name(path)).suffix.lower()
        kind = f"lines such as “a {sign.strip()} b”"
        if suffix in (".ini", ".cfg", ".conf", ".properties") or sections:
            kind = "an INI file"
        elif suffix in (".yaml", ".yml"):
            kind = "a YAML file"
        space = "" if sign.startswith(" ") else " *"
        return (
            f"{kind}; put a tab between the two texts: sed -n 's/{space}{sign}{space}/\\t/p' "
            f"{_quoted(path)} > {_renamed(path, '.tsv')}"
        )
    return None


def _two_texts(line: str, sign: str) -> bool:
    """Whether a sign stands between two texts, once."""
    before, _, after = line.partition(sign)
    return bool(before.strip()) and bool(after.strip()) and sign.strip() not in after.split()


def _quoted(path: Path) -> str:
    return shlex.quote(path.name)


def _renamed(path: Path, suffix: str) -> str:
    name = Path(plain_name(path)).with_suffix(suffix).name
    return shlex.quote(name if name != path.name else f"new-{name}")
