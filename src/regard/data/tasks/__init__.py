"""Data made to order: every task is a generator of pairs, the same on every machine by its seed."""

import random
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import islice

from regard.bounds import shown
from regard.data.pairs import stable_hash
from regard.data.tasks import contrasts, phrases, toys
from regard.data.tasks.toys import Pairs
from regard.errors import UserError, nearest
from regard.records.contrast import ContrastItem

Options = Mapping[str, str | int]
"""The options of a task's generator, and its counts train, dev and test."""

SEED = 123_456
"""The seed of a task, unless another is given."""
_SEEDS = {"train": 0, "dev": 1, "test": 2, "long": 3}  # added to the seed of the task

COUNTS = 10**9
"""The most pairs that a task draws for a split."""
LARGEST = {"complexity": 1000, "length": 10_000, "depth": 100}
"""The largest values of options that make pairs longer: Python's own numbers have 4,300 digits."""


@dataclass(frozen=True)
class Task:
    """A generator and its defaults.

    Call `pairs`, which reads options as they come from a command line.
    """

    name: str
    generate: Callable[..., Pairs]  # of a random.Random, the split and the options
    summary: str
    tokenizer: str  # the kind that suits it
    options: Mapping[str, int | bool] = field(default_factory=dict)
    train: int = 10_000
    dev: int = 1_000
    test: int = 1_000
    splits: Sequence[str] = ("train", "dev", "test")
    # The side that no two splits share; neither: the generator sees to it; drawn: see Drawn.
    apart: str = "source"
    # For `drawn`: how many different sources these options allow.
    space: Callable[..., int] | None = None
    # Draws contrastive pairs, of a random.Random and the split; None: the task has none.
    contrast: Callable[..., Iterator[ContrastItem]] | None = None

    def pairs(
        self,
        count: int | None,
        seed: int | None = SEED,
        *,
        split: str = "train",
        options: Options | None = None,
    ) -> Pairs:
        """The first `count` pairs of a split, or all without end; fewer are a prefix of more.

        seed: None draws others each time.
        """
        rng = self._rng(seed, split)
        drawing = self.generate(rng, split=split, **self.chosen(options))
        if self.apart in ("source", "target"):
            drawing = _held_apart(drawing, split, side=int(self.apart == "target"))
        return islice(drawing, count)

    def contrasts(
        self, count: int | None, seed: int | None = SEED, *, split: str = "test"
    ) -> Iterator[ContrastItem]:
        """The first `count` contrastive pairs of a split, or all without end.

        They test a model rather than train it, so they are of the test split unless told otherwise.
        """
        rng = self._rng(seed, split)
        if self.contrast is None:
            others = [name for name, task in TASKS.items() if task.contrast]
            raise UserError(f"{self.name} has no contrasts; {', '.join(others)} has")
        return islice(self.contrast(rng, split=split), count)

    def _rng(self, seed: int | None, split: str) -> random.Random:
        """The random numbers of a split."""
        if split not in self.splits:
            raise UserError(f"{self.name} has no split {split!r}; it has {', '.join(self.splits)}")
        return random.Random(None if seed is None else seed + _SEEDS[split])

    def chosen(self, options: Options | None) -> dict[str, int | bool]:
        """All options of the generator: the defaults, replaced by those of a command line."""
        values = dict(self.options)
        for name, value in (options or {}).items():
            if name not in self.options:
                raise UserError(f"{self.name} has no option {name!r}{nearest(name, self.options)}")
            if isinstance(self.options[name], bool):
                values[name] = yes_or_no(f"{self.name} {name}", value)
            else:
                values[name] = whole_number(name, value, LARGEST.get(name, COUNTS))
        return values


def _held_apart(pairs: Pairs, split: str, side: int) -> Pairs:
    """The pairs whose side belongs to this split alone, by its hash.

    Eight of ten hashes belong to train, one to dev and one to test.
    """
    homes = {"train": range(8), "dev": range(8, 9), "test": range(9, 10)}
    home = homes.get(split, range(10))
    misses = 0
    for pair in pairs:
        if stable_hash(pair[side]) % 10 in home:
            misses = 0
            yield pair
            continue
        misses += 1
        if misses > 10_000:
            raise UserError(
                f"too few different examples for a {split} split; use longer ones or more symbols"
            )


def yes_or_no(name: str, value: str | int) -> bool:
    """A flag as people write it."""
    word = shown(value).lower()
    if word not in ("true", "yes", "1", "false", "no", "0"):
        raise UserError(f"{name}={shown(value)}: must be true or false")
    return word in ("true", "yes", "1")


def whole_number(name: str, value: str | int, most: int = COUNTS) -> int:
    """A number from 0 to `most`, as people write it."""
    try:
        number = int(value)
    except (ValueError, TypeError, OverflowError):
        number = -1
    if not 0 <= number <= most or (isinstance(value, float) and value != number):
        raise UserError(f"{name}={shown(value)}: must be a whole number from 0 to {most:,}")
    return number


_ABOUT = tomllib.loads(files(__name__).joinpath("tasks.toml").read_text(encoding="utf-8"))
_GENERATORS: dict[str, Callable[..., Pairs]] = {
    "arithmetic": toys.arithmetic,
    "phrases": phrases.generate,
    "copy": toys.copy,
    "reverse": toys.reverse,
    "sort": toys.sort,
    "dates": toys.dates,
    "listops": toys.listops,
}
_SPACES = {"arithmetic": toys.formulas}
_CONTRASTS = {"phrases": contrasts.generate}
TASKS = {
    name: Task(
        name, _GENERATORS[name], space=_SPACES.get(name), contrast=_CONTRASTS.get(name), **about
    )
    for name, about in _ABOUT.items()
}
