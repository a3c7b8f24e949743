"""Held-out examples for tasks whose splits are drawn independently and would otherwise overlap."""

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import compress, islice

import numpy as np
import numpy.typing as npt

from regard.data.pairs import Pair
from regard.errors import UserError


class Drawn:
    """The sources that training drew, to hold out others.

    They are sorted 64-bit hashes, 8 bytes a pair, computed when they are first needed. Python's own
    hash serves: it differs between processes, but nothing is stored. With 1,500,000 training and
    5,000 held-out formulas, one is left out by a collision in one of 10**9 runs.
    """

    def __init__(self, name: str, train: Iterable[Pair], space: int) -> None:
        self.name = name
        self.train = train
        self.space = space  # how many different sources there are at all

    @cached_property
    def hashes(self) -> npt.NDArray[np.int64]:
        """The hash of each training source, sorted."""
        hashes = np.fromiter((hash(pair.source) for pair in self.train), np.int64)
        hashes.sort()
        return hashes

    @cached_property
    def left(self) -> int:
        """How many different sources training did not draw."""
        different = 1 + np.count_nonzero(self.hashes[1:] != self.hashes[:-1])
        return max(0, self.space - int(different))

    def count(self, sources: Iterable[str]) -> int:
        """How many of these sources training drew."""
        return int(np.count_nonzero(self._drew(sources)))

    def held_out(
        self, drawing: Iterable[tuple[str, str]], count: int, split: str
    ) -> Iterator[tuple[str, str]]:
        """The first `count` pairs of an endless drawing that training did not draw.

        Repeats among them stay.
        """
        if self.left < count:
            raise UserError(
                f"{self.name}: training uses all but {self.left:,} of the {self.space:,} "
                f"different formulas, but {split} needs {count:,} more: use fewer pairs "
                f"(data.options.train, data.options.{split}), use larger numbers "
                f"(data.options.complexity), or allow overlap (data.options.overlap=true)"
            )
        return islice(self._others(drawing), count)

    def _others(self, drawing: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        stream = iter(drawing)
        while pairs := list(islice(stream, 4_096)):
            drawn = self._drew(source for source, _ in pairs)
            yield from compress(pairs, (~drawn).tolist())

    def _drew(self, sources: Iterable[str]) -> npt.NDArray[np.bool_]:
        """For each source whether training drew it."""
        wanted = np.fromiter(map(hash, sources), np.int64)
        places = np.searchsorted(self.hashes, wanted)
        nearest = self.hashes[np.minimum(places, len(self.hashes) - 1)]
        return nearest == wanted
