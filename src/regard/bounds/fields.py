"""The field of a setting: its default, its help, and the values it may take."""

import dataclasses
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

SEEDS = 2**63  # torch takes seeds of 63 bits; a number below this is a seed

Value = TypeVar("Value")
Number = int | float


def setting(
    default: Value,
    help: str,
    *,
    least: Number | None = None,
    most: Number | None = None,
    below: Number | None = None,
    custom: bool = False,
    advice: str = "",
) -> Value:
    """Declare a field of a section: its default, one line of help, and the values it may take.

    A number must be at least `least`, and at most `most` or else less than `below`. The choices of
    a name are those of its `Literal` type; with `custom`, `custom:Name` is allowed too, a class of
    the caller. advice: added to the error about a value of a wrong type, {value} in it.
    """
    metadata = {
        "help": help,
        "least": least,
        "most": most,
        "below": below,
        "custom": custom,
        "advice": advice,
    }
    if isinstance(default, dict):
        return field(default_factory=lambda: copy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class SettingSpec:
    """Name, type, default, help and bounds of one setting, read from its field."""

    section: str  # empty for an option that is not in config.toml
    kind: str  # of the model that has it; empty outside the section of the model
    name: str
    type: Any
    default: Any
    help: str
    least: Number | None
    most: Number | None
    below: Number | None
    custom: bool
    advice: str

    @property
    def full_name(self) -> str:
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def choices(self) -> tuple[str, ...]:
        """The names it may have, besides `custom:Name`; empty if it is not a choice."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def is_seed(self) -> bool:
        """Whether it is a random seed, for which `none` means: draw one."""
        return self.below == SEEDS

    @property
    def range_words(self) -> str:
        """The range of a number in words: `from 1 to 1,000`; empty if it is no number."""
        if self.least is None:
            return ""
        if self.most is not None:
            return f"from {_number(self.least)} to {_number(self.most)}"
        assert self.below is not None
        return f"at least {_number(self.least)} and less than {_number(self.below)}"

    def holds(self, number: Number) -> bool:
        """Whether a number is in range."""
        if self.least is not None and not number >= self.least:
            return False
        if self.most is not None and not number <= self.most:
            return False
        return self.below is None or number < self.below


def _number(number: Number) -> str:
    """A bound as a person writes it: 65,536, 0.01, 1e-6 or 2^63."""
    if number == SEEDS:
        return "2^63"
    return f"{number:,}" if isinstance(number, int) else f"{number:g}".replace("e-0", "e-")


def specs_of(section_class: Any) -> dict[str, SettingSpec]:
    """What there is to set in a section, by name; section_class: its dataclass."""
    return _specs(section_class)


@cache
def _specs(section_class: Any) -> dict[str, SettingSpec]:
    types_by_name = get_type_hints(section_class)

    specs = {}
    for definition in dataclasses.fields(section_class):
        factory = definition.default_factory
        default = definition.default if factory is dataclasses.MISSING else factory()
        specs[definition.name] = SettingSpec(
            section=section_class.section,
            kind=section_class.model_kind,
            name=definition.name,
            type=types_by_name[definition.name],
            default=default,
            **definition.metadata,
        )
    return specs
