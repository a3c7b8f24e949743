"""Strings to ids and back. Knows no torch."""

from .tokenizer import (
    Bytes,
    Characters,
    Piece,
    Subwords,
    Tokenizer,
    Words,
    from_json,
    load,
    save,
    train_tokenizer,
)
from .vocabulary import BOS, EOS, FIRST, MASK, PAD, SPECIALS, UNK, normalise

__all__ = [
    "BOS",
    "EOS",
    "FIRST",
    "MASK",
    "PAD",
    "SPECIALS",
    "UNK",
    "Bytes",
    "Characters",
    "Piece",
    "Subwords",
    "Tokenizer",
    "Words",
    "from_json",
    "load",
    "normalise",
    "save",
    "train_tokenizer",
]
