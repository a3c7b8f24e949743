"""Law 5: beam 1 = greedy, cached = uncached, and branches of one state do not disturb each
other.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.models.slots import TransformerState
from regard.nn import KeyValue
from regard.search import Beam, Job, Rules, beam, decode, greedy
from regard.text.vocabulary import BOS, EOS, PAD

few = settings(max_examples=2, deadline=None, derandomize=True)
lengths = st.lists(st.tuples(st.integers(0, 6), st.just(0)), min_size=1, max_size=3)
LIMIT = 7


def start(model, batch):
    return model.decoder.start(model.encoder(batch.source, batch.source_lengths))


def by_recomputing(model, source, lengths):
    """Greedy without any state: the whole prefix is read again for every token."""
    prefix = torch.full((1, 1), BOS)
    for _ in range(LIMIT):
        logits = model(source, lengths, prefix)[:, -1]
        logits[:, [PAD, BOS]] = -torch.inf
        prefix = torch.cat((prefix, logits.argmax(-1, keepdim=True)), dim=1)
        if prefix[0, -1] == EOS:
            break
    return prefix[0, 1:].tolist()


@few
@given(st.integers(0, 10_000), lengths, st.sampled_from([0.0, 0.6, 1.0]))
@torch.no_grad()
def test_cached_is_uncached_and_beam_one_is_greedy(model, batch_of, seed, lengths, penalty):
    batch = batch_of(seed, lengths)
    rules = {"batch": batch.size, "limit": [LIMIT] * batch.size, "length_penalty": penalty}
    found = greedy(model.step, start(model, batch), **rules)
    for row, one in enumerate(found):
        source = batch.source[row : row + 1, : batch.source_lengths[row]]
        again = by_recomputing(model, source, batch.source_lengths[row : row + 1])
        assert one.tokens + [EOS] * one.finished == again
    narrow = beam(model.step, start(model, batch), width=1, **rules)
    for one, [other] in zip(found, narrow, strict=True):
        assert (one.tokens, one.finished) == (other.tokens, other.finished)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-9, rel=1e-9)
        for score, logprobs in ((one.score, one.logprobs), (other.score, other.logprobs)):
            assert score == math.fsum(logprobs) / len(logprobs) ** penalty


@few
@given(st.integers(0, 10_000))
@torch.no_grad()
def test_a_hypothesis_has_the_probability_that_teacher_forcing_gives_it(model, batch_of, seed):
    """Whatever was expanded, reordered and pruned on the way."""
    batch = batch_of(seed, [(5, 0), (1, 0), (3, 0)])
    found = beam(
        model.step, start(model, batch), batch=3, limit=[LIMIT, 3, LIMIT], width=3, n_best=3
    )
    for row, hypotheses in enumerate(found):
        for one in hypotheses:
            produced = one.tokens + [EOS] * one.finished
            given_tokens = torch.tensor([[BOS, *produced[:-1]]])
            source = batch.source[row : row + 1]
            logits = model(source, batch.source_lengths[row : row + 1], given_tokens)[0]
            logits[:, [PAD, BOS]] = -torch.inf
            expected = logits.log_softmax(-1)[range(len(produced)), produced]
            assert one.logprobs == pytest.approx(expected.tolist(), abs=1e-9, rel=1e-9)


@few
@given(st.integers(0, 10_000), st.integers(0, 3))
@torch.no_grad()
def test_branches_do_not_disturb_each_other(model, batch_of, close, seed, steps):
    batch = batch_of(seed, [(5, 5), (2, 5)])
    state = start(model, batch)
    for t in range(steps):
        _, state = model.step(batch.target_in[:, t], state)
    one, other = torch.tensor([7, 8]), torch.tensor([9, 10])

    def walk(first, state):
        logits, state = model.step(first, state)
        return torch.stack((logits, model.step(torch.tensor([11, 12]), state)[0]))

    before = walk(one, state)
    _, left = model.step(one, state)
    _, right = model.step(other, state)
    after_left = model.step(other, left)[0]
    walk(other, state)
    model.step(one, right)
    assert torch.equal(model.step(other, left)[0], after_left)
    assert torch.equal(walk(one, state), before)
    for rows in ([0, 1], [1, 0], [1]):
        sentences = torch.tensor(rows)
        branch = state.select(sentences, torch.zeros(len(rows), 1, dtype=torch.long))
        model.step(other[sentences], branch)
        close(model.step(one[sentences], branch)[0], before[0][sentences])
    assert torch.equal(walk(one, state), before)


@torch.no_grad()
def test_selected_beams_do_not_disturb_each_other(model, batch_of, close):
    batch = batch_of(5, [(5, 5), (2, 5)])
    _, state = model.step(batch.target_in[:, 0], start(model, batch))
    wide = state.select(torch.arange(2), torch.zeros(2, 3, dtype=torch.long))
    tokens, others = torch.arange(6) + 10, torch.arange(6) + 20
    first, after = model.step(tokens, wide)
    order = torch.tensor([[2, 0, 0], [1, 1, 2]])
    turned = after.select(torch.arange(2), order)
    expected = model.step(others, turned)[0]
    model.step(others, after)
    model.step(tokens, turned)
    model.step(others, wide)
    assert torch.equal(model.step(tokens, wide)[0], first)
    assert torch.equal(model.step(others, turned)[0], expected)
    rows = (torch.arange(2)[:, None] * 3 + order).flatten()
    source = torch.arange(2).repeat_interleave(3)
    prefix = torch.stack((batch.target_in[source, 0], tokens[rows], others), dim=1)
    whole = model(batch.source[source], batch.source_lengths[source], prefix)[:, -1]
    close(expected, whole)


@torch.no_grad()
def test_who_comes_later_sees_what_he_would_see_alone(model, batch_of, close):
    """Sentences of other lengths, at other steps, with beams that have been reordered: side by side
    as each by itself.
    """
    old, new = batch_of(7, [(5, 5), (2, 5)]), batch_of(8, [(3, 5), (7, 5), (1, 5)])
    _, state = model.step(old.target_in[:, 0], start(model, old))
    state = state.select(None, torch.zeros(2, 2, dtype=torch.long))
    _, state = model.step(torch.arange(4) + 10, state)
    state = state.select(None, torch.tensor([[1, 1], [1, 0]]))
    _, state = model.step(torch.arange(4) + 15, state)
    fresh = start(model, new).select(None, torch.zeros(3, 2, dtype=torch.long))
    joined, tokens = state.join(fresh), torch.arange(10) + 16
    for turn in (torch.tensor([[0, 1], [1, 0]]), torch.tensor([[1, 1], [0, 1]])):
        first, state = model.step(tokens[:4], state)
        second, fresh = model.step(tokens[4:], fresh)
        both, joined = model.step(tokens, joined)
        close(both, torch.cat((first, second)))
        other = torch.tensor([[1, 0], [0, 0], [1, 1]])
        state, fresh = state.select(None, turn), fresh.select(None, other)
        joined = joined.select(None, torch.cat((turn, other)))
    again = joined.join(start(model, old).select(None, torch.zeros(2, 2, dtype=torch.long)))
    fewer = again.select(torch.tensor([0, 3]), torch.tensor([[1], [0]]))
    alone = (
        state.select(torch.tensor([0]), torch.tensor([[1]])),
        fresh.select(torch.tensor([1]), torch.tensor([[0]])),
    )
    expected = [model.step(torch.tensor([17 + i]), one)[0] for i, one in enumerate(alone)]
    close(model.step(torch.tensor([17, 18]), fewer)[0], torch.cat(expected))


@torch.no_grad()
def test_the_source_is_kept_once_for_all_beams(model, batch_of):
    """Nothing that is as long as the source grows with the beams."""
    batch = batch_of(6, [(12, 3), (9, 3)])
    _, state = model.step(batch.target_in[:, 0], start(model, batch))
    wide = state.select(torch.arange(2), torch.zeros(2, 4, dtype=torch.long))
    _, wide = model.step(torch.arange(8) + 10, wide)

    def memories(state):
        for value in vars(state).values():
            for one in value if isinstance(value, tuple) else (value,):
                if isinstance(one, KeyValue) and len(one) == batch.source.shape[1]:
                    yield one

    kept = list(memories(wide))
    assert [len(one.key) for one in kept] == [2] * len(kept)
    assert len(kept) == len(list(memories(state)))
    pruned = wide.select(torch.tensor([1]), torch.tensor([[0, 3]]))
    assert [len(one.key) for one in memories(pruned)] == [1] * len(kept)


@pytest.mark.parametrize(
    ("width", "penalty", "minimum"), [(1, 1.0, 0), (1, 0.0, 0), (3, 1.0, 0), (4, 0.0, 2)]
)
@torch.no_grad()
def test_reserved_memory_gives_what_growing_memory_gives(
    repeatable, batch_of, sum_error, width, penalty, minimum
):
    """What a GPU repeats as a graph, here without one."""
    model = repeatable
    fixed = pytest.importorskip("regard.models.fast.fixed")
    captured = pytest.importorskip("regard.search.fast.captured")
    assert fixed.fits(model)
    batch, search = (
        batch_of(3, [(5, 0), (1, 0), (9, 0), (3, 0), (0, 0)]),
        Beam(width, width, penalty),
    )
    suppress = torch.arange(30) < 2

    def jobs():
        rows = (
            row[:length].tolist()
            for row, length in zip(batch.source, batch.source_lengths, strict=True)
        )
        return [Job(row, limit=3 + number) for number, row in enumerate(rows)]

    def begin(jobs):
        length = max(len(job.source) for job in jobs)
        source = torch.tensor([[*job.source, *[PAD] * (length - len(job.source))] for job in jobs])
        return model.decoder.start(
            model.encoder(source, torch.tensor([len(job.source) for job in jobs]))
        )

    largest = 0.0

    def step(tokens, state):
        nonlocal largest
        logits, state = model.step(tokens, state)
        largest = max(largest, float(logits.abs().max()))
        return logits, state

    graphs = captured.CapturedSearch(
        lambda *words: fixed.reserve(model, *words), step, search, suppress, minimum
    )
    theirs = {
        tuple(job.source): job.found
        for job in decode(model.step, begin, jobs(), search, Rules(minimum=minimum))
    }
    for room in (0, 16):
        for job in graphs.decode(jobs(), room):
            # The board of a graph is fp32: a log-probability is a logit less the logarithm of a sum
            # over the vocabulary.
            apart = sum_error(30, 2 * largest)
            sums = (
                apart * job.limit
            )  # of the hypothesis: without a length penalty the score is their sum
            for one, other in zip(job.found, theirs[tuple(job.source)][:width], strict=True):
                assert one.score == pytest.approx(other.score, abs=sums)
                if (one.tokens, one.finished) == (other.tokens, other.finished):
                    assert one.logprobs == pytest.approx(other.logprobs, abs=apart)
                else:  # rounding may choose among equals, and only there
                    others = (h for h in theirs[tuple(job.source)] if h.tokens != one.tokens)
                    assert any(h.score == pytest.approx(one.score, abs=sums) for h in others)


LONG = 24  # tokens: more than the room that is reserved at first for four hypotheses


@torch.no_grad()
def test_what_no_hypothesis_looks_at_is_left_behind(model, batch_of, close, seed_of):
    """A long beam that keeps to two of its hypotheses gives what teacher forcing gives."""
    batch = batch_of(seed_of(31), [(5, 0), (3, 0)])
    random = torch.Generator().manual_seed(seed_of(32))
    state = start(model, batch)
    state = state.select(None, torch.zeros(2, 4, dtype=torch.long))
    prefixes = torch.full((2, 4, 1), BOS)  # (B, K, t)

    for _ in range(LONG):
        logits, state = model.step(prefixes[..., -1].flatten(), state)  # (B · K, V)
        parents = torch.randint(0, 2, (2, 4), generator=random)  # (B, K)
        state = state.select(None, parents)
        next_tokens = torch.randint(10, 30, (2, 4, 1), generator=random)
        kept = prefixes.gather(1, parents[..., None].expand_as(prefixes))
        prefixes = torch.cat((kept, next_tokens), -1)

    logits = model.step(prefixes[..., -1].flatten(), state)[0].view(2, 4, -1)
    for row in range(2):
        source = batch.source[row : row + 1, : batch.source_lengths[row]].expand(4, -1)
        lengths = batch.source_lengths[row : row + 1].expand(4)
        close(logits[row], model(source, lengths, prefixes[row])[:, -1])

    if isinstance(state, TransformerState):
        written = 4 * LONG
        assert state.slots < written - 4


@torch.no_grad()
def test_a_source_that_has_left_takes_no_room(repeatable, batch_of):
    """The longest source leaves, a short one comes: the memory is as long as the longest there."""
    long = batch_of(5, [(30, 0), (3, 0)])
    short = batch_of(6, [(4, 0)])
    state = start(repeatable, long)
    rest = state.select(torch.tensor([1]), torch.zeros(1, 1, dtype=torch.long))
    joined = rest.join(start(repeatable, short))
    assert len(joined.cross[0]) == joined.lengths.max() < len(state.cross[0])


@torch.no_grad()
def test_a_mask_of_ones_own_is_for_the_slots_that_are_there(repeatable, batch_of, close):
    """Slots that nobody looks at stay where a mask was made for them."""
    batch = batch_of(5, [(5, 0)])
    state = start(repeatable, batch).select(None, torch.zeros(1, 4, dtype=torch.long))
    plain_state = state
    parents = torch.tensor([[0, 0, 1, 1]])
    for step in range(LONG):
        tokens = torch.full((4, 1), 10 + step % 20)
        allowed = torch.ones(4, state.slots + 4, dtype=torch.bool)
        hidden, state = repeatable.decoder.hidden(tokens, state, mask=allowed)
        plain, plain_state = repeatable.decoder.hidden(tokens, plain_state)
        close(hidden, plain)
        state = state.select(None, parents)
        plain_state = plain_state.select(None, parents)
    assert state.slots == 4 * LONG > plain_state.slots


@torch.no_grad()
def test_an_rnn_keeps_no_source_that_has_left(model, batch_of):
    if isinstance(start(model, batch_of(5, [(3, 0)])), TransformerState):
        return
    rest = start(model, batch_of(5, [(30, 0), (3, 0)]))
    rest = rest.select(torch.tensor([1]), torch.zeros(1, 1, dtype=torch.long))
    joined = rest.join(start(model, batch_of(6, [(4, 0)])))
    if joined.memory is not None:
        assert len(joined.memory) == joined.lengths.max()
