"""How many sentences fit into memory side by side while they are decoded."""

import sys
from collections.abc import Sequence

import torch

from regard.errors import UserError
from regard.models import Seq2Seq
from regard.nn.devices import free_memory
from regard.search import Job, Search

SHARE = 0.5  # of the free memory; the rest is for answers, and for the estimate to be wrong by
LOGIT = 24  # bytes of a token of the vocabulary, in all copies that a step makes of the logits
CANDIDATE = 40  # bytes of a continuation among which a beam chooses


def sentences_that_fit(
    model: Seq2Seq, search: Search, vocabulary: int, jobs: Sequence[Job], device: torch.device
) -> int:
    """How many of the jobs can be decoded at once.

    Refuses a search that is too wide even for one of them.
    """
    longest = max((job.limit for job in jobs), default=0)
    if not longest:
        return sys.maxsize

    width = search.copies
    step = width * (vocabulary * LOGIT + min(2 * width, vocabulary) * CANDIDATE)
    # A decoder that is not made of ours need not know how much memory it takes.
    decoding_bytes = getattr(model.decoder, "decoding_bytes", None)
    state = decoding_bytes(width, longest) if decoding_bytes else 0
    needed = step + state
    room = int(free_memory(device) * SHARE)
    if needed > room:
        kind = "samples" if search.apart else "beam"
        raise UserError(
            f"{width:,} hypotheses of up to {longest:,} tokens need about {needed / 1e9:,.1f} GB, "
            f"but {device} has {room / 1e9:,.1f} GB to spare: use {_advice(kind)}"
        )
    return room // needed


def _advice(kind: str) -> str:
    if kind == "samples":
        return "fewer samples (--nbest, --risk)"
    return "a narrower beam (--beam, --nbest) or a smaller search.limit_ratio"
