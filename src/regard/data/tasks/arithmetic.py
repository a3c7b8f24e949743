"""Learning to calculate: formulas such as -940-819 and their values."""

import random
from collections.abc import Iterator


def generate(rng: random.Random, *, split: str, complexity: int, signed: bool) -> Iterator[tuple[str, str]]:
    """Sums of numbers up to 10**complexity; signed: the first may be negative, and differences come too."""
    top = 10**complexity
    while True:
        a = rng.randint(-top if signed else 0, top)
        b = rng.randint(0, top)
        plus = rng.choice([False, True]) if signed else True
        yield (f"{a}+{b}", str(a + b)) if plus else (f"{a}-{b}", str(a - b))
