"""Signs that pairs were read from the wrong columns, or are not clean text."""

import re
from collections.abc import Iterable, Sequence

from regard.data.pairs import Pair

FEWEST = 20  # pairs; fewer say little
LOOKED_AT = 1000  # pairs that are enough to tell

_TAG = re.compile(r"</?(div|br|p|b|i|span|a|img|li|td)\b[^>]*>|&(nbsp|amp|quot|lt|gt|#\d+);", re.I)
_TWICE_ENCODED = re.compile("Ã[\u0080-\u00bf©¨ª§¼¶¤±³¡]|â€[™œ\u009d“”˜¦]")  # UTF-8 read as Latin-1


def find_doubts(pairs: Iterable[Pair]) -> list[str]:
    """What looks wrong with some pairs, a line each, with what to do."""
    sources = []
    targets = []
    for pair in pairs:
        for target in pair.targets:
            sources.append(pair.source)
            targets.append(target)
    if len(sources) < FEWEST:
        return []

    columns = "choose other columns with data.source and data.target"
    doubts = []
    if len(set(targets)) == 1:
        doubts.append(f"every target is {targets[0][:40]!r}: if that is not a text, {columns}")
    if all(source.isdigit() for source in sources):
        doubts.append(
            f"every source is a number, such as {sources[0][:40]!r}: if it is an ID, {columns}"
        )
    equal = [source for source, target in zip(sources, targets, strict=True) if source == target]
    if len(equal) > 0.9 * len(sources):
        doubts.append(f"nearly every target equals its source: if it should not, {columns}")

    if _share(_TAG, [*sources, *targets]) > 0.1:
        doubts.append("many texts contain HTML, which the model will learn: remove it first")
    if _share(_TWICE_ENCODED, [*sources, *targets]) > 0.05:
        doubts.append(
            "many texts contain garbled letters such as 'Ã©': the file was saved in the wrong "
            "encoding; export it again as UTF-8"
        )
    return doubts


def _share(pattern: re.Pattern[str], texts: Sequence[str]) -> float:
    """The share of the texts in which the pattern occurs."""
    return sum(pattern.search(text) is not None for text in texts) / len(texts)
