"""What progress.json of a checkpoint says, checked before training goes on from it."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from regard.files.reading import parse_json
from regard.runs.pointer import NAME
from regard.training.guard import WINDOW
from regard.training.trainer import COUNTED

MOST = 1 << 53  # of a count: what JSON can tell exactly


def read_progress(content: bytes, step: int) -> dict[str, Any]:
    """What the file of the checkpoint of a step says. Raises ValueError if it cannot be right."""
    values = parse_json(content)
    if not isinstance(values, dict):
        raise ValueError("not a table")
    for name, is_right in CHECKS.items():
        if name not in values and name not in LATER:
            raise ValueError(f"no {name}")
        if name in values and not is_right(values[name]):
            raise ValueError(f"{name} is {values[name]!s:.40}")
    if values["step"] != step:
        raise ValueError(f"step is {values['step']}")
    _check_guard(values["guard"])
    return values


def _check_guard(guard: Mapping[str, Any]) -> None:
    seen = guard.get("seen")
    if not isinstance(seen, list) or len(seen) != WINDOW:
        raise ValueError("guard.seen is not a window of steps")
    if not all(_is_list_of(2, row) for row in seen):
        raise ValueError("guard.seen is not a window of numbers")
    if not _is_count(guard.get("count")) or not _is_finite(guard.get("spikes")):
        raise ValueError("guard has no counts")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < MOST


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < MOST)


def _is_finite(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value)


def _is_list_of(count: int, value: Any) -> bool:
    return isinstance(value, list) and len(value) == count and all(map(_is_finite, value))


def _is_name(value: Any) -> bool:
    """Whether it is a checkpoint's name, or empty: there is none yet."""
    return isinstance(value, str) and (not value or NAME.fullmatch(value) is not None)


def _are_skipped(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(entry, list) and len(entry) == 2 and all(map(_is_count, entry))
        for entry in value
    )


CHECKS: dict[str, Callable[[Any], bool]] = {
    "step": _is_count,
    "seconds": lambda value: _is_finite(value) and value >= 0,
    "best": lambda value: _is_number(value) and not math.isnan(value),
    "best_name": _is_name,
    "latest": lambda value: _is_number(value) and not math.isnan(value),
    "waited": _is_count,
    "finished": lambda value: isinstance(value, bool),
    "factor": lambda value: _is_finite(value) and 0 < value <= 1,
    "skipped": _are_skipped,
    "tokens_read": _is_count,
    "logged_at": _is_finite,
    "given_up": _is_count,
    "decay_end": _is_count,
    "totals": lambda value: _is_list_of(len(COUNTED), value),
    "guard": lambda value: isinstance(value, dict),
}
LATER = ("latest", "tokens_read", "logged_at", "given_up", "decay_end")
"""What checkpoints of older versions do not have."""
