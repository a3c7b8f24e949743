"""Numbers that are not finite, losses far out, memory that runs out: steps are left out or split,
and nothing else changes.
"""

import json
import math
import random
import shutil

import pytest
import torch
from safetensors.torch import load as tensors_from_bytes
from torch import nn

import regard
from regard.config import TrainConfig, TransformerConfig
from regard.data.batches import collate
from regard.errors import UserError
from regard.models import Seq2Seq, Sums, build_model
from regard.recipes.reporter import Reporter
from regard.runs import storage
from regard.training.optimizer import optimizer_tensors
from regard.training.trainer import Trainer

BATCH = collate([([5, 6, 2], [1, 7, 2]), ([5, 2], [1, 8, 9, 2])])
OPTIMIZERS = ["adam", "adamw", "sgd", "muon"]


class Table(nn.Module):
    """A loss of `level` a token, with a gradient. What is in `poison` spoils the next step."""

    def __init__(self):
        super().__init__()
        self.level, self.poison = 1.0, ""
        self.inner = nn.ParameterDict({"weight": torch.ones(3, 2), "bias": torch.full((4,), 0.5)})
        self.inner.bias.register_hook(
            lambda grad: grad * {"gradient": math.nan, "infinite": math.inf}.get(self.poison, 1.0)
        )

    def loss(self, batch, smoothing=0.0):
        loss = (
            (self.inner.weight.square().mean() + self.inner.bias.square().mean())
            * 0.01
            * batch.tokens
        )
        loss = loss * self.level / loss.detach() * batch.tokens
        loss = loss * {"loss": math.nan, "overflow": math.inf}.get(self.poison, 1.0)
        return Sums(loss, loss.detach(), torch.tensor(1), batch.tokens)


def trainer(model=None, batches=lambda step: BATCH, steps=10**6, **changes):
    given = {
        "warmup": 0,
        "schedule": "constant",
        "rate": 1e-3,
        "precision": "fp32",
        "optimizer": "adam",
    } | changes
    return Trainer(
        model or Table(), batches, TrainConfig(**given), steps=steps, device=torch.device("cpu")
    )


def bits(made):
    """Weights and the optimiser's state."""
    tensors = {
        **dict(made.model.named_parameters()),
        **optimizer_tensors(made.model, made.optimizer),
    }
    return {name: x.detach().clone() for name, x in tensors.items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_hundred_injections_change_nothing(optimizer):
    chance, made = random.Random(optimizer), trainer(optimizer=optimizer)
    made.update([BATCH])
    taken = 1
    for number in range(100):
        made.model.poison = chance.choice(["loss", "overflow", "gradient", "infinite"])
        before = bits(made)
        made.update([BATCH])
        assert same(bits(made), before), made.model.poison
        made.model.poison = ""
        for _ in range(chance.randrange(3)):
            made.update([BATCH])
            taken += 1
            assert not same(bits(made), before)
        assert made.sums["skipped"] == number + 1
    assert made.sums["steps"] == taken
    assert made.progress.step == taken + 100
    assert all(math.isfinite(value) for value in made.sums.values())


@pytest.mark.parametrize("seed", range(5))
def test_six_sigmas_are_left_out_and_three_are_not(seed):
    chance, made = random.Random(seed), trainer(rate=1e-6)
    losses = [math.exp(chance.gauss(0.0, 0.1)) for _ in range(100)]
    for made.model.level in losses:
        made.update([BATCH])
    assert made.sums["skipped"] == 0
    for made.model.level in (math.exp(0.3), 1.0, math.exp(0.3), 0.7):
        made.update([BATCH])
    assert made.sums["skipped"] == 0
    made.model.level, before = 2.2, bits(made)
    made.update([BATCH])
    assert made.sums["skipped"] == 1
    assert same(bits(made), before)
    made.model.level = 1.0
    made.update([BATCH])
    assert made.sums["skipped"] == 1


def test_spikes_before_the_guard_has_seen_enough_are_taken():
    made = trainer()
    for made.model.level in [1.0] * 20 + [50.0]:
        made.update([BATCH])
    assert made.sums["skipped"] == 0


# whole runs


@pytest.fixture
def poison(monkeypatch):
    """poison(where): the loss of a training step is not finite where where(step) says so;
    "weights": they become so.
    """
    real, asked = Trainer._gradient, []

    def gradient(made, parts, tokens):
        total = real(made, parts, tokens)
        kind = asked[0](made.progress.step) if asked else ""
        if kind == "weights":
            with torch.no_grad():
                next(made.model.parameters())[0] = math.nan
        if kind == "gradient":
            next(p.grad for p in made.model.parameters() if p.grad is not None)[0] = math.nan
        return total * math.nan if kind == "loss" else total

    monkeypatch.setattr(Trainer, "_gradient", gradient)
    monkeypatch.setattr("regard.recipes.fitting.finish", lambda *parts, **more: None)

    def ask(where):
        asked[:] = [where]

    return ask


@pytest.mark.parametrize("times", [10, pytest.param(50, marks=pytest.mark.slow)])
def test_nothing_that_is_not_finite_is_ever_saved(tmp_path, train, poison, monkeypatch, times):
    """At one step or another a loss, a gradient or the weights themselves are no numbers."""
    kinds, write, seen = ["weights", "loss", "gradient"], storage.write_directory, []

    def written(path, files, facts=None):
        seen.append(path)
        for name in ("model.safetensors", "optimizer.safetensors"):
            assert all(
                x.isfinite().all()
                for x in tensors_from_bytes(files.get(name, b"\2\0\0\0\0\0\0\0{}")).values()
            )
        write(path, files, facts)

    monkeypatch.setattr(storage, "write_directory", written)
    train(tmp_path / "begun", steps=4, keep=1)
    for number in range(times):
        path = shutil.copytree(tmp_path / "begun", tmp_path / f"run-{number}")
        at, kind, met = 4 + number % 8, kinds[number % 3], []

        def where(step, at=at, kind=kind, met=met):
            met += [step] * (step == at)
            return kind if step == at and len(met) == 1 else ""

        poison(where)
        run = regard.train(
            "copy", out=path, resume=True, train={"steps": 12}, reporter=Reporter(quiet=True)
        )
        assert run.checkpoints()[-1] == "step-00000012"
        assert len(met) == (2 if kind == "weights" else 1)
        assert all(
            x.isfinite().all() for name in run.checkpoints() for x in run.model(name).parameters()
        )
    assert len(seen) > 2 * times


def test_weights_that_stay_broken_leave_the_last_healthy_checkpoint(tmp_path, train, poison):
    poison(lambda step: "weights" if step == 7 else "")
    with pytest.raises(UserError, match="keeps becoming NaN") as caught:
        train(tmp_path / "run", keep=1)
    assert caught.value.said.count("back to step 6") == 3
    run = regard.Run.open(tmp_path / "run")
    assert run.checkpoints()[-1] == "step-00000006"
    assert run.model("step-00000006")


def rates(run):
    return [r["rate"] for r in run.records() if r["kind"] == "train"]


def test_more_than_ten_left_out_and_training_goes_back(tmp_path, train, poison):
    """Eleven bad steps once: back to step 20 at half the rate, and on to the end."""
    seen = []

    def where(step):
        seen.append(step)
        return "loss" if 22 <= step < 33 and seen.count(step) == 1 else ""

    poison(where)
    given = {
        "steps": 60,
        "save_every": 20,
        "evaluate_every": 20,
        "log_every": 10,
        "schedule": "constant",
        "warmup": 0,
    }
    run = train(tmp_path / "run", **given)
    assert run.said.count("warning") == 1
    assert "in too many steps; going back to step 20" in run.said.replace("\n", " ")
    assert "back to step 20 with the learning rate × 0.5" in run.said
    assert [r / rates(run)[0] for r in rates(run)] == [1, 1, 0.5, 0.5, 0.5, 0.5]
    assert [r["step"] for r in run.records() if r["kind"] == "train"] == [10, 20, 30, 40, 50, 60]
    assert not any("skipped" in r for r in run.records())


@pytest.mark.parametrize("saved", [20, 1000], ids=["a checkpoint", "none yet"])
def test_after_three_times_it_ends_in_one_sentence(tmp_path, train, poison, saved):
    poison(lambda step: "gradient" if step >= 22 else "")
    with pytest.raises(UserError) as caught:
        train(tmp_path / "run", steps=60, save_every=saved, evaluate_every=1000, log_every=10)
    assert caught.value.said.count("too many steps") == 3
    assert "\n" not in str(caught.value)
    assert "keeps becoming NaN" in str(caught.value)
    assert "train.rate" in str(caught.value)
    run = regard.Run.open(tmp_path / "run")
    assert run.checkpoints() == (["step-00000020"] if saved == 20 else [])


def test_ten_left_out_are_borne(tmp_path, train, poison, log):
    poison(lambda step: "loss" if 22 <= step < 32 else "")
    run = train(tmp_path / "run", steps=60, save_every=20, log_every=10)
    assert "back to" not in run.said
    assert {r["step"]: r["skipped"] for r in run.records() if "skipped" in r} == {30: 8, 40: 2}


@pytest.mark.parametrize("stop", [24, 33, 41])
def test_resuming_in_the_middle_of_trouble(
    tmp_path, train, poison, monkeypatch, log, digests, stop
):
    """Killed while steps are being left out, or just after going back: the same weights and log in
    the end.
    """
    given = {"steps": 60, "save_every": 10, "log_every": 10, "evaluate_every": 30}

    def where(step):  # the same whenever the rate is whole, as bad data would be
        return "loss" if 22 <= step < 34 and factor[0] == 1 else ""

    factor, update, killed = [1.0], Trainer.update, []

    def updated(made, parts):
        factor[0] = made.progress.factor
        update(made, parts)
        if killed and made.progress.step == stop and (stop != 41 or factor[0] < 1):
            killed.clear()
            raise MemoryError("killed")

    monkeypatch.setattr(Trainer, "update", updated)
    poison(where)
    whole = train(tmp_path / "whole", **given)
    assert "back to" in whole.said
    killed.append(True)
    with pytest.raises(MemoryError):
        train(tmp_path / "run", **given)
    run = train(tmp_path / "run")
    assert log(run.path) == log(whole.path)
    assert digests(run.path) == digests(whole.path)


# memory


def tiny():
    torch.manual_seed(1)
    config = TransformerConfig(
        width=16, ffn=24, heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0
    )
    return build_model(config, 20, 20)


def batch(seed, size):
    chance = random.Random(seed)

    def row():
        return [chance.randrange(5, 20) for _ in range(chance.randrange(1, 9))]

    return collate([([*row(), 2], [1, *row(), 2]) for _ in range(size)])


@pytest.fixture
def memory(monkeypatch):
    """memory(fits): model.loss runs out of memory for batches that do not fit."""
    asked, real = [], Seq2Seq.loss

    def loss(model, part, *args):
        if asked and model.training and not asked[0](part):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(model, part, *args)

    monkeypatch.setattr(Seq2Seq, "loss", loss)

    def ask(fits):
        asked[:] = [fits]

    return ask


@pytest.mark.parametrize("largest", [1, 2, 3, 7])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_split_batch_has_the_same_gradient(memory, largest, accumulate):
    whole, split = (trainer(tiny().double(), clip=0.0, optimizer="sgd") for _ in range(2))
    parts = [batch(seed, 12) for seed in range(accumulate)]
    whole.model.train(), split.model.train()
    whole.update(parts)
    memory(lambda part: part.size <= largest)
    split.update(parts)
    for (name, one), other in zip(
        whole.model.named_parameters(), split.model.parameters(), strict=True
    ):
        assert (one.grad - other.grad).abs().max() <= 1e-9, name
    for name, value in whole.sums.items():
        assert split.sums[name] == pytest.approx(value, rel=1e-9), name


def test_a_hundred_random_batches_that_do_not_fit(memory):
    """Each with less memory than it wants, and more than its largest sentence does."""
    chance, made, room = (
        random.Random(12),
        trainer(tiny().double(), clip=0.0, optimizer="sgd", rate=1e-30),
        [math.inf],
    )
    memory(lambda part: part.padded_tokens <= room[0])
    made.model.train()
    for number in range(100):
        given, gradients = batch(number, chance.randrange(4, 12)), []
        for room[0] in (math.inf, chance.uniform(24, given.padded_tokens)):
            made.largest_fitting, made.shortages = 0, []
            made.update([given])
            gradients.append(
                torch.nn.utils.parameters_to_vector(p.grad for p in made.model.parameters())
            )
        assert made.largest_fitting > 0
        assert (gradients[0] - gradients[1]).abs().max() <= 1e-9
    assert made.sums["steps"] == 200


def test_three_in_a_hundred_steps_are_borne_and_four_are_not(memory):
    made, failed = trainer(tiny(), optimizer="sgd"), []
    memory(
        lambda part: made.progress.step in failed or failed.append(made.progress.step)
    )  # each step once
    made.model.train()
    given = batch(1, 64)
    for made.progress.step in (0, 50, 99, 160, 199, 250):
        made.update([given])
    assert made.sums["steps"] == 6
    made.progress.step = 255
    with pytest.raises(UserError, match="out of memory at step 256"):
        made.update([given])


def test_a_run_whose_batches_do_not_fit(tmp_path, train, memory):
    memory(lambda part: part.size <= 3)
    run = train(tmp_path / "run", steps=30)
    assert run.checkpoints()[-1] == "step-00000030"


def test_more_than_three_in_a_hundred_steps_is_told(tmp_path, train, memory):
    steps = []

    def fits(part):
        steps.append(part)
        return len(steps) % 3 > 0

    memory(fits)
    with pytest.raises(UserError, match="out of memory at step") as caught:
        train(tmp_path / "run", steps=30)
    assert "data.batch_tokens" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_sentence_that_does_not_fit_is_told(memory):
    memory(lambda part: False)
    made = trainer(tiny())
    made.model.train()
    with pytest.raises(UserError, match="out of memory at step 1"):
        made.update([batch(1, 8)])


def test_memory_of_the_machine_runs_out(monkeypatch):
    """torch tells of it by a RuntimeError on a CPU; any other RuntimeError is a bug, and
    stays one.
    """
    whole, split = (trainer(tiny().double(), optimizer="sgd") for _ in range(2))
    real, given = Seq2Seq.loss, batch(1, 8)

    def loss(model, part, *args):
        if model is split.model and part.size > 4:
            torch.empty(2**60)
        return real(model, part, *args)

    monkeypatch.setattr(Seq2Seq, "loss", loss)
    whole.update([given])
    split.update([given])
    assert split.sums["loss"] == pytest.approx(whole.sums["loss"], rel=1e-9)
    monkeypatch.setattr(Seq2Seq, "loss", lambda *args: torch.ones(2) @ torch.ones(3))
    with pytest.raises(RuntimeError, match="size"):
        split.update([given])


def test_the_guard_is_saved():
    made, other = trainer(), trainer()
    for made.model.level in (1.0, 2.0, 3.0):
        made.update([BATCH])
    other.from_json(json.loads(json.dumps(made.to_json())))
    assert torch.equal(other.guard.seen, made.guard.seen)
    assert int(other.guard.count) == 3


def test_spikes_that_are_usual_are_no_trouble():
    """A training whose loss often jumps goes on, with its jumps; only ten in a thousand are left
    out.
    """
    chance, made = random.Random(1), trainer(rate=1e-6)
    for step in range(1500):
        made.model.level = math.exp(chance.gauss(0.0, 0.05)) * (
            30.0 if step > 100 and step % 12 == 0 else 1.0
        )
        made.update([BATCH])
    assert 5 <= made.sums["skipped"] <= 22
    assert made.sums["broken"] == 0


@pytest.mark.parametrize(
    "changes", [{}, {"ema": 0.9}, {"optimizer": "muon"}, {"optimizer": "sgd"}], ids=str
)
def test_back_to_step_0_is_a_new_beginning(
    tmp_path, train, poison, monkeypatch, digests, log, changes
):
    """Ten good steps, eleven bad ones, no checkpoint yet: what follows is what a run with half the
    rate would be.
    """
    seen = []

    def where(step):
        seen.append(step)
        return "loss" if 10 <= step < 21 and seen.count(step) == 1 else ""

    given = {"steps": 30, "save_every": 30, "evaluate_every": 30, "log_every": 7, **changes}
    with monkeypatch.context() as patch:
        poison(where)
        run = train(tmp_path / "troubled", **given)
        assert "back to step 0 with the learning rate × 0.5" in run.said
        real = regard.training.start.make_trainer

        def slower(*args):
            made = real(*args)
            made.progress.factor = 0.5
            return made

        poison(lambda step: "")
        patch.setattr("regard.recipes.fitting.make_trainer", slower)
        fresh = train(tmp_path / "fresh", **given)
    assert digests(run.path) == digests(fresh.path)
    assert log(run.path) == log(fresh.path)
    progress = [
        json.loads(one.checkpoint(one.checkpoints()[-1])["progress.json"]) for one in (run, fresh)
    ]
    assert progress[0]["guard"] == progress[1]["guard"]


def test_back_to_step_0_of_a_fine_tuned_run(tmp_path, train, poison):
    """It begins again with the weights it started from, not with weights drawn from the seed."""
    base = train(tmp_path / "base")
    seen = []

    def where(step):
        seen.append(step)
        return "loss" if 5 <= step < 16 and seen.count(step) == 1 else ""

    poison(where)
    run = train(
        tmp_path / "run",
        start_from=str(base.path),
        steps=20,
        save_every=20,
        log_every=4,
        evaluate_every=20,
        rate=0.0,
    )
    assert "back to step 0" in run.said
    for ours, theirs in zip(
        run.model(run.checkpoints()[-1]).parameters(), base.model().parameters(), strict=True
    ):
        assert torch.equal(ours, theirs)
