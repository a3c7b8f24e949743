"""The axes of charts: from where to where they go, and which ticks they have."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MOST_TICKS = 5
ROOM = 0.06
"""What is free beyond the smallest and the largest value, as a share of what lies between."""
MANY_TIMES = 12.0
"""Costs have a logarithmic scale from here on: the largest as a multiple of the smallest."""
CLOSE = 0.09
"""Ticks nearer than this share of an axis would write over one another on a phone."""
UNITS = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
NO_LIMITS = (-math.inf, math.inf)


@dataclass(frozen=True)
class Axis:
    """One side of a chart."""

    name: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    is_log: bool = False

    def place(self, value: float) -> float:
        """Where a value lies, from 0 to 1; what lies outside is moved to the border."""
        value = min(max(value, self.low), self.high)
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def axis(
    name: str,
    values: Sequence[float],
    *,
    limits: tuple[float, float] = NO_LIMITS,
    log_from: float = math.inf,
) -> Axis:
    """An axis on which all the values have room, without going beyond the limits.

    It is logarithmic where the largest value is `log_from` times the smallest, or more.
    Values that are not finite, such as the loss of a training that failed, have no place on it.
    """
    known = [value for value in values if math.isfinite(value)] or [0.0]
    low = min(max(min(known), limits[0]), limits[1])
    high = max(min(max(known), limits[1]), limits[0])
    if _is_wide(low, high, log_from):
        return _log_axis(f"{name}, log scale", low, high)
    room = ROOM * (high - low)
    if room <= 1e-9 * abs(high):  # all values are the same
        room = 0.05 * abs(high) or 1.0
    low = max(low - room, limits[0])
    high = min(high + room, limits[1])
    return Axis(name, low, high, _ticks(low, high))


def time_axis(
    name: str, seconds: Sequence[float], *, log_from: float = math.inf
) -> tuple[Axis, float]:
    """An axis of time in a unit that suits the longest, and how many seconds the unit has."""
    longest = max(seconds)
    length, unit = next((pair for pair in UNITS if longest >= 2 * pair[0]), UNITS[-1])
    values = [value / length for value in seconds]
    limits = (0.0, math.inf)
    return axis(f"{name}, {unit}", values, limits=limits, log_from=log_from), length


def axis_of_numbers(name: str, numbers: Sequence[float]) -> Axis:
    """An axis whose ticks are these numbers, such as depths or widths."""
    low = min(numbers)
    high = max(numbers)
    is_log = _is_wide(low, high, MANY_TIMES)
    room = (high / low) ** ROOM if is_log else ROOM * (high - low) or 1.0
    bounds = (low / room, high * room) if is_log else (low - room, high + room)
    bare = Axis(name, *bounds, (), is_log)
    ticks: list[tuple[float, str]] = []
    for number in sorted(set(numbers)):
        if not ticks or bare.place(number) - bare.place(ticks[-1][0]) >= CLOSE:
            ticks.append((number, f"{number:,.10g}"))
    return Axis(name, *bounds, ticks, is_log)


def axis_of_names(name: str, labels: Mapping[float, str]) -> Axis:
    """An axis of things at places, such as ranges of lengths."""
    return Axis(name, min(labels) - 0.5, max(labels) + 0.5, list(labels.items()))


def _is_wide(low: float, high: float, times: float) -> bool:
    return low > 0 and times <= high / low < math.inf


def _log_axis(name: str, low: float, high: float) -> Axis:
    factor = (high / low) ** ROOM
    low = low / factor
    high = high * factor
    first = math.floor(math.log10(low))
    last = math.ceil(math.log10(high))
    for steps in ((1, 2, 5), (1, 3), (1,)):
        ticks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= MOST_TICKS:
            break
    ticks = ticks[:: -(-len(ticks) // MOST_TICKS)]
    return Axis(name, low, high, [(tick, _short(tick)) for tick in ticks], is_log=True)


def _ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Round numbers between two bounds, with their labels."""
    smallest = (high - low) / MOST_TICKS
    power = 10.0 ** math.floor(math.log10(smallest))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= smallest)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    unit, letter = _unit(max(abs(low), abs(high)))
    digits = max(0, -math.floor(math.log10(step / unit) + 1e-9))
    ticks = [number * step for number in range(first, last + 1)]
    return [(tick, f"{tick / unit:,.{digits}f}{letter}") for tick in ticks]


def _short(number: float) -> str:
    """A number for a tick: 0.02, 500, 20k, 5M."""
    unit, letter = _unit(number)
    return f"{number / unit:,.10g}{letter}"


def _unit(largest: float) -> tuple[float, str]:
    units = ((1e9, "B"), (1e6, "M"), (1e4, "k"))
    size, letter = next((pair for pair in units if largest >= pair[0]), (1.0, ""))
    return (1e3, letter) if letter == "k" else (size, letter)
