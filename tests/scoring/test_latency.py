"""Lagging on examples worked by hand."""

import math

import pytest

from regard.scoring.latency import average_lagging, delays, laal


def test_the_one_who_waits_for_k_words_lags_k_words_behind():
    """Six words to six: 3 − 0, 4 − 1, 5 − 2, 6 − 3, and then the source has been read."""
    assert average_lagging([3, 4, 5, 6, 6, 6], 6, 6) == 3
    assert average_lagging([1, 2, 3, 4, 5, 6], 6, 6) == 1


def test_the_one_who_reads_all_first_lags_the_whole_source_behind():
    assert average_lagging([6] * 6, 6, 6) == 6
    assert laal([6] * 9, 6, 6) == 6


def test_a_shorter_target_may_wait_longer():
    """Two words for four: one target word is worth two source words. (2 − 0 + 4 − 2) / 2."""
    assert average_lagging([2, 4], 4, 2) == 2


def test_writing_too_much_looks_fast_to_al_only():
    """Eight words where four were due. AL: 1, 1, 1, 1. LAAL: 1 − 0, 2 − 1/2, 3 − 1, 4 − 3/2."""
    late = [1, 2, 3, 4, 4, 4, 4, 4]
    assert average_lagging(late, 4, 4) == 1
    assert laal(late, 4, 4) == pytest.approx(1.75)
    assert laal(late[:3], 4, 4) == average_lagging(late[:3], 4, 4)


def test_who_says_nothing_is_not_fast():
    assert average_lagging([], 4, 4) == laal([], 4, 4) == 4


def test_delays_of_words_from_tokens():
    """Source words of 2, 1 and 1 tokens, then <eos>; target words of 1, 2 and 1 tokens: a word is
    there with its last token.
    """
    source, target = [1, 1, 2, 3, 3], [1, 2, 2, 3]
    assert delays(source, target, 1) == [1, 2, 3]
    assert delays(source, target, 2) == [1, 3, 3]
    assert delays(source, target, math.inf) == [3, 3, 3]
