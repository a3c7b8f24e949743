"""Nested list operations (Nangia and Bowman, 2018): "[MAX 2 9 [MIN 4 7 ] 0 ]" → "9"."""

import random
from collections.abc import Callable, Iterator

from ...errors import UserError
from ..pairs import OFFSETS, held_apart


def _median(values: list[int]) -> int:
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) // 2


_OPERATIONS: dict[str, Callable[[list[int]], int]] = {
    "MAX": max,
    "MIN": min,
    "MED": _median,
    "SM": lambda values: sum(values) % 10,
}


def generate(count: int, seed: int, *, split: str = "train", depth: int = 3, length: int = 40) -> Iterator[tuple[str, str]]:
    """Lists nested up to `depth`, of up to `length` tokens; the split "long" has from length + 1 to twice as many."""
    if depth < 1 or length < 4:
        raise UserError(f"depth={depth} length={length}: depth begins at 1 and length at 4")
    rng = random.Random(seed + OFFSETS[split])
    shortest, longest = (length + 1, 2 * length) if split == "long" else (4, length)

    def draw() -> tuple[str, str]:
        while True:  # a list can come out shorter than its budget, so a long one may need another try
            tokens, value = _grow(rng, rng.randint(shortest, longest), depth)
            if len(tokens) >= shortest:
                return " ".join(tokens), str(value)

    return held_apart(draw, count, split, key=lambda pair: pair[0])


def _grow(rng: random.Random, budget: int, depth: int) -> tuple[list[str], int]:
    """A list of at most `budget` tokens, or a digit, with its value."""
    if depth == 0 or budget < 4:
        digit = rng.randrange(10)
        return [str(digit)], digit
    inner = budget - 2  # the operation and the closing bracket
    if depth == 1:
        shares = [1] * inner
    else:
        cuts = sorted(rng.sample(range(1, inner), rng.randint(1, min(4, inner - 1))))
        shares = [end - start for start, end in zip([0, *cuts], [*cuts, inner])]
    parts = [_grow(rng, share, depth - 1) for share in shares]
    name = rng.choice(tuple(_OPERATIONS))
    tokens = [f"[{name}", *(token for part, _ in parts for token in part), "]"]
    return tokens, _OPERATIONS[name]([value for _, value in parts])
