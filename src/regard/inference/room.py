"""How many sentences fit into memory side by side while they are decoded."""

from collections.abc import Callable, Sequence

import torch

from regard.errors import UserError
from regard.models import Seq2Seq
from regard.nn.devices import free_memory
from regard.search import Job, Search

SHARE = 0.5  # of the free memory; the rest is for answers, and for the estimate to be wrong by
ON_CPU = 2**26
"""The most bytes on a CPU, where more sentences side by side are not decoded faster …"""
AT_LEAST = 32
"""… unless they are fewer than these."""
LOGIT = 24  # bytes of a token of the vocabulary, in all copies that a step makes of the logits
CANDIDATE = 40  # bytes of a continuation among which a beam chooses


def sentences_that_fit(
    model: Seq2Seq, search: Search, vocabulary: int, jobs: Sequence[Job], device: torch.device
) -> Callable[[int], int]:
    """How many sentences can be decoded at once, by the limit of the longest answer among them.

    Refuses a search that is too wide even for one of the jobs.
    """
    width = search.copies
    step = width * (vocabulary * LOGIT + min(2 * width, vocabulary) * CANDIDATE)
    # A model of the user's own need not have a decoder, nor know how much memory it takes.
    decoder = getattr(model, "decoder", None)
    decoding_bytes = getattr(decoder, "decoding_bytes", None)

    def needed(limit: int) -> int:
        """Bytes of one sentence whose answer has so many tokens."""
        return step + (decoding_bytes(width, limit) if decoding_bytes else 0)

    free = int(free_memory(device) * SHARE)
    longest = max((job.limit for job in jobs), default=0)
    if jobs and needed(longest) > free:
        kind = "samples" if search.apart else "beam"
        raise UserError(
            f"{width:,} hypotheses of up to {longest:,} tokens need about "
            f"{needed(longest) / 1e9:,.1f} GB, but {device} has {free / 1e9:,.1f} GB to spare: use "
            f"{_advice(kind)}"
        )

    def most(limit: int) -> int:
        one = needed(limit)
        if device.type != "cpu":
            return free // one
        return min(free // one, max(AT_LEAST, ON_CPU // one))

    return most


def _advice(kind: str) -> str:
    if kind == "samples":
        return "fewer samples (--nbest, --risk)"
    return "a narrower beam (--beam, --nbest) or a smaller search.limit_ratio"
