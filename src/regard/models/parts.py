"""Parts of a user's own: classes and functions that stand where a setting says custom:Name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.config import Settings
from regard.errors import UserError, nearest
from regard.models.seq2seq import Seq2Seq
from regard.nn import Block, Position, Score

PREFIX = "custom:"
SETTINGS = {
    "score": ("model", "score"),
    "position": ("model", "position"),
    "block": ("model", "block"),
    "encoder_mask": ("model", "encoder_mask"),
    "decoder_mask": ("model", "decoder_mask"),
    "cross_mask": ("model", "cross_mask"),
    "model": ("model", "kind"),
    "metric": ("train", "metric"),
    "callback": ("train", "callback"),
}
"""The kinds of parts, and the section and name of the setting where each is remembered."""
BASES: dict[str, type] = {"score": Score, "position": Position, "block": Block, "model": Seq2Seq}
"""Of what a part that is a class must be a subclass; the other kinds are functions."""


@dataclass(frozen=True)
class Part:
    """A class or a function of the user's own, and what it is for."""

    kind: str
    value: Any

    @property
    def name(self) -> str:
        """As it stands in config.toml, after custom:."""
        return str(getattr(self.value, "__name__", type(self.value).__name__))

    @classmethod
    def of(cls, value: Any, kind: str = "") -> Part:
        """Check that `value` can be a part of this kind. No kind: the class tells it."""
        if isinstance(value, cls):
            return value
        if not kind:
            return cls(_kind_of(value), value)
        if kind not in SETTINGS:
            raise UserError(f"parts: no kind {kind!r}{nearest(kind, SETTINGS)}")

        part = cls(kind, value)
        base = BASES.get(kind)
        if base is None and not callable(value):
            raise UserError(f"the {kind} {part.name} must be a function")
        if base is not None and not (isinstance(value, type) and issubclass(value, base)):
            module = "models" if kind == "model" else "nn"
            raise UserError(
                f"the {kind} {part.name} must be a subclass of regard.{module}.{base.__name__}"
            )
        return part


Parts = Mapping[str, Any] | Sequence[Any] | None
"""Parts of a user's own: {"score": MyScore}, or [MyScore, MyPosition] where the class tells."""


def _kind_of(value: Any) -> str:
    """The kind of a part, by what it is a subclass of."""
    for kind, base in BASES.items():
        if isinstance(value, type) and issubclass(value, base):
            return kind
    name = getattr(value, "__name__", repr(value))
    if callable(value) and not isinstance(value, type):
        raise UserError(
            f'{name}: what is this function for? Write parts={{"metric": {name}}} (--parts '
            f"metric=FILE.py:{name}), or the same with callback, encoder_mask, decoder_mask or "
            f"cross_mask"
        )
    raise UserError(
        f"{name} is no part: a part is a subclass of regard.nn.Score, Position or Block, or of "
        f"regard.models.Seq2Seq"
    )


def listed(parts: Parts) -> list[Part]:
    """Every part with its kind."""
    if parts is None:
        return []
    if isinstance(parts, Mapping):
        return [Part.of(value, kind) for kind, value in parts.items()]
    if isinstance(parts, str) or not isinstance(parts, Sequence):
        raise UserError(f'parts={parts!r}: write parts={{"score": MyScore}}, or a list of classes')
    return [Part.of(value) for value in parts]


def settings_of(parts: Parts, given: Mapping[str, Mapping[str, Any]]) -> Settings:
    """The settings that name these parts: {"model": {"score": "custom:MyScore"}}.

    given: what the caller has set, where one of several parts of a kind may be named.
    """
    settings: Settings = {}
    for part in listed(parts):
        section, setting = SETTINGS[part.kind]
        name = PREFIX + part.name
        wanted = given.get(section, {}).get(setting)
        known = [PREFIX + other.name for other in listed(parts) if other.kind == part.kind]
        if wanted is not None and wanted not in known:
            raise UserError(
                f"{section}.{setting}={wanted}, but parts has the {part.kind} {part.name}: leave "
                f"one of them out"
            )
        if wanted is None and len(set(known)) > 1:
            raise UserError(
                f"parts has {len(known)} of the kind {part.kind}: say which by "
                f"{section}.{setting}={known[0]}"
            )
        settings.setdefault(section, {})[setting] = wanted or name
    return settings


def is_own(name: str) -> bool:
    """Whether the value of a setting names a part of the user's own."""
    return name.startswith(PREFIX)


def find_part(kind: str, name: str, parts: Parts) -> Any:
    """The user's own part that a setting names, such as custom:MyScore."""
    check_parts({kind: name}, parts)
    wanted = name.removeprefix(PREFIX)
    return next(p.value for p in listed(parts) if p.kind == kind and p.name == wanted)


def check_parts(wanted: Mapping[str, str], parts: Parts) -> None:
    """Refuse to go on without the parts that settings name, and say how to pass all of them.

    wanted: by kind the values of the settings, such as custom:MyScore.
    """
    given = [(part.kind, PREFIX + part.name) for part in listed(parts)]
    missing = [item for item in wanted.items() if is_own(item[1]) and item not in given]
    if not missing:
        return

    kinds = [".".join(SETTINGS[kind]) + f"={name}" for kind, name in missing]
    names = {kind: name.removeprefix(PREFIX) for kind, name in missing}
    python = ", ".join(f'"{kind}": {name}' for kind, name in names.items())
    options = [
        f"--parts FILE.py:{name}" if kind in BASES else f"--parts {kind}=FILE.py:{name}"
        for kind, name in names.items()
    ]
    others = [name.removeprefix(PREFIX) for kind, name in given if kind in names]
    instead = f", not {', '.join(others)}" if others else ""
    verb = "is your own" if len(missing) == 1 else "are your own"
    raise UserError(
        f"{', '.join(kinds)} {verb}: pass parts={{{python}}}{instead}, or on the command line "
        f"{' '.join(options)}"
    )
