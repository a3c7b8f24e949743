"""What a caller demands holds in every search, through reordering and shrinking."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import UserError
from regard.search import Constraints, Hypothesis, beam, greedy, sample
from regard.search.constraints import repeats
from regard.text.vocabulary import BOS, EOS, PAD

SEEDS = st.integers(0, 10_000)
SEARCHES: list[tuple[Any, dict[str, Any]]] = [
    (greedy, {}),
    (beam, {"width": 4, "n_best": 4}),
    (sample, {"seeds": [1, 2, 3, 4], "n": 3}),
]
quick = settings(max_examples=40, deadline=None)


def lists(result: list[Any]) -> list[list[Hypothesis]]:
    return [item if isinstance(item, list) else [item] for item in result]


def holds_no_repeat(tokens: list[int], size: int, end: int) -> bool:
    """The n-gram before `end` does not occur earlier."""
    grams = [tuple(tokens[i : i + size]) for i in range(end - size + 1)]
    return not grams or grams[-1] not in grams[:-1]


@quick
@given(
    SEEDS,
    st.lists(st.lists(st.integers(3, 6), max_size=4), min_size=4, max_size=4),
    st.integers(1, 3),
    st.sets(st.integers(3, 6), max_size=2),
    st.integers(0, 4),
)
def test_constraints_hold(table, seed, prefix, no_repeat, forbid, minimum):
    limit, constraints = [3, 12, 8, 12], Constraints(prefix, no_repeat, sorted(forbid))
    model = table.random(seed)
    for search, more in SEARCHES:
        found = lists(
            model.run(search, limit=limit, constraints=constraints, minimum=minimum, **more)
        )
        for sentence, forced in enumerate(prefix):
            assert found[sentence]
            for one in found[sentence]:
                length = len(forced)
                assert one.tokens[:length] == forced[: limit[sentence]]
                assert one.logprobs[:length] == [0.0] * min(length, limit[sentence])
                assert not forbid & set(one.tokens[length:])
                # the prefix wins over the ban on repetition; what follows it repeats nothing
                assert all(
                    holds_no_repeat(one.tokens, no_repeat, end)
                    for end in range(length + 1, len(one.tokens) + 1)
                )
                assert not one.finished or len(one.tokens) >= minimum


@quick
@given(SEEDS, st.integers(1, 4))
def test_nothing_is_repeated_without_a_prefix(table, seed, size):
    for search, more in SEARCHES:
        constraints = Constraints(no_repeat=size)
        for found in lists(
            table.random(seed).run(
                search, limit=[30] * 4, constraints=constraints, minimum=8, **more
            )
        ):
            assert all(
                holds_no_repeat(one.tokens, size, end)
                for one in found
                for end in range(len(one.tokens) + 1)
            )


@quick
@given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.integers(1, 4))
def test_repeats_are_those_of_the_definition(tokens, size):
    if len(tokens) < size:
        return
    grams = {tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)}
    tail = tuple(tokens[len(tokens) - size + 1 :])
    assert repeats(torch.tensor([tokens]), size, 5)[0].tolist() == [
        (*tail, token) in grams for token in range(5)
    ]


def test_a_dead_end_is_an_unfinished_hypothesis(table):
    """No token twice and no <eos> before the sixth: with four tokens every path ends after at most
    four.
    """
    model = table.random(1)
    for search, more in SEARCHES:
        constraints = Constraints(no_repeat=1)
        for found in lists(
            model.run(search, limit=[9] * 4, minimum=6, constraints=constraints, **more)
        ):
            assert found
            for one in found:
                assert sorted(one.tokens) == [3, 4, 5, 6]
                assert not one.finished
                assert one.score > -100


def test_nothing_may_be_produced_at_all(table):
    for search, more in SEARCHES:
        found = lists(
            table.random(1).run(
                search, limit=[9] * 4, suppress=torch.ones(7, dtype=torch.bool), **more
            )
        )
        assert all(
            one == Hypothesis([], 0.0, [], False) for hypotheses in found for one in hypotheses
        )


def test_fewer_hypotheses_than_beams(table):
    """One token and <eos>: the beam has one live hypothesis, whatever its width."""
    constraints = Constraints(forbid=[3, 5, 6])
    for found in table.random(2).run(
        beam, limit=[4] * 4, width=5, n_best=5, constraints=constraints
    ):
        assert sorted(one.tokens for one in found) == [[4] * length for length in range(5)]


def test_a_forced_prefix_may_be_suppressed_elsewhere(table):
    suppress = torch.zeros(7, dtype=torch.bool)
    suppress[5] = True
    for search, more in SEARCHES:
        constraints = Constraints([[5]] * 4)
        found = lists(
            table.random(4).run(
                search, limit=[6] * 4, suppress=suppress, constraints=constraints, **more
            )
        )
        assert all(
            one.tokens.count(5) == 1 == one.tokens[0] - 4
            for hypotheses in found
            for one in hypotheses
        )


def test_what_a_caller_can_put_right(table):
    for token in (PAD, BOS, EOS):
        with pytest.raises(UserError, match="prefix"):
            Constraints([[token]])
    with pytest.raises(UserError, match="n-gram"):
        Constraints(no_repeat=-1)
    model = table.random(0)
    with pytest.raises(UserError, match="got 1 prefixes"):
        model.run(greedy, limit=[3] * 4, constraints=Constraints([[3]]))
    with pytest.raises(TypeError, match=r"missing .* 'limit'"):
        model.run(beam, width=2, limits=[3] * 4)
