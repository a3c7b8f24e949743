"""Nested list operations (Nangia and Bowman, 2018): "[MAX 2 9 [MIN 4 7 ] 0 ]" → "9"."""

import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from statistics import median

from regard.errors import UserError

_OPERATIONS: dict[str, Callable[[list[int]], int]] = {
    "MAX": max,
    "MIN": min,
    "MED": lambda values: int(median(values)),
    "SM": lambda values: sum(values) % 10,
}


def generate(rng: random.Random, *, split: str, depth: int, length: int) -> Iterator[tuple[str, str]]:
    """Lists nested up to `depth`, of up to `length` tokens; the split "long" has from length + 1 to twice as many."""
    if depth < 1 or length < 4:
        raise UserError(f"depth={depth} length={length}: depth begins at 1 and length at 4")
    shortest, longest = (length + 1, 2 * length) if split == "long" else (4, length)
    while True:
        tokens, value = _grow(rng, rng.randint(shortest, longest), depth)
        if len(tokens) >= shortest:  # a list can come out shorter than its budget
            yield " ".join(tokens), str(value)


def _grow(rng: random.Random, budget: int, depth: int) -> tuple[list[str], int]:
    """A list of at most `budget` tokens, or a digit, with its value."""
    if depth == 0 or budget < 4:
        digit = rng.randrange(10)
        return [str(digit)], digit
    inner = budget - 2  # the operation and the closing bracket
    count = inner - 1 if depth == 1 else rng.randint(1, min(4, inner - 1))
    cuts = [0, *sorted(rng.sample(range(1, inner), count)), inner]
    parts = [_grow(rng, end - start, depth - 1) for start, end in pairwise(cuts)]
    name = rng.choice(tuple(_OPERATIONS))
    tokens = [f"[{name}", *(token for part, _ in parts for token in part), "]"]
    return tokens, _OPERATIONS[name]([value for _, value in parts])
