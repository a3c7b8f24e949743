"""Data made to order: every task is a seeded generator of pairs, endless and the same on every
machine.
"""

import random
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import islice

from regard.data.pairs import stable_hash
from regard.data.tasks import phrases, toys
from regard.data.tasks.toys import Pairs
from regard.errors import UserError, nearest

Options = Mapping[str, str | int]  # a task's own, and its counts train, dev and test
_SEEDS = {"train": 0, "dev": 1, "test": 2, "long": 3}  # a split's own, added to the task's


@dataclass(frozen=True)
class Task:
    """A generator and its defaults; call `pairs`, which reads options as they come from a command
    line.
    """

    name: str
    generate: Callable[..., Pairs]  # of a random.Random, the split and the options
    summary: str
    tokenizer: str  # the kind that suits it
    options: Mapping[str, int | bool] = field(default_factory=dict)
    train: int = 10_000
    dev: int = 1_000
    test: int = 1_000
    seed: int = 123_456
    splits: Sequence[str] = ("train", "dev", "test")
    # the side that no two splits share; neither: the generator sees to it; drawn: see Drawn
    apart: str = "source"
    space: Callable[..., int] | None = (
        None  # how many different sources these options allow; for `drawn`
    )

    def pairs(
        self,
        count: int | None,
        seed: int | None = None,
        *,
        split: str = "train",
        options: Options | None = None,
    ) -> Pairs:
        """The first `count` pairs of a split, None: without end; fewer asked for is a prefix of
        more.
        """
        if split not in self.splits:
            raise UserError(f"{self.name} has no split {split!r}; it has {', '.join(self.splits)}")
        rng = random.Random((self.seed if seed is None else seed) + _SEEDS[split])
        drawing = self.generate(rng, split=split, **self.chosen(options))
        if self.apart in ("source", "target"):
            drawing = _held_apart(drawing, split, side=int(self.apart == "target"))
        return islice(drawing, count)

    def chosen(self, options: Options | None) -> dict[str, int | bool]:
        """All options of the generator: those given, as they come from a command line, over the
        defaults.
        """
        values = dict(self.options)
        for name, value in (options or {}).items():
            if name not in self.options:
                raise UserError(f"{self.name} has no option {name!r}{nearest(name, self.options)}")
            is_flag = isinstance(self.options[name], bool)
            values[name] = (
                yes_or_no(f"{self.name} {name}", value) if is_flag else whole_number(name, value)
            )
        return values


def _held_apart(pairs: Pairs, split: str, side: int) -> Pairs:
    """The pairs whose side belongs to this split alone: 8 of 10 hashes to train, 1 each to dev and
    test.
    """
    home, misses = (
        {"train": range(8), "dev": range(8, 9), "test": range(9, 10)}.get(split, range(10)),
        0,
    )
    for pair in pairs:
        if stable_hash(pair[side]) % 10 in home:
            misses = 0
            yield pair
        elif (misses := misses + 1) > 10_000:
            raise UserError(
                f"too few different examples for a {split} split; ask for longer ones or more "
                f"symbols"
            )


def yes_or_no(name: str, value: str | int) -> bool:
    word = str(value).lower()
    if word not in ("true", "yes", "1", "false", "no", "0"):
        raise UserError(f"{name}={value}: say true or false")
    return word in ("true", "yes", "1")


def whole_number(name: str, value: str | int) -> int:
    try:
        number = int(value)
    except (ValueError, TypeError, OverflowError):
        number = -1
    if number < 0 or (isinstance(value, float) and value != number):
        raise UserError(f"{name}={value}: must be a whole number, not below 0")
    return number


_ABOUT = tomllib.loads(files(__name__).joinpath("tasks.toml").read_text(encoding="utf-8"))
_SPACES = {"arithmetic": toys.formulas}
TASKS = {
    name: Task(
        name, getattr(toys, name, phrases.generate), space=_SPACES.get(name), **about
    )  # phrases is no toy
    for name, about in _ABOUT.items()
}
