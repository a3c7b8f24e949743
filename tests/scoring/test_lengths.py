"""Scores by the length of the source."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import UserError
from regard.scoring import exact_match, scores_by_length
from regard.scoring.lengths import Bin, length_bins


@given(st.lists(st.integers(0, 300), min_size=1, max_size=60))
def test_every_length_lies_in_one_bin(lengths: list[int]) -> None:
    bins = length_bins(lengths)
    assert len(bins) <= 9
    for length in lengths:
        highest = [math.inf if one.high is None else one.high for one in bins]
        inside = [one for one, high in zip(bins, highest) if one.low <= length <= high]
        assert len(inside) == 1
    closed = [one for one in bins if one.low > 0 and one.high is not None]
    assert bins[0].low >= 0
    assert len({one.high - one.low for one in closed if one.high is not None}) <= 1
    assert all(a.high is not None and a.high + 1 == b.low for a, b in pairwise(bins))


def test_names_of_bins() -> None:
    assert [str(Bin(4, 4)), str(Bin(1, 10)), str(Bin(11, None))] == ["4", "1–10", "11 or more"]


def test_bins_are_scored_by_themselves() -> None:
    answers = ["a b c d", "x", "a b c d e f g h", "wrong"]
    references = [["a b c d"], ["y", "x"], ["a b c d e f g h"], ["a b c d e"]]
    found = scores_by_length(answers, references, [4, 1, 8, 8], own={"right": exact_match})
    right = {str(one.bin): one.exact_match for one in found if one.sentences}
    assert right == {"1": 1, "4": 1, "8": 0.5}
    by_name = {str(one.bin): one for one in found}
    assert by_name["1"].bleu is None  # it says nothing about one word
    assert by_name["4"].bleu == pytest.approx(100)
    assert by_name["2"].sentences == 0
    assert by_name["2"].chrf is None
    assert by_name["8"].metrics == {"right": 0.5}
    assert by_name["8"].as_dict()["right"] == 0.5


def test_what_json_cannot_write_is_none() -> None:
    (found,) = scores_by_length(["a"], [["a"]], [1], own={"odd": lambda *_: math.nan})
    assert found.as_dict()["odd"] is None
    assert found.as_dict()["high"] == 1


def test_as_many_lengths_as_answers() -> None:
    with pytest.raises(UserError, match="2 lengths for 1 answer: pass as many"):
        scores_by_length(["a"], [["a"]], [1, 2])
    with pytest.raises(UserError, match="no lengths"):
        length_bins([])
