"""The trainer knows no kind of batch: a language model's trains, splits and is forecast as well."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regard.config import TrainConfig
from regard.models import Learner, Sums
from regard.training.forecast import forecast
from regard.training.trainer import Trainer

CPU = torch.device("cpu")
LETTERS = 7


@dataclass(frozen=True)
class Documents:
    """Rows of letters without any padding, of which each predicts the next."""

    rows: torch.Tensor  # (B, T + 1)

    @property
    def device(self):
        return self.rows.device

    @property
    def size(self):
        return len(self.rows)

    @property
    def tokens(self):
        return self.rows[:, 1:].numel()

    @property
    def tokens_read(self):
        return self.tokens

    @property
    def padded_tokens(self):
        return self.rows.numel()

    def count_examples(self):
        return torch.tensor(len(self.rows))

    def to(self, device):
        return replace(self, rows=self.rows.to(device))

    def split(self):
        half = self.size // 2
        return [Documents(self.rows[:half]), Documents(self.rows[half:])] if half else [self]


class Bigrams(Learner):
    """The next letter from the last one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.table = nn.Embedding(LETTERS, LETTERS)

    def loss(self, batch, smoothing=0.0):
        logits = self.table(batch.rows[:, :-1])  # (B, T, V)
        answers = batch.rows[:, 1:]  # (B, T)
        loss = F.cross_entropy(logits.transpose(1, 2), answers, reduction="sum")
        correct = (logits.argmax(-1) == answers).sum()
        return Sums(loss, loss.detach(), correct, batch.tokens)


class Supply:
    """Documents in which each letter is followed by the next of the alphabet."""

    per_epoch = 4

    def __call__(self, step):
        rng = np.random.default_rng(step % self.per_epoch)
        first = rng.integers(LETTERS, size=(8, 1))
        return Documents(torch.from_numpy((first + np.arange(6)) % LETTERS))

    def count_tokens(self):
        return self.per_epoch * 8 * 5

    def longest(self, step):
        return self(step)


@pytest.fixture
def trainer():
    config = TrainConfig(rate=0.05, warmup=0, schedule="constant", precision="fp32", log_every=50)
    return Trainer(Bigrams(), Supply(), config, steps=100, device=CPU)


def fit(trainer):
    lines = []
    trainer.fit(
        validate=None,
        save=lambda: None,
        log=lambda kind, **values: lines.append(values),
        tick=lambda progress: None,
        stop=lambda: False,
    )
    return lines


def test_it_learns_and_is_counted(trainer):
    first, last = fit(trainer)
    assert last["loss"] < first["loss"] / 2
    assert last["accuracy"] == 1.0
    pace = last["tokens_per_second"] / last["examples_per_second"]
    assert pace == pytest.approx(5, rel=1e-3)  # tokens of a document


def test_memory_that_runs_out_splits_it(trainer):
    whole = Trainer(Bigrams(), Supply(), trainer.config, steps=100, device=CPU)
    trainer.largest_fitting = 12  # two documents
    batch = Supply()(0)
    assert len(trainer._fitting(batch)) == 4
    trainer.update([batch])
    whole.update([batch])
    for ours, theirs in zip(trainer.weights, whole.weights, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_it_is_forecast(trainer):
    said = []
    forecast(trainer, said.append)
    assert said[0].startswith("about ")
    assert "tokens/s; 100 steps" in said[0]


def test_no_name_of_a_pair_is_in_the_trainer():
    import inspect

    import regard.training.trainer as module

    text = inspect.getsource(module)
    assert not [word for word in ("source", "target", "PAD", "Seq2Seq") if word in text]
