"""The small tasks, each an endless generator of pairs.

They are sums, letters to copy, reverse or sort, dates and nested lists.
"""

from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from itertools import pairwise
from random import Random
from statistics import median
from string import ascii_lowercase

from regard.errors import UserError

Pairs = Iterator[tuple[str, str]]
_MONTHS = (  # not strftime: its names follow the machine's locale
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_FORMS = (
    "{d} {month} {y}",
    "{d} {mon} {y}",
    "the {nth} of {month} {y}",
    "the {nth} of {month}, {y}",
    "{month} {d}, {y}",
    "{month} {nth}, {y}",
    "{mon} {d}, {y}",
    "{d:02}.{m:02}.{y}",
    "{y}/{m:02}/{d:02}",
)
_OPERATIONS: dict[str, Callable[[list[int]], int]] = {
    "MAX": max,
    "MIN": min,
    "MED": lambda values: int(median(values)),
    "SM": lambda values: sum(values) % 10,
}


def arithmetic(rng: Random, *, split: str, complexity: int, signed: bool) -> Pairs:
    """Sums of numbers up to 10**complexity.

    If signed, the first number may be negative, and there are differences too. The split "long" has
    numbers with one digit more than any in training.
    """
    top = 10**complexity
    while True:
        if split == "long":
            first = rng.randint(10 * top, 100 * top - 1)
            second = rng.randint(10 * top, 100 * top - 1)
            if signed and rng.choice([False, True]):
                first = -first
        else:
            first = rng.randint(-top if signed else 0, top)
            second = rng.randint(0, top)
        plus = rng.choice([False, True]) if signed else True
        if plus:
            yield f"{first}+{second}", str(first + second)
        else:
            yield f"{first}-{second}", str(first - second)


def formulas(*, complexity: int, signed: bool) -> int:
    """How many different formulas `arithmetic` can draw."""
    top = 10**complexity
    if signed:
        return (2 * top + 1) * (top + 1) * 2
    return (top + 1) * (top + 1)


def letters(
    answer: Callable[[list[str]], list[str]],
    rng: Random,
    *,
    split: str,
    length: int,
    symbols: int,
    spaced: bool,
) -> Pairs:
    """Up to `length` of the first `symbols` letters, and what `answer` makes of them.

    The split "long" has from length + 1 to twice as many.
    """
    if not 1 <= symbols <= 26 or length < 1:
        raise UserError(
            f"symbols={symbols} length={length}: symbols must be from 1 to 26, length at least 1"
        )
    shortest, longest = 1, length
    if split == "long":
        shortest, longest = length + 1, 2 * length
    joint = " " if spaced else ""
    while True:
        drawn = rng.choices(ascii_lowercase[:symbols], k=rng.randint(shortest, longest))
        yield joint.join(drawn), joint.join(answer(drawn))


copy = partial(letters, list)
sort = partial(letters, sorted)
reverse = partial(letters, lambda drawn: drawn[::-1])


def dates(rng: Random, *, split: str, first: int, last: int) -> Pairs:
    """Days of the years first to last as people write them, in all these forms, to ISO 8601.

    The split "long" has two of them, one after the other.
    """
    if not 1 <= first <= last <= 9999:
        raise UserError(
            f"first={first} last={last}: years must be from 1 to 9999, first no later than last"
        )
    first_day = date(first, 1, 1).toordinal()
    last_day = date(last, 12, 31).toordinal()

    def draw() -> tuple[str, str]:
        day = date.fromordinal(rng.randint(first_day, last_day))
        return _written(day, rng.choice(_FORMS)), day.isoformat()

    while True:
        written, answer = draw()
        if split == "long":
            second_written, second_answer = draw()
            written = f"{written} {second_written}"
            answer = f"{answer} {second_answer}"
        yield written, answer


def _written(day: date, form: str) -> str:
    """A day in one of the forms."""
    month = _MONTHS[day.month - 1]
    return form.format(
        d=day.day,
        nth=_ordinal(day.day),
        m=day.month,
        month=month,
        mon=month[:3],
        y=day.year,
    )


def _ordinal(number: int) -> str:
    """A day of a month in English: 1st, 2nd, 11th."""
    if 11 <= number <= 13:
        return f"{number}th"
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def listops(rng: Random, *, split: str, depth: int, length: int) -> Pairs:
    """Lists nested up to `depth` (Nangia and Bowman, 2018), of up to `length` tokens.

    The split "long" has from length + 1 to twice as many.
    """
    if depth < 1 or length < 4:
        raise UserError(
            f"depth={depth} length={length}: depth must be at least 1, length at least 4"
        )
    shortest, longest = 4, length
    if split == "long":
        shortest, longest = length + 1, 2 * length
    while True:
        tokens, value = _list(rng, rng.randint(shortest, longest), depth)
        if len(tokens) >= shortest:  # a list can come out shorter than its budget
            yield " ".join(tokens), str(value)


def _list(rng: Random, budget: int, depth: int) -> tuple[list[str], int]:
    """A list of at most `budget` tokens, or a digit, with its value."""
    if depth == 0 or budget < 4:
        digit = rng.randrange(10)
        return [str(digit)], digit
    inner = budget - 2  # the operation and the closing bracket
    # The innermost lists have as many digits as there is room for.
    count = inner - 1 if depth == 1 else rng.randint(1, min(4, inner - 1))
    cuts = [0, *sorted(rng.sample(range(1, inner), count)), inner]
    parts = [_list(rng, end - start, depth - 1) for start, end in pairwise(cuts)]

    name = rng.choice(tuple(_OPERATIONS))
    tokens = [f"[{name}"]
    for part, _ in parts:
        tokens += part
    tokens.append("]")
    return tokens, _OPERATIONS[name]([value for _, value in parts])
