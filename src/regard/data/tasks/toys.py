"""Copy, reverse and sort letters: the smallest tasks that need attention to the right place."""

import random
from collections.abc import Callable, Iterator
from string import ascii_lowercase
from typing import Any

from ...errors import UserError
from ..pairs import OFFSETS, held_apart


def copy(count: int, seed: int, *, split: str = "train", **options: Any) -> Iterator[tuple[str, str]]:
    return _letters(list, count, seed, split, **options)


def reverse(count: int, seed: int, *, split: str = "train", **options: Any) -> Iterator[tuple[str, str]]:
    return _letters(lambda letters: letters[::-1], count, seed, split, **options)


def sort(count: int, seed: int, *, split: str = "train", **options: Any) -> Iterator[tuple[str, str]]:
    return _letters(sorted, count, seed, split, **options)


def _letters(
    answer: Callable[[list[str]], list[str]],
    count: int,
    seed: int,
    split: str,
    length: int = 10,
    symbols: int = 26,
    spaced: bool = True,
) -> Iterator[tuple[str, str]]:
    """Up to `length` of the first `symbols` letters; the split "long" has from length + 1 to twice as many."""
    if not 1 <= symbols <= 26 or length < 1:
        raise UserError(f"symbols={symbols} length={length}: symbols goes from 1 to 26 and length begins at 1")
    rng = random.Random(seed + OFFSETS[split])
    shortest, longest = (length + 1, 2 * length) if split == "long" else (1, length)
    joint = " " if spaced else ""

    def draw() -> tuple[str, str]:
        letters = rng.choices(ascii_lowercase[:symbols], k=rng.randint(shortest, longest))
        return joint.join(letters), joint.join(answer(letters))

    return held_apart(draw, count, split, key=lambda pair: pair[0])
