"""Law 2: a sentence sees neither its batch nor its padding, whatever stands there."""

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

few = settings(max_examples=4, deadline=None, derandomize=True)
lengths = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=2, max_size=4)


@few
@given(st.integers(0, 10_000), lengths)
@torch.no_grad()
def test_alone_is_in_company(model, batch_of, close, seed, lengths):
    batch = batch_of(seed, lengths)
    states = model.encoder(batch.source, batch.source_lengths).states
    together = model(batch.source, batch.source_lengths, batch.target_in)
    for row, (s, t) in enumerate(
        zip(batch.source_lengths.tolist(), batch.target_lengths.tolist(), strict=True)
    ):
        one = slice(row, row + 1)
        source, lengths_of_one = batch.source[one, :s], batch.source_lengths[one]
        if states.shape[1]:  # a decoder alone has none
            close(model.encoder(source, lengths_of_one).states, states[one, :s])
        close(model(source, lengths_of_one, batch.target_in[one, :t]), together[one, :t])


@few
@given(st.integers(0, 10_000), lengths, st.integers(1, 5), st.integers(1, 5))
@torch.no_grad()
def test_more_padding_and_what_it_holds(
    model, batch_of, close, seed, lengths, more_source, more_target
):
    batch = batch_of(seed, lengths)
    words = torch.Generator().manual_seed(seed)

    def rubbish(tokens, lengths, more):
        wider = F.pad(tokens, (0, more))
        padding = torch.arange(wider.shape[1]) >= lengths[:, None]
        return torch.where(padding, torch.randint(0, 30, wider.shape, generator=words), wider)

    source = rubbish(batch.source, batch.source_lengths, more_source)
    target = rubbish(batch.target_in, batch.target_lengths, more_target)
    ours = model(source, batch.source_lengths, target)
    theirs = model(batch.source, batch.source_lengths, batch.target_in)
    for row, t in enumerate(batch.target_lengths.tolist()):
        close(ours[row, :t], theirs[row, :t])


@few
@given(st.integers(0, 10_000), lengths, st.randoms(use_true_random=False))
@torch.no_grad()
def test_order_of_the_batch(model, batch_of, close, seed, lengths, random):
    batch = batch_of(seed, lengths)
    order = list(range(batch.size))
    random.shuffle(order)
    shuffled = model(batch.source[order], batch.source_lengths[order], batch.target_in[order])
    close(shuffled, model(batch.source, batch.source_lengths, batch.target_in)[order])


few_texts = st.lists(st.integers(1, 9), min_size=2, max_size=4)


@few
@given(st.integers(0, 10_000), few_texts)
@torch.no_grad()
def test_a_masked_text_alone_is_in_company(masked, masked_batch_of, close, seed, lengths):
    batch = masked_batch_of(seed, lengths)
    together = masked(batch.source, batch.source_lengths)
    for row, length in enumerate(batch.source_lengths.tolist()):
        one = slice(row, row + 1)
        alone = masked(batch.source[one, :length], batch.source_lengths[one])
        close(alone, together[one, :length])


@few
@given(st.integers(0, 10_000), few_texts, st.integers(1, 5), st.randoms(use_true_random=False))
@torch.no_grad()
def test_a_masked_text_sees_no_padding_and_no_order(
    masked, masked_batch_of, close, seed, lengths, more, random
):
    batch = masked_batch_of(seed, lengths)
    wider = F.pad(batch.source, (0, more))
    padding = torch.arange(wider.shape[1]) >= batch.source_lengths[:, None]
    rubbish = torch.where(padding, torch.randint_like(wider, 0, 30), wider)
    order = list(range(batch.size))
    random.shuffle(order)

    ours = masked(rubbish[order], batch.source_lengths[order])
    theirs = masked(batch.source, batch.source_lengths)[order]
    for row, length in enumerate(batch.source_lengths[order].tolist()):
        close(ours[row, :length], theirs[row, :length])


@torch.no_grad()
def test_the_loss_of_masked_texts_is_the_sum_of_theirs(masked, masked_batch_of, close):
    batch = masked_batch_of(3, [9, 2, 5])
    parts = [half for part in batch.split() for half in part.split()]
    assert [part.size for part in parts] == [1, 1, 1]
    sums = [masked.loss(part, 0.1) for part in parts]
    whole = masked.loss(batch, 0.1)
    close(whole.loss, torch.stack([part.loss for part in sums]).sum())
    assert whole.tokens == sum(part.tokens for part in sums)
    assert int(whole.correct) == sum(int(part.correct) for part in sums)
