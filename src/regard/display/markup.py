"""Text as Markdown, HTML or JSON, in which it is text and nothing else."""

import html as standard_html
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from regard.display.text import plain

# An underscore inside a word is a letter.
_MARKDOWN = re.compile(r"[\\`*\[\]#!|~$]|(?<![^\W_])_|_(?![^\W_])")
# What JSON allows raw, but a terminal obeys, a browser reorders, or UTF-8 cannot hold.
_RAW_IN_JSON = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSEEN_ON_A_PAGE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff\ufffe\uffff]"
)
_ISOLATES = re.compile("[\u2066-\u2069]")


def markdown(text: object) -> str:
    """The text inside Markdown, where no letter of it is markup."""
    escaped = _MARKDOWN.sub(r"\\\g<0>", standard_html.escape(plain(text), quote=False))
    return escaped.replace("://", "&#58;//")  # or it would become a link


def html(text: object) -> str:
    """The text inside HTML, also inside the quotes of an attribute.

    Marks that isolate a direction stay: our own titles have them.
    """
    return standard_html.escape(_UNSEEN_ON_A_PAGE.sub(_sign, str(text)))


def html_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts, each escaped."""
    style = 'style="text-align: left"'
    lines = ["".join(f"<th {style}>{html(name)}</th>" for name in headings)]
    lines += ["".join(f"<td {style}>{html(cell)}</td>" for cell in row) for row in rows]
    return f"<table><tr>{'</tr><tr>'.join(lines)}</tr></table>"


def html_attribute(page: str) -> str:
    """A whole page inside the quotes of an attribute, unchanged."""
    return standard_html.escape(page)


def page_text(text: object) -> str:
    """A text of the user's as a page shows it: a sign for each character that nobody could see.

    Each character stays one, since tokens are found by their places.
    """
    return _ISOLATES.sub(_sign, _UNSEEN_ON_A_PAGE.sub(_sign, str(text)))


def _sign(match: re.Match[str]) -> str:
    """One visible character for one that is not."""
    number = ord(match[0])
    return chr(0x2400 + number) if number < 0x20 else "\ufffd"


def json_text(value: Any) -> str:
    """The value as JSON on one line, which reads back equal; no character in it is obeyed."""
    text = json.dumps(value, ensure_ascii=False)
    return _RAW_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
