"""Copy, reverse and sort letters: the smallest tasks that need attention to the right place."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from string import ascii_lowercase

from regard.errors import UserError


def letters(
    answer: Callable[[list[str]], list[str]], rng: random.Random, *, split: str, length: int, symbols: int, spaced: bool
) -> Iterator[tuple[str, str]]:
    """Up to `length` of the first `symbols` letters; the split "long" has from length + 1 to twice as many."""
    if not 1 <= symbols <= 26 or length < 1:
        raise UserError(f"symbols={symbols} length={length}: symbols goes from 1 to 26 and length begins at 1")
    shortest, longest = (length + 1, 2 * length) if split == "long" else (1, length)
    joint = " " if spaced else ""
    while True:
        drawn = rng.choices(ascii_lowercase[:symbols], k=rng.randint(shortest, longest))
        yield joint.join(drawn), joint.join(answer(drawn))


copy, sort = partial(letters, list), partial(letters, sorted)
reverse = partial(letters, lambda drawn: drawn[::-1])
