"""A column beside source and target that nobody asked for: tags, counts or something else."""

import re
from collections import Counter
from collections.abc import Sequence

from regard.text.tags import read_tags

FEWEST = 5  # cells; fewer say little
_PIECE = re.compile(r"\S{1,30}")
_LETTER = re.compile(r"[^\W\d_]")


def extra_column(number: int, cells: Sequence[str], *, is_named: bool = False) -> str | None:
    """What to say of a column that is not read, by its cells; None: it is neither of the two.

    number: of the column, counted from 1. is_named: whether a header says what it is; numbers may
    well be those of the lines then, as they may where they come first.
    """
    filled = [cell.strip() for cell in cells if cell.strip()]
    if len(filled) < FEWEST:
        return None
    if number == 3 and not is_named and all(cell.isdecimal() for cell in filled):
        return f"column {number} looks like counts: ignored"
    if _are_tags(filled):
        example = next(cell for cell in filled if ";" in cell or "|" in cell)
        return (
            f"column {number} looks like tags ({example}): add data.features={number} to use them "
            f"as part of the source"
        )
    return None


def _are_tags(cells: Sequence[str]) -> bool:
    """Whether cells list a few different tags again and again, most of them more than one."""
    listing = [cell for cell in cells if ";" in cell or "|" in cell]
    if 2 * len(listing) < len(cells):
        return False
    counts = Counter(tag for cell in cells for tag in read_tags(cell))
    if not all(_PIECE.fullmatch(tag) for tag in counts):
        return False
    with_letters = [tag for tag in counts if _LETTER.search(tag)]
    return 2 * len(with_letters) >= len(counts) and counts.total() >= 3 * len(counts)
