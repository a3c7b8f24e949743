"""Values -> values of the right type and within their bounds, or an error that says what is."""

import math
import secrets
import tomllib
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, get_args, get_origin

from regard.bounds.fields import SettingSpec, specs_of
from regard.bounds.shown import shown
from regard.errors import UserError

DRAWN_SEEDS = 10**9  # short enough to be typed again
LONGEST_TEXT = 4096  # characters of a string: as many as a path has on Linux
MOST_OPTIONS = 256  # names of a setting such as data.options, or items of a list in it
DEEPEST_LIST = 4  # lists in lists, in an option

TYPE_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    float | None: "a number",
    bool: "true or false",
    str: "a string",
    tuple[float, float]: "two numbers, such as [0.9, 0.98]",
    dict[str, Any]: "options by name, such as {complexity = 3}",
}
"""How an error message calls the type of a setting."""


@dataclass(frozen=True)
class Bounded:
    """A dataclass whose values are checked when it is made, by whomever.

    Its fields are declared by `setting`. Numbers that came as text, from a command line, become
    numbers.
    """

    section: ClassVar[str] = ""
    model_kind: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for name, spec in specs_of(type(self)).items():
            object.__setattr__(self, name, checked(getattr(self, name), spec))


def checked(value: Any, spec: SettingSpec) -> Any:
    """The value as the setting's type, if it is one that the setting may have."""
    if spec.choices:
        _check_choice(value, spec)
        return value
    if spec.is_seed and is_none(value):
        return draw_seed()

    try:
        converted = _converted(value, spec.type)
    except (ValueError, OverflowError):
        wanted = TYPE_WORDS[spec.type] + spec.advice.format(value=shown(value))
        raise UserError(f"{spec.full_name}={shown(value)}: must be {wanted}") from None

    if isinstance(converted, str):
        _check_text(converted, spec.full_name)
    if isinstance(converted, dict):
        _check_options(converted, spec.full_name)
    for number in converted if isinstance(converted, tuple) else (converted,):
        if isinstance(number, int | float):
            _check_bounds(number, value, spec)
    return converted


def is_none(value: Any) -> bool:
    """Whether a value is None, or says so on a command line or in TOML, which has no None."""
    return value is None or (isinstance(value, str) and value.lower() == "none")


def draw_seed() -> int:
    """A random seed that nobody chose."""
    return secrets.randbelow(DRAWN_SEEDS)


def _check_choice(value: Any, spec: SettingSpec) -> None:
    """Refuse a name that is not one of the choices."""
    is_text = isinstance(value, str)
    if is_text and value in spec.choices:
        return
    if is_text and spec.custom and value.startswith("custom:"):
        _check_text(value, spec.full_name)
        return
    raise UserError(f"{spec.full_name}={shown(value)}: choose {', '.join(spec.choices)}")


def _check_bounds(number: float, value: Any, spec: SettingSpec) -> None:
    """Refuse a number that is out of bounds. value: what the caller wrote, for the message."""
    if isinstance(number, float) and not math.isfinite(number):
        raise UserError(f"{spec.full_name}={shown(value)}: must be finite, {spec.range_words}")
    if spec.least is not None and not spec.holds(number):
        raise UserError(f"{spec.full_name}={shown(value)}: must be {spec.range_words}")


def _check_text(text: str, name: str) -> None:
    """Refuse a text that no file has as its name, and no config.toml can hold."""
    if len(text) > LONGEST_TEXT:
        raise UserError(
            f"{name}={shown(text)}: {len(text):,} characters long; at most {LONGEST_TEXT:,} are "
            f"allowed"
        )
    if "\0" in text:
        raise UserError(f"{name}={shown(text)}: has a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{name}={shown(text)}: is not valid UTF-8") from None


def _check_options(options: dict[str, Any], name: str) -> None:
    """Refuse options that config.toml cannot hold: what it has must read back equal."""
    if len(options) > MOST_OPTIONS:
        raise UserError(f"{name}: {len(options):,} options; at most {MOST_OPTIONS} are allowed")
    for key, value in options.items():
        if not isinstance(key, str) or not key.isascii() or not key.isidentifier():
            raise UserError(
                f"{name}: no option can be called {shown(key)!r}; write letters, digits and _"
            )
        _check_option(value, f"{name}.{shown(key)}")


def _check_option(value: Any, name: str, depth: int = 0) -> None:
    """Refuse what is no text, number or flag, nor a list of them."""
    if isinstance(value, str):
        _check_text(value, name)
        return
    if isinstance(value, int) and -(2**63) <= value < 2**63:  # also true and false
        return
    if isinstance(value, float) and math.isfinite(value):
        return
    if isinstance(value, list | tuple) and depth < DEEPEST_LIST and len(value) <= MOST_OPTIONS:
        for item in value:
            _check_option(item, name, depth + 1)
        return
    raise UserError(
        f"{name}={shown(value)}: must be a finite number, a string, true or false, or a short list"
    )


def _converted(value: Any, wanted: Any) -> Any:
    """The value as the wanted type, if nothing is lost: 100.0 is a whole number, 1.5 is not.

    Raises ValueError if something would be lost.
    """
    if get_origin(wanted) is types.UnionType:  # X | None
        return None if value is None else _converted(value, get_args(wanted)[0])

    if isinstance(value, str) and wanted is not str:  # from the command line
        value = from_text(value)

    if get_origin(wanted) is tuple and isinstance(value, list | tuple):
        items = zip(value, get_args(wanted), strict=True)
        return tuple(_converted(item, item_type) for item, item_type in items)
    if get_origin(wanted) is dict and isinstance(value, Mapping):
        return dict(value)
    if wanted in (bool, str) and isinstance(value, wanted):
        return value

    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and wanted in (float, str):
        return wanted(value)
    if is_number and wanted is int and value % 1 == 0:
        return int(value)
    raise ValueError


def from_text(text: str) -> Any:
    """What a text of a command line says as TOML, such as a number.

    Raises ValueError if it is no TOML value.
    """
    if len(text) > LONGEST_TEXT or "\n" in text:  # a second line would be a setting of its own
        raise ValueError("not one value")
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except RecursionError:  # [[[[…
        raise ValueError("nested too deeply") from None
