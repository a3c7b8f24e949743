"""Law 6: without positions a Transformer does not know order; with them it does. Some kinds know
distances only.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.text.vocabulary import BOS, EOS

few = settings(max_examples=6, deadline=None, derandomize=True)
KINDS = ("sinusoidal", "learned", "relative", "rotary", "alibi")
APART = 1e-6
"""A thousand times what counts as equal: no rounding, a difference."""
FORWARDS, BACKWARDS = [[11, 12, 13, 20, 11, 12, 13, EOS]], [[13, 12, 11, 20, 13, 12, 11, EOS]]


def first_step(model, source):
    source = torch.tensor(source)
    return model(source, torch.tensor([source.shape[1]]), torch.tensor([[BOS]]))


@pytest.mark.parametrize("score", ["dot", "scaled_dot", "multiplicative", "additive"])
@pytest.mark.parametrize("placement", ["pre", "post"])
@torch.no_grad()
def test_without_positions_reading_backwards_is_the_same(
    build, transformer, close, score, placement
):
    model = build(transformer(position="none", score=score, placement=placement))
    close(first_step(model, FORWARDS), first_step(model, BACKWARDS))


@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_with_positions_it_is_not(build, transformer, kind, placement):
    model = build(transformer(position=kind, placement=placement))
    assert (first_step(model, FORWARDS) - first_step(model, BACKWARDS)).abs().max() > APART


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
@torch.no_grad()
def test_recurrence_knows_order(build, rnn, cell):
    model = build(rnn(cell=cell))
    assert (first_step(model, FORWARDS) - first_step(model, BACKWARDS)).abs().max() > APART


@few
@given(st.integers(0, 10_000), st.permutations(range(7)))
@torch.no_grad()
def test_without_positions_the_encoder_is_permutation_equivariant(
    build, transformer, close, seed, order
):
    model = build(transformer(position="none"), seed % 3)
    source = torch.randint(5, 30, (1, 7), generator=torch.Generator().manual_seed(seed))
    lengths = torch.tensor([7])
    states = model.encoder(source, lengths).states
    close(model.encoder(source[:, order], lengths).states, states[:, order])


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_positions_go_with_the_tokens(build, transformer, close, kind):
    """Tokens and their positions in another order: the same states in that order. A position is
    told, not counted.
    """
    model = build(transformer(position=kind))
    source, positions, lengths = (
        torch.randint(5, 30, (1, 6)),
        torch.tensor([[0, 1, 2, 3, 4, 5]]),
        torch.tensor([6]),
    )
    order = [3, 0, 5, 1, 4, 2]
    states = model.encoder(source, lengths, positions=positions).states
    close(states, model.encoder(source, lengths).states)
    turned = model.encoder(source[:, order], lengths, positions=positions[:, order]).states
    close(turned, states[:, order])


@pytest.mark.parametrize("kind", ["relative", "rotary", "alibi"])
@torch.no_grad()
def test_these_know_distances_only(build, transformer, close, kind):
    model = build(transformer(position=kind))
    source, positions, lengths = (
        torch.randint(5, 30, (2, 6)),
        torch.arange(6).expand(2, 6),
        torch.tensor([6, 4]),
    )
    here = model.encoder(source, lengths, positions=positions).states
    elsewhere = model.encoder(
        source, lengths, positions=positions + torch.tensor([[9], [30]])
    ).states
    close(here, elsewhere)
    apart = model.encoder(source, lengths, positions=positions * 2).states
    assert (here - apart).abs().max() > APART
