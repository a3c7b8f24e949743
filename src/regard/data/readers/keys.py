"""Rows whose texts have keys, of JSON or Parquet: which keys, and the two texts of a row."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from regard.data.items import TEXT
from regard.data.readers.reader import Layout, Skip
from regard.errors import UserError

MOST_NAMES = 8  # that a message lists
MOST_DEPTH = 10  # of objects in objects, whose keys are looked for


class Number(str):
    """A number, as it was written."""


class Repeated(dict[str, Any]):
    """An object that has a key twice, so that nobody knows which value is meant."""


class Keys:
    """Finds the two texts of an item by their keys; "translation.en" is a key inside another."""

    def __init__(self, layout: Layout) -> None:
        self.source = layout.source or "source"
        self.target = layout.target or "target"
        self.positions = layout.positions
        self.features = layout.features
        self.has_target = True
        self._named = layout.source is not None or layout.target is not None
        self._is_source_open = layout.source is None
        self._needs_target = layout.documents == "no"

    def check(self, where: str, item: Mapping[str, Any]) -> None:
        """Refuse keys that the first item lacks: they are the caller's mistake."""
        if self.positions is not None and not _has(item, self.positions):
            raise UserError(
                f"{where}: no {shortened(self.positions)!r} (data.positions); it has "
                f"{listed([*_names(item)])}"
            )
        if self.features is not None and not _has(item, self.features):
            raise UserError(
                f"{where}: no {shortened(self.features)!r} (data.features); it has "
                f"{listed([*_names(item)])}"
            )
        if self.features in (self.source, self.target):
            raise UserError(f"{where}: data.features is the key of the source or of the target")
        if not self._needs_target:
            self._find_text(item)
        missing = {
            f"data.{side}": shortened(key)
            for side, key in (("source", self.source), ("target", self.target))
            if not _has(item, key) and (side == "source" or self.has_target)
        }
        if not missing:
            return
        names = [*_names(item)]
        texts = [name for name in names if _is_text_or_texts(_get(item, name))]
        used = (self.source, self.target, self.positions, self.features)
        unused = [name for name in texts if name not in used]
        advice = f"set {' and '.join(missing)}"
        if len(unused) == len(missing) and "".join(unused).isprintable():
            words = [f"{name}={shortened(key)}" for name, key in zip(missing, unused)]
            advice = f"try {' '.join(words)}"
        raise UserError(
            f"{where}: no {' and '.join(map(repr, missing.values()))}; it has {listed(names)} "
            f"({advice})"
        )

    def _find_text(self, item: Mapping[str, Any]) -> None:
        """For a language model the source is enough, which may be called text, or be alone."""
        names = [*_names(item)]
        if self._is_source_open and not _has(item, self.source):
            self.source = names[0] if len(names) == 1 else TEXT
        self.has_target = _has(item, self.target)

    def unused(self, file: str, item: Mapping[str, Any]) -> list[str]:
        """A line that names the keys which are not read, if there are any."""
        used = (self.source, self.target, self.positions, self.features)
        names = [name for name in _names(item) if name not in used]
        if not names:
            return []
        more = ", …" if len(names) > 5 else ""
        return [f"{file}: not used: {', '.join(map(shortened, names[:5]))}{more}"]

    def texts(self, item: Any) -> list[str]:
        """The texts of an object: source first, then one target or several."""
        if isinstance(item, list) and len(item) >= 2 and not self._named:
            item = {self.source: item[0], self.target: item[1]}  # ["a source", "its target"]
        if not isinstance(item, dict):
            raise Skip("bad JSON")
        if isinstance(item, Repeated):
            raise Skip("a key occurs twice")

        targets = _get(item, self.target) if self.has_target else []
        if not isinstance(targets, list):
            targets = [targets]
        texts = ["" if text is None else text for text in (_get(item, self.source), *targets)]
        if not all(isinstance(text, str) for text in texts):
            raise Skip("not two texts")
        _check_characters("".join(texts))
        return texts

    def positions_of(self, item: Any) -> Any:
        """What an object says about where the words of its source stand."""
        assert self.positions is not None
        return _get(item, self.positions) if isinstance(item, Mapping) else None

    def features_of(self, item: Any) -> Any:
        """The tags of an object's source."""
        assert self.features is not None
        return _get(item, self.features) if isinstance(item, Mapping) else None


def _check_characters(text: str) -> None:
    """Refuse bytes that were not UTF-8, and half a character, which JSON can spell: "\\ud800"."""
    try:
        text.encode()
    except UnicodeEncodeError:
        with suppress(UnicodeEncodeError):
            text.encode("utf-8", "surrogateescape").decode()
        raise Skip("half a character (a lone surrogate)") from None


def _is_text(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not isinstance(value, Number))


def _is_text_or_texts(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(map(_is_text, value))
    return _is_text(value)


def _get(item: Mapping[str, Any], key: str) -> Any:
    """The value of a key; of "a.b" that of b in a, if there is no such key itself."""
    if key in item or "." not in key:
        return item.get(key)
    value: Any = item
    for step in key.split("."):
        if not isinstance(value, Mapping):
            return None
        if isinstance(value, Repeated):
            raise Skip("a key occurs twice")
        value = value.get(step)
    return value


def _has(item: Mapping[str, Any], key: str) -> bool:
    if key in item:
        return True
    value: Any = item
    for step in key.split("."):
        if not isinstance(value, Mapping) or step not in value:
            return False
        value = value[step]
    return True


def _names(item: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[str]:
    """The keys of an item, those of objects inside it too."""
    for name, value in item.items():
        if isinstance(value, Mapping) and value and depth < MOST_DEPTH:
            yield from _names(value, f"{prefix}{name}.", depth + 1)
        else:
            yield f"{prefix}{name}"


def listed(names: list[str]) -> str:
    """Names for a message, however many and long there are."""
    if not names:
        return "nothing"
    more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
    return ", ".join(repr(shortened(name)) for name in names[:MOST_NAMES]) + more


def shortened(name: str) -> str:
    """A name for a message."""
    return name if len(name) <= 30 else f"{name[:29]}…"
