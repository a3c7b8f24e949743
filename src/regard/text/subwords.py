"""What a file may say about a subword model: nothing but what training writes.

The `tokenizers` library would take more from a file: regular expressions, normalisers and added
tokens, each a way to change every answer or to compute for ever.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any

from regard.text.alphabet import byte_alphabet

TYPES = {"bpe": "BPE", "unigram": "Unigram"}
PARTS = ("truncation", "padding", "added_tokens", "normalizer", "post_processor", "decoder")
"""What the library's models may have besides, and ours do not."""
OPTIONS = (
    *("dropout", "unk_token", "unk_id", "continuing_subword_prefix", "end_of_word_suffix"),
    *("fuse_unk", "byte_fallback", "ignore_merges"),
)
"""What a model of ours leaves off."""


def check_subwords(kind: str, content: Any) -> None:
    """Refuse a model that `train_tokenizer` does not write.

    Raises ValueError, KeyError or TypeError.
    """
    for part in PARTS:
        if content.get(part):
            raise ValueError(f"a {part}")
    split = content["pre_tokenizer"]
    if split["type"] != "ByteLevel" or split["add_prefix_space"]:
        raise ValueError("another pre-tokenizer than bytes")
    if split.get("use_regex", True) is not True:
        raise ValueError("a pre-tokenizer without words")

    model = content["model"]
    if model["type"] != TYPES[kind]:
        raise ValueError(f"not a {kind} model")
    for option in OPTIONS:
        if model.get(option):
            raise ValueError(f"{option} is set")
    if kind == "bpe":
        _check_ids(model["vocab"])
        _check_pieces(model["vocab"])
    else:
        _check_scores(model["vocab"])
        _check_pieces([piece for piece, _ in model["vocab"]])


def _check_ids(vocabulary: Mapping[str, Any]) -> None:
    """Refuse ids other than 0, 1, 2 …"""
    if not all(type(id) is int for id in vocabulary.values()):
        raise ValueError("an id is no whole number")
    if sorted(vocabulary.values()) != [*range(len(vocabulary))]:
        raise ValueError("the ids do not count up from 0")


def _check_scores(vocabulary: list[tuple[str, float]]) -> None:
    """Refuse scores that are no numbers."""
    for _, score in vocabulary:
        if type(score) not in (int, float) or not math.isfinite(score):
            raise ValueError("a score is no number")


def _check_pieces(pieces: Collection[str]) -> None:
    """Refuse pieces that are not spelled in letters of bytes, occur twice, or lack a byte."""
    different = set(pieces)
    if len(different) != len(pieces):
        raise ValueError("a piece occurs twice")
    letters = set(byte_alphabet())
    if not letters <= different or "" in different:
        raise ValueError("not every byte is a piece")
    if not set("".join(different)) <= letters:
        raise ValueError("a piece is not spelled in bytes")
