"""The loop over a model that is a table: what is logged, judged, saved, and when it stops."""

import json

import torch
from torch import nn

from regard.config import TrainConfig
from regard.data.batches import collate
from regard.models import Sums
from regard.training.trainer import Trainer

BATCH = collate([([5, 6, 2], [1, 7, 2]), ([5, 2], [1, 8, 9, 2])])


class Still(nn.Module):
    """A loss of |w|² a token."""

    def __init__(self, value=1.0):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([[value]]))

    def loss(self, batch, smoothing=0.0):
        loss = self.w.square().sum() * batch.tokens
        return Sums(loss, loss.detach(), torch.tensor(1), batch.tokens)


def trainer(steps=10, model=None, **changes):
    config = TrainConfig(
        **(
            {
                "warmup": 0,
                "schedule": "constant",
                "optimizer": "sgd",
                "rate": 0.1,
                "precision": "fp32",
            }
            | changes
        )
    )
    return Trainer(
        model or Still(), lambda step: BATCH, config, steps=steps, device=torch.device("cpu")
    )


def fit(trainer, losses=None, stop=lambda: False):
    """Everything that happened, in order."""
    events, given = [], iter(losses or [])

    def validate(model):
        assert not model.training
        return {"loss": next(given), "accuracy": 0.0}

    trainer.fit(
        validate=validate if losses else None,
        save=lambda: events.append(("save", trainer.progress.step)),
        log=lambda kind, **values: events.append((kind, values["step"])),
        tick=lambda progress: events.append(("tick", progress.step)),
        stop=stop,
    )
    return events


def of(events, kind):
    return [step for name, step in events if name == kind]


def test_when_things_happen():
    events = fit(trainer(log_every=4, save_every=3, evaluate_every=5), losses=[1.0, 2.0])
    assert of(events, "tick") == list(range(1, 11))
    assert of(events, "train") == [4, 8, 10]
    assert of(events, "dev") == [5, 10]
    assert of(events, "save") == [3, 5, 6, 9, 10]


def test_patience():
    made = trainer(steps=100, evaluate_every=2, patience=2, save_every=1000)
    events = fit(made, losses=[3.0, 2.0, 2.5, 1.0, 1.5, 1.2])
    assert of(events, "dev") == [2, 4, 6, 8, 10, 12]
    assert made.progress.step == 12
    assert made.progress.best == 1.0
    assert made.progress.best_name == "step-00000008"
    assert of(events, "save")[-1] == 12


def test_the_last_is_the_best_by_step():
    made = trainer(steps=6, evaluate_every=2, metric="step")
    fit(made, losses=[1.0, 3.0, 2.0])
    assert made.progress.best_name == "step-00000006"


def test_stop_saves():
    asked = iter([False, False, True])
    made = trainer(save_every=1000)
    events = fit(made, stop=lambda: next(asked))
    assert of(events, "save") == [3]
    assert not made.progress.finished


def test_loss_is_divided_by_the_tokens_of_the_step():
    """Of two batches of different size, not by the mean of their means."""
    made, small = trainer(clip=0.0), collate([([5, 2], [1, 2])])
    made.update([BATCH, small])
    assert made.sums["tokens"] == BATCH.tokens + small.tokens == 6
    torch.testing.assert_close(made.model.w.grad, torch.tensor([[2.0]]))


def test_progress_round_trip():
    made, other = trainer(), trainer()
    made.update([BATCH])
    made.progress.skipped = [(3, 2)]
    other.from_json(json.loads(json.dumps(made.to_json())))
    assert other.to_json() == made.to_json()
    assert other.progress == made.progress


def test_memory_that_runs_out_changes_no_random_number():
    """A step that had to be split midway is one whose batches were split from the start."""

    def dropped(batch, smoothing, *, broken):
        weight = model.w * torch.rand(())
        if broken and batch.size > 1:
            raise torch.OutOfMemoryError
        loss = weight.square().sum() * batch.tokens
        return Sums(loss, loss.detach(), torch.tensor(1), batch.tokens)

    ends = []
    for broken in (True, False):
        model = Still()
        model.loss = lambda batch, smoothing, broken=broken: dropped(
            batch, smoothing, broken=broken
        )
        made = trainer(model=model)
        made.largest_fitting = 0 if broken else BATCH.padded_tokens - 1
        made.update([BATCH])
        ends.append(float(model.w.detach()))
    assert ends[0] == ends[1] != 1.0


def test_speed_after_resuming_counts_from_the_last_line():
    """Half of a window before the interruption, half after it."""
    made = trainer(log_every=4)
    made.update([BATCH])
    made.progress.seconds = 10.0
    made.progress.logged_at = 8.0
    saved = made.to_json()

    resumed = trainer(log_every=4)
    resumed.from_json(saved)
    assert resumed.progress.logged_at == 8.0
    del saved["logged_at"]  # as older versions wrote it
    resumed.from_json(saved)
    assert resumed.progress.logged_at == 10.0


def test_the_moving_average_soon_forgets_the_first_weights():
    """After t steps it is an average over about the last t / 9; later, over what train.ema says."""
    t = trainer(ema=0.99, rate=0.01)
    with torch.no_grad():
        t.ema["w"].fill_(1000.0)  # the first weights, which are worth nothing
    expected = 1000.0
    for step in range(2000):
        t.update([BATCH])
        share = max(0.01, 9 / (10 + step))
        expected += share * (float(t.model.w.detach()) - expected)
        torch.testing.assert_close(float(t.ema["w"]), expected, rtol=1e-4, atol=1e-4)
        if step == 100:
            assert abs(expected) < 1.1  # a decay of 0.99 alone would leave 366
