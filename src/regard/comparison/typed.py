"""Whether what a file says has the types of the fields that it is for."""

from collections.abc import Mapping
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints


def check_fields(made_of: type, values: Mapping[str, Any]) -> None:
    """Refuse values of other types than a dataclass has. Raises TypeError."""
    for name, wanted in get_type_hints(made_of).items():
        if name in values and not _fits(values[name], wanted):
            raise TypeError(f"{name} has another type")


def _fits(value: Any, wanted: Any) -> bool:
    """Whether a value that was read from JSON has this type; a whole number is a number, too."""
    kind = get_origin(wanted)
    parts = get_args(wanted)
    if wanted is Any:
        return True
    if kind is UnionType:
        return any(_fits(value, one) for one in parts)
    if isinstance(value, dict):
        is_table = kind is not None and issubclass(kind, Mapping)
        return is_table and all(_fits(one, parts[1]) for one in value.values())
    if isinstance(value, list) and kind is tuple:
        return len(value) == len(parts) and all(map(_fits, value, parts))
    if isinstance(value, list):
        is_list = kind is not None and not issubclass(kind, Mapping)
        return is_list and all(_fits(one, parts[0]) for one in value)
    if isinstance(value, bool):
        return wanted is bool
    if wanted is float:
        return isinstance(value, int | float)
    return kind is None and isinstance(value, wanted)
