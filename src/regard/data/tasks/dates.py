"""Dates as people write them, to ISO 8601: "the 3rd of May 2021" → "2021-05-03"."""

import random
from collections.abc import Iterator
from datetime import date

from regard.errors import UserError

_MONTHS = (  # not strftime: its names follow the machine's locale
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_FORMS = (
    *("{d} {month} {y}", "{d} {mon} {y}", "the {nth} of {month} {y}", "the {nth} of {month}, {y}"),
    *("{month} {d}, {y}", "{month} {nth}, {y}", "{mon} {d}, {y}", "{d:02}.{m:02}.{y}", "{y}/{m:02}/{d:02}"),
)


def generate(rng: random.Random, *, split: str, first: int, last: int) -> Iterator[tuple[str, str]]:
    """Days of the years first to last, in all these forms."""
    if not 1 <= first <= last <= 9999:
        raise UserError(f"first={first} last={last}: years go from 1 to 9999, the first before the last")
    while True:
        day = date.fromordinal(rng.randint(date(first, 1, 1).toordinal(), date(last, 12, 31).toordinal()))
        month, d = _MONTHS[day.month - 1], day.day
        nth = f"{d}{'th' if 11 <= d <= 13 else {1: 'st', 2: 'nd', 3: 'rd'}.get(d % 10, 'th')}"
        yield rng.choice(_FORMS).format(d=d, nth=nth, m=day.month, month=month, mon=month[:3], y=day.year), day.isoformat()
