"""The laws of every search, over tables of random logits."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import UserError
from regard.search import (
    Beam,
    Constraints,
    Greedy,
    Hypothesis,
    Job,
    Lexical,
    Phrase,
    Rules,
    Sample,
    Traced,
    Words,
    beam,
    decode,
    greedy,
    sample,
)
from regard.search.sample import draw
from regard.text.vocabulary import BOS, EOS, PAD, UNK

SEEDS = st.integers(0, 10_000)
LEVELS = st.sampled_from([0, 0, 1, 3])
PENALTIES = st.sampled_from([0.0, 0.6, 1.0, 2.0])
quick = settings(max_examples=40, deadline=None)


def every_search(names: list[int], **more: Any) -> list[tuple[Any, dict[str, Any]]]:
    """Each search with settings that give every sentence its own seed."""
    seeds = [100 + name for name in names]
    return [
        (greedy, more),
        (beam, {"width": 3, "n_best": 3, **more}),
        (sample, {"seeds": seeds, "n": 2, "top_p": 0.9, "temperature": 1.5, **more}),
    ]


def flat(result: list[Any]) -> list[Hypothesis]:
    return [one for item in result for one in (item if isinstance(item, list) else [item])]


def close(one: Hypothesis, other: Hypothesis) -> bool:
    return (
        one.tokens == other.tokens
        and one.finished == other.finished
        and math.isclose(one.score, other.score, rel_tol=1e-9)
    )


# ---- beam ----


@quick
@given(SEEDS, LEVELS, st.integers(0, 3), st.integers(0, 2), PENALTIES)
def test_beam_of_one_is_greedy(table, seed, levels, minimum, no_repeat, length_penalty):
    rules = {
        "limit": [5, 1, 9, 7],
        "minimum": minimum,
        "constraints": Constraints(no_repeat=no_repeat),
    }
    rules["length_penalty"] = length_penalty
    model = table.random(seed, levels=levels)
    wide = model.run(beam, width=1, **rules)
    for [one], other in zip(wide, model.run(greedy, **rules), strict=True):
        assert (one.tokens, one.finished) == (other.tokens, other.finished)
        assert one.logprobs == pytest.approx(other.logprobs, rel=1e-9)


@quick
@given(SEEDS, PENALTIES)
def test_a_score_is_the_sum_over_the_length_to_the_penalty(table, seed, length_penalty):
    """In every search alike, and exactly: it is computed from the log-probabilities that are given
    with it.
    """
    model = table.random(seed)
    for search, more in every_search(
        [0, 1, 2, 3], limit=[5, 1, 9, 7], length_penalty=length_penalty
    ):
        for one in flat(model.run(search, **more)):
            assert one.score == math.fsum(one.logprobs) / len(one.logprobs) ** length_penalty


def enumerate_all(
    model, sentence: int, limit: int, alpha: float, tokens=(), logprobs=()
) -> list[Hypothesis]:
    """Every sequence that ends within `limit` steps or is cut there."""
    if (tokens and tokens[-1] == EOS) or len(tokens) == limit:
        finished = tokens[-1] == EOS
        score = sum(logprobs) / len(tokens) ** alpha
        return [
            Hypothesis(list(tokens[:-1] if finished else tokens), score, list(logprobs), finished)
        ]
    following = model.logprobs(sentence, list(tokens))
    return [
        found
        for token, logprob in enumerate(following)
        if logprob > -math.inf
        for found in enumerate_all(
            model, sentence, limit, alpha, (*tokens, token), (*logprobs, logprob)
        )
    ]


@settings(max_examples=15, deadline=None)
@given(SEEDS, st.integers(6, 7), st.integers(1, 3), st.sampled_from([0.6, 1.0, 2.0]))
def test_a_wide_enough_beam_is_exhaustive(table, seed, vocabulary, limit, alpha):
    """Wide enough: no candidate is ever dropped, and the search never stops early.

    With c choices a step there are at most c**limit candidates, so a width of that many holds each
    of them; patience 2 asks for twice as many finished hypotheses as there can be sequences.
    """
    model = table.random(seed, sentences=2, vocabulary=vocabulary)
    width = (vocabulary - 2) ** limit  # <pad> and <bos> are no choice
    found = model.run(
        beam, width=width, n_best=width, patience=2.0, length_penalty=alpha, limit=[limit] * 2
    )
    for sentence, mine in enumerate(found):
        truth = sorted(enumerate_all(model, sentence, limit, alpha), key=lambda one: -one.score)
        assert len(mine) == len(truth)
        assert mine[0].score == pytest.approx(truth[0].score, rel=1e-9)
        by_tokens = {(tuple(one.tokens), one.finished): one for one in truth}
        assert all(close(one, by_tokens[tuple(one.tokens), one.finished]) for one in mine)


def slow_beam(
    model,
    sentence: int,
    limit: int,
    K: int,
    n_best: int,
    alpha: float,
    patience: float,
    minimum: int,
):
    """CTranslate2's walk over the ranks, one sentence at a time, in plain Python."""
    live, done, top = [((), (), 0.0)], [], False
    for t in range(limit):
        banned = (PAD, BOS, EOS) if t < minimum else (PAD, BOS)
        found = [
            ((*tokens, token), (*logprobs, logprob), total + logprob)
            for tokens, logprobs, total in live
            for token, logprob in enumerate(model.logprobs(sentence, list(tokens), banned))
            if logprob > -math.inf
        ]
        found = sorted(found, key=lambda one: -one[2])[: 2 * K]
        spare, live = [one for one in found[K:] if one[0][-1] != EOS], []
        for rank, one in enumerate(found[:K]):
            if one[0][-1] == EOS or t == limit - 1:
                top |= rank == 0
                done.append((one[2] / len(one[0]) ** alpha, one[0]))
                live += [spare.pop(0)] if spare else []
            else:
                live.append(one)
        if (
            (top and len(done) >= n_best)
            if alpha == 0
            else len(done) >= math.floor(K * patience + 0.5)
        ):
            break
    return t + 1, sorted(done, key=lambda one: -one[0])[:n_best]


@quick
@given(
    SEEDS,
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.6, 1.0]),
    st.sampled_from([1.0, 1.5]),
    st.integers(0, 2),
)
def test_beam_equals_the_walk_of_ctranslate2(table, seed, width, n_best, alpha, patience, minimum):
    model, limit, n_best = table.random(seed, vocabulary=9), [6, 3, 8, 1], min(n_best, width)
    options = {"n_best": n_best, "patience": patience, "minimum": minimum}
    found = model.run(beam, limit=limit, width=width, length_penalty=alpha, **options)
    for sentence, mine in enumerate(found):
        steps, truth = slow_beam(model, sentence, limit[sentence], width, alpha=alpha, **options)
        assert steps == sum(sentence in rows for rows in model.fed)
        assert [one.tokens for one in mine] == [
            [x for x in tokens if x != EOS] for _, tokens in truth
        ]
        assert [one.finished for one in mine] == [tokens[-1] == EOS for _, tokens in truth]
        assert [one.score for one in mine] == pytest.approx([score for score, _ in truth], rel=1e-9)


@quick
@given(SEEDS, LEVELS, st.integers(1, 6), st.integers(4, 8))
def test_n_best_is_sorted_distinct_and_real(table, seed, levels, width, vocabulary):
    """Also where the vocabulary is smaller than two beams."""
    for found in table.random(seed, vocabulary=vocabulary, levels=levels).run(
        beam, width=width, n_best=width, limit=[4, 6, 1, 8]
    ):
        scores = [one.score for one in found]
        assert 1 <= len(found) <= width
        assert scores == sorted(scores, reverse=True)
        assert all(math.isfinite(score) for score in scores)
        assert len({(tuple(one.tokens), one.finished) for one in found}) == len(found)


def test_ties_go_to_the_lower_id(table):
    """All logits equal: more ties than candidates, and topk alone would choose any of them."""
    model = table(torch.zeros(2, 97, 500))
    tokens = model.run(beam, width=3, n_best=3, limit=[2, 2], minimum=2)
    assert [[one.tokens for one in found] for found in tokens] == [[[3, 3], [3, 4], [3, 5]]] * 2
    assert model.run(greedy, limit=[2, 2], minimum=2)[0].tokens == [3, 3]


@quick
@given(SEEDS)
def test_equal_logits_rank_by_id(table, seed):
    """The first step of a wide beam at its limit lists ids: by logit, then by id."""
    model = table.random(seed, sentences=1, vocabulary=40, levels=2)
    [found] = model.run(beam, width=9, n_best=9, limit=[1], minimum=1)
    following = model.logprobs(0, [], (PAD, BOS, EOS))
    best = sorted(range(40), key=lambda token: (-following[token], token))[:9]
    assert [one.tokens for one in found] == [[token] for token in best]


# ---- every search ----


@quick
@given(SEEDS, LEVELS, st.permutations(range(4)), st.integers(1, 4))
def test_a_sentence_does_not_see_its_batch(table, seed, levels, names, size):
    model, limit = table.random(seed, levels=levels), [3, 9, 6, 12]
    names = names[:size]
    prefix = [[], [5], [4, 4], []]

    def rules(some):
        return {
            "limit": [limit[name] for name in some],
            "constraints": Constraints([prefix[name] for name in some], 3),
        }

    for number, (search, more) in enumerate(every_search(names, **rules(names))):
        together = model.run(search, names, **more)
        for name, found in zip(names, together, strict=True):
            alone_search, alone = every_search([name], **rules([name]))[number]
            assert model.run(alone_search, [name], **alone) == [found]


@quick
@given(SEEDS, st.lists(st.integers(1, 12), min_size=4, max_size=4))
def test_limits_and_logprobs(table, seed, limit):
    model = table.random(seed)
    for search, more in every_search([0, 1, 2, 3], limit=torch.tensor(limit)):
        for sentence, found in enumerate(model.run(search, **more)):
            for one in flat([found]):
                assert len(one.logprobs) == len(one.tokens) + one.finished <= limit[sentence]
                assert one.finished or len(one.tokens) == limit[sentence]
                steps = [*one.tokens, EOS][: len(one.logprobs)]
                truth = [
                    model.logprobs(sentence, one.tokens[:t])[token] for t, token in enumerate(steps)
                ]
                assert one.logprobs == pytest.approx(truth, rel=1e-9)
                assert one.score == pytest.approx(sum(truth) / len(truth), rel=1e-9)


@quick
@given(SEEDS, st.integers(0, 6))
def test_minimum_and_what_is_never_produced(table, seed, minimum):
    suppress = torch.zeros(9, dtype=torch.bool)
    suppress[[UNK, 5]] = True
    model = table.random(seed, vocabulary=9)
    for search, more in every_search(
        [0, 1, 2, 3], limit=[8] * 4, minimum=minimum, suppress=suppress
    ):
        for one in flat(model.run(search, **more)):
            assert len(one.tokens) >= minimum
            assert not {PAD, BOS, EOS, UNK, 5} & set(one.tokens)


@quick
@given(SEEDS)
def test_finished_sentences_are_not_stepped_again(table, seed):
    model = table.random(seed)
    for search, more in every_search([0, 1, 2, 3], limit=[2, 9, 5, 9]):
        model.fed.clear()
        found = model.run(search, **more)
        for sentence in range(4):
            steps = sum(sentence in rows for rows in model.fed)
            longest = max(len(one.logprobs) for one in flat([found[sentence]]))
            # the last step of a beam may end a hypothesis that is not among the best
            assert steps == longest or (
                search is beam and longest < steps <= [2, 9, 5, 9][sentence]
            )
        assert len(model.fed) == max(
            sum(sentence in rows for rows in model.fed) for sentence in range(4)
        )
        rows = {greedy: 1, beam: 3, sample: 2}[search]
        assert all(step.count(sentence) <= rows for step in model.fed for sentence in range(4))


# ---- sampling ----


def test_samples_follow_the_distribution(table):
    """The first token of 4,000 seeds against the model's probabilities, within five standard
    deviations.
    """
    model, count = table.random(3, sentences=1), 4000
    found = model.run(sample, [0] * count, limit=[1] * count, seeds=range(count))
    ids = torch.tensor([(one.tokens or [EOS])[0] for [one] in found])
    truth = torch.tensor(model.logprobs(0, [])).exp()
    seen = ids.bincount(minlength=7) / count
    assert ((seen - truth).abs() <= 5 * (truth * (1 - truth) / count).sqrt()).all()


@quick
@given(SEEDS, st.integers(1, 4), st.floats(0.05, 0.99), LEVELS)
def test_top_k_and_top_p(table, seed, top_k, top_p, levels):
    model, count = table.random(seed, sentences=1, levels=levels), 60
    order = sorted(enumerate(model.logprobs(0, [])), key=lambda one: -one[1])
    nucleus, mass = set(), 0.0
    for token, logprob in order:
        if mass < top_p + 1e-9:  # the last one may go either way by rounding
            nucleus.add(token)
        mass += math.exp(logprob)
    allowed = {"top_k": {token for token, _ in order[:top_k]}, "top_p": nucleus}
    for name, value in (("top_k", top_k), ("top_p", top_p)):
        found = model.run(
            sample, [0] * count, limit=[1] * count, seeds=range(count), **{name: value}
        )
        assert {(one.tokens or [EOS])[0] for [one] in found} <= allowed[name]
    likeliest = model.run(greedy, limit=[9])
    assert model.run(sample, limit=[9], seeds=[seed], top_k=1) == [likeliest]
    assert [one.tokens for one in flat(model.run(sample, limit=[9], seeds=[seed], top_p=1e-9))] == [
        likeliest[0].tokens
    ]


def test_the_ends_of_the_dice():
    """An id of probability 0 is never drawn: neither by the lowest number, nor by the highest."""
    logits = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf]] * 2)
    assert draw(logits, torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)).tolist() == [1, 2]


def test_samples_of_one_sentence_differ_and_come_again(table):
    model = table.random(0)
    settings = {"limit": [9] * 4, "seeds": [1, 2, 3, 4], "n": 8, "temperature": 3.0}
    found = model.run(sample, **settings)
    assert model.run(sample, **settings) == found
    assert all(len({tuple(one.tokens) for one in samples}) > 1 for samples in found)
    assert model.run(sample, **{**settings, "seeds": [5, 6, 7, 8]}) != found


def test_what_a_caller_can_put_right(table):
    model = table.random(0, sentences=1)
    for search, wrong in [
        (greedy, {"limit": [0]}),
        (greedy, {"limit": [3, 3]}),
        (beam, {"limit": [3], "width": 2, "n_best": 3}),
        (beam, {"limit": [3], "width": 0}),
        (sample, {"limit": [3], "seeds": [1], "temperature": 0.0}),
        (sample, {"limit": [3], "seeds": [1], "top_p": 0.0}),
    ]:
        with pytest.raises(UserError):
            model.run(search, **wrong)


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize("share", [slice(None), slice(4, 5)])
def test_broken_logits_are_refused(table, number, share):
    logits = torch.zeros(2, 97, 7)
    logits[1, :, share] = number
    for search, more in every_search([0, 1], limit=[3, 3]):
        with pytest.raises(UserError, match="NaN"):
            table(logits).run(search, **more)


def test_inference_mode_changes_nothing(table):
    model = table.random(5)
    constraints = Constraints([[3], [], [4, 5], []], no_repeat=2, forbid=[6])
    for search, more in every_search(
        [0, 1, 2, 3], limit=[3, 9, 6, 12], minimum=2, constraints=constraints
    ):
        outside = model.run(search, **more)
        with torch.inference_mode():
            assert model.run(search, **more) == outside


def test_an_empty_batch(table):
    for search, more in every_search([], limit=[]):
        assert table.random(0).run(search, [], **more) == []


# ---- waiting and taking a place ----


@quick
@given(
    SEEDS, st.lists(st.integers(1, 9), min_size=6, max_size=6), st.integers(1, 6), st.integers(0, 3)
)
def test_waiting_changes_nothing(table, seed, limits, room, kind):
    """Few stand side by side, the others wait: what is found is what each would find alone."""
    model = table.random(seed, sentences=6)
    search = [Greedy(), Beam(3, 3), Sample(2, 1.5, 0, 0.9), Beam(2, 1, length_penalty=0.0)][kind]

    def found(room):
        jobs = [Job([0], limit, [4] * (i % 2), 100 + i, i) for i, limit in enumerate(limits)]
        most = 0

        def begin(some):
            nonlocal most
            state = model.begin([job.number for job in some])
            most = max(most, len(some))
            return state

        rules = Rules(Constraints(no_repeat=3), minimum=1)
        done = [job.number for job in decode(model.step, begin, jobs, search, rules, room)]
        assert sorted(done) == list(range(6))
        assert most <= (room or 6)
        return [job.found for job in jobs]

    assert found(room) == found(0) == found(1)


def test_what_searches_say_of_themselves():
    """Only a graph that finds the same is captured, and only a plain answer is decoded again."""
    words = Words([Phrase("cat", [5], [4, 5]), Phrase("a", [6], [6])], ["dog"], lambda ids: "")
    lexical = Lexical(3, words=words)
    only_forbids = Lexical(3, words=Words([], ["dog"], lambda ids: ""))
    plain_beam = Beam(3)

    assert Greedy(length_penalty=0.5).as_beam() == Beam(1, length_penalty=0.5)
    assert plain_beam.as_beam() is plain_beam
    for search in (Beam(3, diversity=0.5), Sample(2), lexical, Traced(plain_beam)):
        assert search.as_beam() is None

    assert [search.plain for search in (Greedy(), plain_beam, Beam(3, diversity=0.5))] == [True] * 3
    assert not any(search.plain for search in (Sample(), lexical, Traced(plain_beam)))

    for search in (Greedy(), plain_beam, Sample(), Traced(plain_beam), only_forbids):
        assert search.extra_length == 0
        assert search.retry() is None
    for search in (Greedy(), plain_beam, Sample(), Traced(plain_beam)):
        assert search.unmet("a dog") == []

    assert lexical.extra_length == 3
    assert lexical.unmet("a dog and a dog") == [
        "could not include 'cat' within the length limit",
        "could not avoid 'dog'",
    ]
    assert lexical.retry() == Lexical(3, words=words, early=True)
    assert lexical.retry().retry() is None
