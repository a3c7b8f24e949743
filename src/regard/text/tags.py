"""Tags of a source, such as N;DAT;SG: how a cell spells them, and how a source carries them.

A source with tags is one string, its text, a tab and its tags: "kedi\\tN;DAT;SG".
"""

from collections.abc import Sequence

TAB = "\t"
SEPARATORS = (";", "|", ",")
"""What may stand between tags; of those that occur in a cell, the first counts, else spaces."""


def read_tags(cell: str) -> tuple[str, ...]:
    """The tags that a cell spells, in their order: N;DAT;SG, N|DAT|SG, N,DAT,SG or N DAT SG."""
    cell = " ".join(cell.split())
    separator = next((mark for mark in SEPARATORS if mark in cell), " ")
    tags = [tag.strip() for tag in cell.split(separator)]
    return tuple(tag for tag in tags if tag)


def tag_text(tags: Sequence[str]) -> str:
    """Tags as `read_tags` finds them again."""
    text = ";".join(tags)
    is_clear = read_tags(text) == tuple(tags)
    return text if is_clear else f"{text};"  # of one tag that has a space in it


def tagged(text: str, tags: Sequence[str]) -> str:
    """The source that has this text and these tags; without tags it is the text alone.

    A tab inside the text becomes a space.
    """
    text = text.replace(TAB, " ")
    return f"{text}{TAB}{tag_text(tags)}" if tags else text


def split_tags(source: str) -> tuple[str, tuple[str, ...]]:
    """The text and the tags of a source: what stands before its last tab, and what after it."""
    text, tab, cell = source.rpartition(TAB)
    if not tab:
        return source, ()
    return text.replace(TAB, " "), read_tags(cell)
