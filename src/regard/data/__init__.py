"""Pairs of texts to batches of ids. `regard.data.batches` is imported by name, because it alone needs torch."""

from .corpus import Corpus, encode
from .pairs import Pair, Skipped
from .readers import read
from .splits import Leaks, Splits, Stream, from_iterable, grouped, leaks, open_data
from .tasks import TASKS, Task

__all__ = [
    "TASKS",
    "Corpus",
    "Leaks",
    "Pair",
    "Skipped",
    "Splits",
    "Stream",
    "Task",
    "encode",
    "from_iterable",
    "grouped",
    "leaks",
    "open_data",
    "read",
]
