"""Dates as people write them, to ISO 8601: "the 3rd of May 2021" → "2021-05-03"."""

import random
from collections.abc import Iterator
from datetime import date, timedelta

from ...errors import UserError
from ..pairs import OFFSETS, held_apart

# not strftime: its names follow the machine's locale
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_FORMS = (
    "{d} {month} {y}",
    "{d} {mon} {y}",
    "the {nth} of {month} {y}",
    "the {nth} of {month}, {y}",
    "{month} {d}, {y}",
    "{month} {nth}, {y}",
    "{mon} {d}, {y}",
    "{day}, {d} {month} {y}",
    "{day}, {month} {d}, {y}",
    "{day} the {nth} of {month} {y}",
    "{d:02}.{m:02}.{y}",
    "{y}/{m:02}/{d:02}",
)


def _nth(day: int) -> str:
    return f"{day}{'th' if 11 <= day <= 13 else {1: 'st', 2: 'nd', 3: 'rd'}.get(day % 10, 'th')}"


def generate(count: int, seed: int, *, split: str = "train", first: int = 1900, last: int = 2099) -> Iterator[tuple[str, str]]:
    """Days of the years first to last; a day held out for dev or test is held out in all its forms."""
    if not 1 <= first <= last <= 9999:
        raise UserError(f"first={first} last={last}: years go from 1 to 9999, the first before the last")
    rng = random.Random(seed + OFFSETS[split])
    start = date(first, 1, 1)
    days = (date(last, 12, 31) - start).days

    def draw() -> tuple[str, str]:
        day = start + timedelta(days=rng.randint(0, days))
        month = _MONTHS[day.month - 1]
        words = {"day": _DAYS[day.weekday()], "month": month, "mon": month[:3], "nth": _nth(day.day)}
        text = rng.choice(_FORMS).format(d=day.day, m=day.month, y=day.year, **words)
        return text, day.isoformat()

    return held_apart(draw, count, split, key=lambda pair: pair[1])
