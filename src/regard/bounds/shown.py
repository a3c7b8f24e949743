"""A value of a setting as an error message shows it: in one line, and not too long."""

from typing import Any

LONGEST = 60  # characters
LARGEST = 2**256  # beyond, a whole number is shown by its size


def shown(value: Any) -> str:
    """The value in at most 60 printable characters, whatever it is."""
    if isinstance(value, int) and not -LARGEST < value < LARGEST:
        return f"(a number of {value.bit_length():,} bits)"  # str() refuses 4,300 digits

    text = str(_beginning(value))
    if not text.isprintable():
        text = repr(text)[1:-1]
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _beginning(value: Any, depth: int = 0) -> Any:
    """The first characters of a text, and the first items of a collection that may be deep."""
    if isinstance(value, str):
        return value[: LONGEST + 1]
    if isinstance(value, list | tuple | dict) and depth == 3:
        return ...
    if isinstance(value, list | tuple):
        return [_beginning(item, depth + 1) for item in value[:5]]
    if isinstance(value, dict):
        first = list(value.items())[:5]
        return {shown(key): _beginning(item, depth + 1) for key, item in first}
    if isinstance(value, int) and not -LARGEST < value < LARGEST:
        return shown(value)
    return value
