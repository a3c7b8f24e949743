"""Law 14: fp32 is float64, rounded: no further from it than rounding can carry a model of these
magnitudes.

The other laws are tested in float64. This one holds together what fp32 alone runs through: oneDNN's
kernels, other blocks, other orders of sums.
"""

import copy

import torch
import torch.nn.functional as F

from regard.nn.layers import FeedForward

LENGTHS = [(5, 6), (1, 3), (3, 0), (6, 6)]
TERMS = 64
"""The longest sum here: the tokens of the batch in a gradient, the inner width of a gated
feed-forward in a product.
"""


def logits(model, batch):
    return model(batch.source, batch.source_lengths, batch.target_in)


def in_pieces(model, batch):
    state = model.decoder.start(model.encoder(batch.source, batch.source_lengths))
    pieces = []
    for t in range(batch.target_in.shape[1]):
        logits, state = model.step(batch.target_in[:, t], state)
        pieces.append(logits)
    return torch.stack(pieces, dim=1)


def loss_and_gradients(model, batch):
    """Of a model with ReLUs only the loss: where one bends, the slope jumps, and rounding may
    change a gradient by much.
    """
    model = copy.deepcopy(model)
    sums = model.loss(batch, smoothing=0.1)
    sums.loss.backward()
    bends = any(
        isinstance(part, FeedForward) and part.activation is F.relu for part in model.modules()
    )
    gradients = (
        [] if bends else [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    )
    return torch.cat((sums.loss.detach()[None], *gradients))


def near(found, exact, allowed):
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, atol=allowed, rtol=0)


@torch.no_grad()
def test_logits_in_fp32(model, batch_of, rounding):
    batch = batch_of(1, LENGTHS)
    exact = logits(model, batch)
    allowed = rounding(model, lambda changed: logits(changed, batch), TERMS, draws=3)
    single = copy.deepcopy(model).float()
    near(logits(single, batch), exact, allowed)
    near(in_pieces(single, batch), exact, allowed)


def test_loss_and_gradients_in_fp32(model, batch_of, rounding):
    batch = batch_of(2, LENGTHS)
    exact = loss_and_gradients(model, batch)
    allowed = rounding(model, lambda changed: loss_and_gradients(changed, batch), TERMS, draws=3)
    near(loss_and_gradients(copy.deepcopy(model).float(), batch), exact, allowed)
