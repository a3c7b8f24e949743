"""Text made visible: no control characters, no overridden direction, not too long."""

import re
import shlex
from pathlib import PureWindowsPath

LONGEST_WORD = 200
"""Characters of a name or value that are shown."""
LONGEST_LINE = 600
"""Characters of an error or a warning that are shown."""

# Control characters, line separators, lone surrogates, and the marks that override or nest
# directions. Plain marks of direction and joiners stay: Arabic, Persian and emoji need them.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSEEN_IN_LINES = re.compile(_UNSEEN.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))
_BREAKING = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_DIRECTIONS = re.compile("[\u202a-\u202e\u2066-\u2069]")
_SHORT_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")


def plain(text: object) -> str:
    r"""The text on one line, with what a terminal would obey written as `\n`, `\x1b` or `\u202e`.

    A byte of a file's name that is not UTF-8 becomes `\xff`.
    """
    return _UNSEEN.sub(_escape, str(text))


def safe(text: object) -> str:
    """Like `plain`, but line ends and tabs stay: for lines of ours with data inside."""
    return _UNSEEN_IN_LINES.sub(_escape, str(text))


def one_line(text: object) -> str:
    """The text as one line of a file: control characters and line separators become spaces.

    A lone surrogate, which no file can hold, becomes U+FFFD.
    """
    return _SURROGATE.sub("\ufffd", _BREAKING.sub(" ", str(text)))


def bounded(text: object) -> str:
    """One line for an error or a warning; what is long is shortened in its middle."""
    line = _LONG_WORD.sub(lambda match: _shortened(match[0], LONGEST_WORD), plain(text))
    return _shortened(line, LONGEST_LINE)


def undirected(text: str) -> str:
    """The text without the marks that override, nest or isolate directions."""
    return _DIRECTIONS.sub("", text)


def shell_word(path: object) -> str:
    """The path as one word of a command line, in quotes if it needs them."""
    word = plain(path)
    is_posix = not isinstance(path, PureWindowsPath)
    if re.fullmatch(r"[\w@%+=:,./\\~-]+", word):
        return word
    if is_posix and re.search(r'["$`!\\]', word):  # in double quotes, a shell would obey these
        return shlex.quote(word)
    return f'"{word}"'


def _escape(match: re.Match[str]) -> str:
    """A character as a program would write it in quotes."""
    character = match[0]
    number = ord(character)
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    if 0xDC80 <= number <= 0xDCFF:  # a byte of a name, which Python holds as a surrogate
        return f"\\x{number - 0xDC00:02x}"
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def _shortened(text: str, limit: int) -> str:
    """The text without its middle, if it is longer than so many characters."""
    if len(text) <= limit:
        return text
    head = limit // 2
    tail = limit - head - 1
    return f"{text[:head]}…{text[-tail:]}"
