"""Data made to order: every task is a seeded generator of pairs, endless and the same on every machine."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from ...errors import UserError
from . import arithmetic, dates, listops, toys


@dataclass(frozen=True)
class Task:
    """A generator and its defaults; call `pairs`, which reads options as they come from a command line."""

    name: str
    summary: str
    generate: Callable[..., Iterator[tuple[str, str]]]
    tokenizer: str  # the kind that suits it
    options: Mapping[str, int | bool] = field(default_factory=dict)
    train: int = 10_000
    dev: int = 1_000
    test: int = 1_000
    seed: int = 123_456
    splits: tuple[str, ...] = ("train", "dev", "test")

    def pairs(
        self,
        count: int,
        seed: int | None = None,
        *,
        split: str = "train",
        options: Mapping[str, str | int] | None = None,
    ) -> Iterator[tuple[str, str]]:
        """The first `count` pairs of a split; fewer asked for is a prefix of more."""
        if split not in self.splits:
            raise UserError(f"{self.name} has no split {split!r}; it has {', '.join(self.splits)}")
        if count < 0:
            raise UserError(f"{self.name}: cannot make {count} pairs")
        chosen = {name: self._value(name, value) for name, value in (options or {}).items()}
        return self.generate(count, self.seed if seed is None else seed, split=split, **{**self.options, **chosen})

    def _value(self, name: str, value: str | int) -> int | bool:
        if name not in self.options:
            raise UserError(f"{self.name} has no option {name!r}{nearest(name, self.options)}")
        if isinstance(self.options[name], bool):
            known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
            if (word := str(value).lower()) in known:
                return known[word]
            raise UserError(f"{self.name} {name}={value}: say true or false")
        return whole_number(name, value)


def whole_number(name: str, value: str | int) -> int:
    try:
        return int(value)
    except ValueError:
        raise UserError(f"{name}={value}: not a whole number") from None


def nearest(name: str, names: Mapping[str, object] | list[str]) -> str:
    """The end of an error message: "; did you mean …?", or what there is."""
    close = get_close_matches(name, list(names), 1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; there are {', '.join(names)}" if names else ": it takes none"


def _phrases(count: int, seed: int, *, split: str = "train") -> Iterator[tuple[str, str]]:
    from .phrases import generate  # a grammar to parse, which the other tasks need not wait for

    return generate(count, seed, split=split)


_LETTERS: dict[str, int | bool] = {"length": 10, "symbols": 26, "spaced": True}
_WITH_LONG = ("train", "dev", "test", "long")

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            "arithmetic",
            "sums and differences: -940-819 → -1759",
            arithmetic.generate,
            "characters",
            {"complexity": 3, "signed": True},
            dev=5_000,
            test=5_000,
        ),
        Task("phrases", "English sentences to French: he's calm . → il est calme .", _phrases, "words", train=20_000),
        Task("copy", "letters, the same again: b a c → b a c", toys.copy, "words", _LETTERS, splits=_WITH_LONG),
        Task("reverse", "letters, backwards: b a c → c a b", toys.reverse, "words", _LETTERS, splits=_WITH_LONG),
        Task("sort", "letters, in order: b a c → a b c", toys.sort, "words", _LETTERS, splits=_WITH_LONG),
        Task(
            "dates",
            "dates to ISO: the 3rd of May 2021 → 2021-05-03",
            dates.generate,
            "characters",
            {"first": 1900, "last": 2099},
        ),
        Task(
            "listops",
            "nested lists: [MAX 2 9 [MIN 4 7 ] 0 ] → 9",
            listops.generate,
            "words",
            {"depth": 3, "length": 40},
            splits=_WITH_LONG,
        ),
    )
}
