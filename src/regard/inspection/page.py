"""An answer -> one HTML page: attention, evidence, the tree of the beam, other answers."""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from regard.inspection.evidence import Reader, correlation, gradient_times_input, occlusion
from regard.pictures.page import attention_page
from regard.records.result import Result
from regard.records.tree import Node

EXPLAINED = 128
"""Tokens of either side, up to which a page holds evidence.

Evidence takes one more reading of the text for each token.
"""


def answer_page(
    reader: Reader, result: Result, tree: Sequence[Node], *, evidence: bool = True
) -> str:
    """The HTML of an answer that was not split. tree: what a beam tries for its source."""
    record = result.attention
    notes = [f"warning: {warning}" for warning in result.warnings]
    matrices: dict[str, npt.NDArray[Any]] = {}
    is_short = max(len(record.source), len(record.target)) <= EXPLAINED
    if evidence and is_short and "cross" in record.blocks:
        matrices["occlusion"] = occlusion(reader, result)
        matrices["gradient"] = gradient_times_input(reader, result)
        notes += correlation(record, matrices["occlusion"]).splitlines()

    shown = list(tree)
    chosen = [node.token for node in shown if node.fate == "chosen"]
    if chosen[: len(result.tokens)] != result.tokens:
        shown = []
        notes.append("Plain beam search gives a different answer, so its tree is not shown.")

    others = [(other.text, other.score) for other in result.alternatives]
    return attention_page(record, tree=shown, alternatives=others, evidence=matrices, notes=notes)
