"""The one way to show text that comes from data, names, settings or answers.

`text` makes it visible and short, `terminal` prints it, `markup` writes it as Markdown, HTML or
JSON, and `streams` are standard output and error that fail in one line.
"""

from regard.display.markup import html, html_attribute, html_table, json_text, markdown, page_text
from regard.display.streams import say_bytes
from regard.display.terminal import console, fail, note, say, say_answer, say_json, table, warn
from regard.display.text import bounded, one_line, plain, safe, shell_word, undirected

__all__ = [
    "bounded",
    "console",
    "fail",
    "html",
    "html_attribute",
    "html_table",
    "json_text",
    "markdown",
    "note",
    "one_line",
    "page_text",
    "plain",
    "safe",
    "say",
    "say_answer",
    "say_bytes",
    "say_json",
    "shell_word",
    "table",
    "undirected",
    "warn",
]
