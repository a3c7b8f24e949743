"""A tokenizer for texts in which `<mask>` says that something is missing."""

from collections.abc import Iterator
from typing import Any

from regard.text.tokenizer import Piece, Tokenizer, Widened
from regard.text.vocabulary import MASK, SPECIALS

BLANK = SPECIALS[MASK]


class WithMasks(Widened):
    """A tokenizer for which `<mask>` in a text is the special token.

    For all others it is text like any other, as it is while a model is trained.
    """

    def __init__(self, base: Tokenizer) -> None:
        super().__init__(base, ())

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for part, _ in self._parts(text):
            ids += [MASK] if part == BLANK else self.base.encode(part)
        return ids

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        rows = self.base.encode_batch(texts)
        return [self.encode(text) if BLANK in text else ids for text, ids in zip(texts, rows)]

    def pieces(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        for part, start in self._parts(text):
            if part == BLANK:
                pieces.append(Piece(MASK, BLANK, start, start + len(BLANK)))
                continue
            pieces += [
                piece._replace(start=start + piece.start, end=start + piece.end)
                for piece in self.base.pieces(part)
            ]
        return pieces

    def _parts(self, text: str) -> Iterator[tuple[str, int]]:
        """The normalised text cut before and after each mask; each part with where it begins.

        A space before a mask belongs to the token that is missing.
        """
        has_spaces = self.kind not in ("characters", "bytes")
        *before_masks, last = self.normalise(text).split(BLANK) if BLANK in text else [text]
        start = 0
        for part in before_masks:
            yield part.rstrip(" ") if has_spaces else part, start
            start += len(part)
            yield BLANK, start
            start += len(BLANK)
        yield last, start

    def to_json(self) -> dict[str, Any]:
        return self.base.to_json()
