"""Law 7: loss and gradient of the parts are those of the whole, and packed rows cost nothing in
truth.
"""

import copy

import pytest
import torch
import torch.nn.functional as F

from regard.config import TrainConfig
from regard.data.batches import collate
from regard.text.vocabulary import PAD
from regard.training.trainer import Trainer

CONFIG = TrainConfig(
    optimizer="sgd",
    rate=0.5,
    warmup=0,
    schedule="constant",
    clip=0.0,
    smoothing=0.1,
    precision="fp32",
    threads=1,
)
LENGTHS = [(5, 6), (1, 1), (3, 0), (6, 3)]


def rows_of(batch):
    sizes = zip(batch.source_lengths.tolist(), batch.target_lengths.tolist(), strict=True)
    return [
        (batch.source[i, :s].tolist(), batch.target[i, : t + 1].tolist())
        for i, (s, t) in enumerate(sizes)
    ]


def updated(model, parts, config=CONFIG):
    trainer = Trainer(
        copy.deepcopy(model), lambda step: parts[0], config, steps=10, device=torch.device("cpu")
    )
    trainer.update(parts)
    return trainer


@pytest.fixture
def same(same_gradients, close):
    """Gradients, and the weights after the step."""

    def check(one, other):
        same_gradients(one, other)
        for (name, ours), theirs in zip(one.named_parameters(), other.parameters(), strict=True):
            close(ours, theirs, name)

    return check


def test_halves_make_the_whole(model, batch_of, same):
    whole = batch_of(1, LENGTHS)
    rows = rows_of(whole)
    one = updated(model, [whole])
    two = updated(model, [collate(rows[:1]), collate(rows[1:])])
    same(one.model, two.model)
    assert one.sums == pytest.approx(two.sums, rel=1e-9)
    assert (one.sums["tokens"], one.sums["correct"]) == (two.sums["tokens"], two.sums["correct"])


def test_halves_make_the_whole_when_clipped(build, transformer, batch_of, same):
    """The norm that is clipped is that of the step, not of its parts."""
    model, whole = build(transformer()), batch_of(2, LENGTHS)
    rows = rows_of(whole)
    config = TrainConfig(**{**vars(CONFIG), "clip": 0.05})
    one, two = (
        updated(model, [whole], config),
        updated(model, [collate(rows[2:]), collate(rows[:2])], config),
    )
    same(one.model, two.model)
    norm = torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in one.model.parameters()]))
    assert float(norm) == pytest.approx(config.clip, rel=1e-9)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "muon"])
def test_halves_make_the_whole_by_every_optimizer(build, transformer, batch_of, close, optimizer):
    model, whole = build(transformer()), batch_of(4, LENGTHS)
    rows = rows_of(whole)
    config = TrainConfig(**{**vars(CONFIG), "clip": 0.05, "optimizer": optimizer, "rate": 1e-3})
    one, two = (
        updated(model, [whole], config),
        updated(model, [collate(rows[:2]), collate(rows[2:])], config),
    )
    before = dict(model.named_parameters())
    for (name, ours), theirs in zip(
        one.model.named_parameters(), two.model.parameters(), strict=True
    ):
        # The gradient of a key's bias is zero but for rounding, 1e-17; divided by Adam's 1e-9 it is
        # a step of 1e-8 · rate.
        close(ours, theirs, name)
        assert not torch.equal(ours, before[name]), name


def test_packed_is_padded(model, batch_of, close, same_gradients):
    batch, smoothing = batch_of(3, LENGTHS), 0.1
    packed, padded = copy.deepcopy(model), copy.deepcopy(model)
    sums = packed.loss(batch, smoothing)
    sums.loss.backward()
    logits = padded(batch.source, batch.source_lengths, batch.target_in)
    real = torch.arange(logits.shape[1]) < batch.target_lengths[:, None]
    rows, targets = logits[real], batch.target_out[real]
    loss = F.cross_entropy(rows, targets, reduction="sum", label_smoothing=smoothing)
    loss.backward()
    close(sums.loss, loss)
    close(sums.nll, F.cross_entropy(rows, targets, reduction="sum").detach())
    assert int(sums.correct) == int((rows.argmax(-1) == targets).sum())
    assert sums.tokens == batch.tokens == len(targets)
    close(packed.loss(batch).loss.detach(), sums.nll)
    same_gradients(packed, padded)


def test_packed_is_padded_where_tokens_are_masked(masked, masked_batch_of, close, same_gradients):
    batch, smoothing = masked_batch_of(3, [8, 1, 3, 2]), 0.1
    packed, padded = copy.deepcopy(masked), copy.deepcopy(masked)
    sums = packed.loss(batch, smoothing)
    sums.loss.backward()
    logits = padded(batch.source, batch.source_lengths)
    rows, targets = logits[batch.target_out != PAD], batch.target_out[batch.target_out != PAD]
    loss = F.cross_entropy(rows, targets, reduction="sum", label_smoothing=smoothing)
    loss.backward()
    close(sums.loss, loss)
    assert int(sums.correct) == int((rows.argmax(-1) == targets).sum())
    assert sums.tokens == batch.tokens == len(targets)
    same_gradients(packed, padded)
