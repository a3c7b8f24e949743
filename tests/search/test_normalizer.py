"""The normaliser by blocks of rows is torch's own, and takes little memory."""

import pytest
import torch

from regard.search import normalizer
from regard.search.normalizer import log_normalizer


@pytest.mark.parametrize("rows", [0, 1, 3, 50])
@pytest.mark.parametrize("vocabulary", [1, 7, 1000])
def test_blocks_are_the_whole_bit_for_bit(rows, vocabulary, monkeypatch):
    monkeypatch.setattr(normalizer, "BLOCK", 4000)  # four rows of the largest vocabulary
    logits = torch.randn(rows, vocabulary) * 10
    logits[:1, : vocabulary // 2] = -torch.inf

    assert torch.equal(log_normalizer(logits), logits.logsumexp(-1, keepdim=True))


def test_nothing_allowed_is_minus_infinity():
    logits = torch.full((2, 5), -torch.inf)
    assert log_normalizer(logits).tolist() == [[-torch.inf], [-torch.inf]]


def test_no_copy_of_all_logits_is_made():
    """The largest tensor that torch makes on the way is one block, not all rows."""
    logits = torch.randn(64, 50_000)
    with torch.profiler.profile(profile_memory=True, acc_events=True) as profile:
        log_normalizer(logits)

    largest = max(event.cpu_memory_usage for event in profile.events())
    assert largest <= 4 * max(normalizer.BLOCK, 50_000) * 2
    assert largest < logits.nbytes / 4
