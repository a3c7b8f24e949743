"""Parts by name: a misspelt name is answered with the nearest one there is."""

from collections.abc import Mapping
from typing import TypeVar

from regard.errors import UserError, nearest

Part = TypeVar("Part")


def look_up(kind: str, name: str, known: Mapping[str, Part]) -> Part:
    """The part of this name. kind: what it is called in a message, such as "score"."""
    if name not in known:
        raise UserError(f"no {kind} {name!r}{nearest(name, known)}")

    return known[name]
