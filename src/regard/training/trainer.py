"""The training loop: flat, visible, and a pure function of config, data and step.

Stopping anywhere and going on changes nothing.
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.config import TrainConfig
from regard.errors import Failed
from regard.models import Learner, Sums
from regard.nn.devices import float_for_sums, is_out_of_memory, seed_device
from regard.nn.precision import at_least_single
from regard.runs.weights import set_weights, whole
from regard.training.batch import Feed, TrainingBatch
from regard.training.guard import Guard
from regard.training.optimizer import has_fused_step, make_optimizer
from regard.training.parallel import World, gathered, postpone_sync
from regard.training.paths import capture, prepare
from regard.training.schedule import make_rate
from regard.training.tensors import divide, move_towards

Validate = Callable[[Any], Mapping[str, float]]
"""A look at the dev data with the model, of whatever kind it is: at least loss and accuracy."""
Log = Callable[..., None]
"""log(kind, **values)"""
Decide = Callable[[int, int], None]
"""decide(start, end): note the steps of the decay where every resumed training will find them."""
GoBack = Callable[[], None]
"""go_back(): load the checkpoint from which the decay that was decided begins."""
FindBest = Callable[[], int]
"""find_best(): the step of the best checkpoint, if training can go on from it; else 0."""

DECAY = 0.2
"""Share of a training with schedule=wsd over which its learning rate falls to zero."""
LEAST_DECAY = 0.05
"""The same, of the steps so far, if no time is left for more."""
WORSE = 0.002
"""How much worse than its best dev has to be, as a share of it, for the decay to begin there."""

# What is summed on the device between two lines of the log.
COUNTED = ("loss", "nll", "correct", "examples", "tokens", "norm", "steps", "skipped", "broken")

# Steps of the last thousand that may be left out because they were not finite.
MOST_BROKEN = 10

# Steps of the last hundred at which memory may run out before training gives up.
MOST_SHORTAGES = 3


class Trouble(Exception):
    """Too many steps were not finite: go back to a healthy checkpoint, with a lower rate."""


@dataclass
class Progress:
    """Where training stands; written into every checkpoint, so that a resumed run just goes on."""

    step: int = 0
    seconds: float = 0.0
    best: float = math.inf
    """The best value of the metric so far, turned so that smaller is better."""
    best_name: str = ""
    latest: float = math.inf
    """The same of the last look at the dev data."""
    waited: int = 0
    """Looks at the dev data since the best."""
    finished: bool = False
    factor: float = 1.0
    """Of the learning rate. Each time training has to go back, it is halved."""
    skipped: list[tuple[int, int]] = field(default_factory=list)
    """(step, count) for lines of the log: how many steps before it were not finite."""
    tokens_read: int = 0
    """Since the last line of the log."""
    logged_at: float = 0.0
    """Seconds at the last line of the log."""
    given_up: int = 0
    """Steps that were trained beyond the best, and given up when training went back to it."""


Tick = Callable[[Progress], None]


class Trainer:
    """Batches -> weights.

    Knows a model by its loss only, and a batch by what `TrainingBatch` names. How to validate, save
    and log is handed to `fit`. epoch_steps: steps that make an epoch, for the log, which tells no
    epochs without.
    """

    def __init__(
        self,
        model: Learner,
        batches: Feed,
        config: TrainConfig,
        *,
        steps: int,
        device: torch.device,
        world: World | None = None,
        epoch_steps: float | None = None,
    ) -> None:
        self.model = model
        self.batches = batches
        self.config = config
        self.steps = config.decay_end or steps
        self.epoch_steps = epoch_steps
        self.milestones = {steps >> halvings for halvings in range(1, config.milestones + 1)}
        self.device = device
        self.world = world or World(device=device)

        # A graph cannot ask the host whether to step: that takes an optimiser which decides itself.
        has_graphs = config.path in ("captured", "compiled") and device.type == "cuda"
        has_graphs = has_graphs and self.world.size == 1 and has_fused_step(config, device)
        self.loss = self.world.wrap(model, config.strategy, self._loss)
        self.weights = list(model.parameters())
        self.optimizer = make_optimizer(model, config, captured=has_graphs)
        self.rate = make_rate(config, self.steps)
        self.has_decay = config.decay_end > 0 or config.schedule != "wsd"
        self.captured = capture(self._step) if has_graphs else None

        self.progress = Progress()
        self.guard = Guard(config.spike, device)
        self.totals = torch.zeros(len(COUNTED), dtype=float_for_sums(device), device=device)
        self.ema: dict[str, Tensor] = {}
        if config.ema:
            self.ema = {name: p.detach().clone() for name, p in model.named_parameters()}

        # The largest batch, in tokens with padding, that fits into memory; 0: all did so far.
        self.largest_fitting = 0
        # Steps at which memory ran out.
        self.shortages: list[int] = []

    @property
    def sums(self) -> dict[str, float]:
        """What was summed since the last line of the log; waits for the device."""
        return dict(zip(COUNTED, self.totals.tolist(), strict=True))

    # one step

    def update(self, batches: Sequence[TrainingBatch]) -> None:
        """One step over several batches, as if they were one.

        Losses are summed over all their tokens and divided once. With a fused optimiser the host
        does not wait for the GPU.
        """
        self._seed()
        self._set_rate()
        ready = [self.ready(batch) for batch in batches]
        if self.captured is None or len(ready) > 1 or not self._fits(ready[0]):
            self._step(ready, sum(batch.tokens for batch in batches))
        else:
            self._replay(ready[0])
        if self.ema:
            self._average()

        self.progress.tokens_read += sum(batch.tokens_read for batch in batches)
        self.progress.step += 1

    def ready(self, batch: TrainingBatch) -> TrainingBatch:
        """The batch on the device, with all that the path needs, unless it is there already."""
        if batch.device.type == self.device.type:
            return batch
        return prepare(batch, self.config.path, self.device)

    def _replay(self, batch: TrainingBatch) -> None:
        """One step as a CUDA graph. If there is no room to record it: in halves, without one."""
        assert self.captured is not None
        try:
            self.captured(batch)
        except torch.OutOfMemoryError:
            self._seed()
            self._step(self._halved([batch]), batch.tokens)

    def _seed(self) -> None:
        """Dropout depends on seed, step and rank alone, so that a resumed run draws the same."""
        entropy = [self.config.seed, self.progress.step, self.world.rank]
        words = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
        seed_device(self.device, int(words[0] >> 1))

    def _set_rate(self) -> None:
        progress = self.progress
        for group in self.optimizer.param_groups:
            rate = self.rate(progress.step) * progress.factor
            if isinstance(group["lr"], Tensor):  # a captured graph reads it from there
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _step(self, batches: Sequence[TrainingBatch], tokens: int | Tensor) -> None:
        sums = self._gradient(list(batches), tokens)  # (4,)
        self.world.sum(sums)
        gradients = [p.grad for p in self.weights if p.grad is not None]
        norm = whole(torch.nn.utils.get_total_norm(gradients, foreach=None))
        bad, broken = self.guard.refuses(sums[0] / tokens, norm)
        self._apply(gradients, norm, bad)

        count = tokens if isinstance(tokens, Tensor) else norm.new_full((), tokens)
        counted = torch.cat((sums, torch.stack((count, norm, torch.ones_like(norm)))))  # (7,)
        counted = counted.to(self.totals.dtype)
        self.totals[:-2] += torch.where(bad > 0, 0.0, counted)  # not a product: 0 × nan is nan
        self.totals[-2:] += torch.stack((bad, broken))

    def _gradient(self, batches: list[TrainingBatch], tokens: int | Tensor) -> Tensor:
        """The gradient of summed loss / tokens; returns the first four of COUNTED.

        When memory runs out, the batches are computed again in halves, with the same sum.
        """
        batches = [piece for batch in batches for piece in self._fitting(batch)]
        while True:
            self.optimizer.zero_grad(set_to_none=True)
            try:
                return self._backward(batches, tokens)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not is_out_of_memory(error) or _is_capturing():
                    raise
            # Outside of the `except`, whose error would keep the failed graph in memory.
            batches = self._halved(batches)
            self._seed()  # as if the batches had been split from the start

    def _backward(self, batches: list[TrainingBatch], tokens: int | Tensor) -> Tensor:
        dtype = at_least_single(self.weights[0].dtype)
        total = torch.zeros(4, dtype=dtype, device=self.device)
        for number, batch in enumerate(batches, 1):
            postpone_sync(self.loss, number < len(batches))
            sums = self.loss(batch)
            (sums.loss * self.world.size / tokens).backward()
            examples = batch.count_examples()
            total += torch.stack((sums.loss.detach(), sums.nll, sums.correct, examples))
        return total

    def _loss(self, model: Learner, batch: TrainingBatch) -> Sums:
        config = self.config
        with torch.autocast(self.device.type, torch.bfloat16, enabled=config.precision == "bf16"):
            if config.rdrop:
                return model.rdrop(batch, config.smoothing, config.rdrop)
            return model.loss(batch, config.smoothing)

    def _fitting(self, batch: TrainingBatch) -> list[TrainingBatch]:
        """The batch in as many pieces as it takes for each to fit into memory."""
        if self._fits(batch):
            return [batch]
        return [piece for half in self._halves(batch) for piece in self._fitting(half)]

    def _fits(self, batch: TrainingBatch) -> bool:
        """Whether the batch is computed in one piece."""
        limit = self.largest_fitting
        return limit == 0 or batch.padded_tokens <= limit or batch.size == 1

    def _halved(self, batches: Sequence[TrainingBatch]) -> list[TrainingBatch]:
        """Memory ran out: smaller batches. From now on those as large are split beforehand."""
        step = self.progress.step
        largest = max(batch.padded_tokens for batch in batches)
        recent = {s for s in self.shortages if s > step - 100}
        self.shortages = sorted(recent | {step})
        cannot_split = all(batch.size == 1 for batch in batches) or self.world.size > 1
        if len(self.shortages) > MOST_SHORTAGES or cannot_split:
            raise Failed(
                f"out of memory at step {step + 1}: lower data.batch_tokens or data.max_length, "
                f"or use a smaller model"
            )

        self.optimizer.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.largest_fitting = min(self.largest_fitting or largest, largest - 1)
        return [half for batch in batches for half in self._halves(batch)]

    def _halves(self, batch: TrainingBatch) -> list[TrainingBatch]:
        return [prepare(half, self.config.path, self.device) for half in batch.to("cpu").split()]

    def _apply(self, gradients: list[Tensor], norm: Tensor, bad: Tensor) -> None:
        """Clip and step, unless the guard refuses.

        Fused optimisers divide the gradient by `grad_scale` themselves; on a GPU they also leave
        the weights alone where `found_inf` is 1, so that the host need not know. Otherwise the host
        asks, divides and steps.
        """
        excess = torch.ones_like(norm)
        if self.config.clip:
            excess = (norm / self.config.clip).clamp(min=1.0)
        by_kernel = has_fused_step(self.config, self.device)
        if by_kernel:
            # The kernel takes float32 only.
            self.optimizer.grad_scale = excess.float()  # type: ignore[attr-defined]

        if by_kernel and self.device.type == "cuda":
            self.optimizer.found_inf = bad  # type: ignore[attr-defined]
            self.optimizer.step()
        elif not float(bad):
            if not by_kernel and float(excess) > 1:
                divide(gradients, float(excess))
            self.optimizer.step()

    def _average(self) -> None:
        """Move the moving average towards the weights.

        At first it follows faster than `train.ema` says, so that what it averages is on average no
        older than a tenth of the steps so far: the first weights, random ones, are soon forgotten.
        """
        step = self.progress.step
        share = max(1 - self.config.ema, 9 / (10 + step))
        weights = [p.detach() for p in self.model.parameters()]
        move_towards(list(self.ema.values()), weights, share)

    # many steps

    def fit(
        self,
        *,
        validate: Validate | None,
        save: Callable[[], Any],
        log: Log,
        tick: Tick,
        stop: Callable[[], bool],
        decide: Decide | None = None,
        find_best: FindBest | None = None,
        go_back: GoBack | None = None,
    ) -> None:
        """Train to the end, or until stop() says so.

        save() keeps everything; tick() is called after each step. decide() is called once in a
        training with schedule=wsd, before the first step of its decay. If dev has become worse by
        then, and find_best() knows a checkpoint, the decay begins at that one: go_back() is called
        after decide().
        """
        config = self.config
        progress = self.progress
        self.model.train()
        last = time.monotonic()
        while progress.step < self.steps and not progress.finished:
            if self._is_time_to_decay():
                self._begin_decay(save, decide, find_best, go_back)
                config = self.config
            first = progress.step * config.accumulate
            self.update([self.batches(first + i) for i in range(config.accumulate)])
            now = time.monotonic()
            progress.seconds += now - last
            last = now

            is_end = progress.step == self.steps or self.is_out_of_time()
            if progress.step % config.log_every == 0 or is_end:
                self._log_window(log)

            is_better = False
            if validate is not None and (progress.step % config.evaluate_every == 0 or is_end):
                is_better = self._look(validate, log)
            progress.finished = is_end or self.is_out_of_patience()
            tick(progress)

            is_stopped = self.world.any(stop())
            is_due = progress.step % config.save_every == 0 or progress.finished
            is_due = is_due or progress.step in self.milestones
            if is_due or is_better or is_stopped:
                save()
            if is_stopped:
                break
        self.model.eval()

    def epoch(self) -> dict[str, float]:
        """How many times training has read the data, for a line of the log, where it is known."""
        if self.epoch_steps is None:
            return {}
        return {"epoch": round(self.progress.step / self.epoch_steps, 4)}

    # when it ends

    def is_over(self) -> bool:
        """Whether training has come to its end, by the settings of today."""
        at_end = self.progress.step >= self.steps
        return at_end or self.is_out_of_patience() or self.is_out_of_time()

    def is_out_of_patience(self) -> bool:
        """Whether dev has not improved for so long that training ends.

        With schedule=wsd it does not end then: the learning rate begins to fall.
        """
        return self.config.schedule != "wsd" and self.has_waited()

    def is_out_of_time(self) -> bool:
        """Whether `train.minutes` are over, for one process at least.

        With schedule=wsd the decay is told in steps when the time is nearly over, and they are
        taken, so that training can be repeated.
        """
        if not self.config.minutes or self.config.schedule == "wsd":
            return False
        return self.world.any(self.progress.seconds >= 60 * self.config.minutes)

    def has_waited(self) -> bool:
        """Whether dev has not improved for `train.patience` evaluations."""
        return 0 < self.config.patience <= self.progress.waited

    def seconds_left(self) -> float:
        """Seconds until `train.minutes` are over; infinite where they end nothing.

        Once the decay of schedule=wsd is decided, its steps are taken, however long they take.
        """
        config = self.config
        if not config.minutes or (config.schedule == "wsd" and self.has_decay):
            return math.inf
        return 60 * config.minutes - self.progress.seconds

    def is_late(self) -> bool:
        """Whether only the time for the decay is left of `train.minutes`."""
        minutes = self.config.minutes
        return minutes > 0 and self.progress.seconds >= (1 - DECAY) * 60 * minutes

    def _is_time_to_decay(self) -> bool:
        """Whether the learning rate begins to fall with the next step, and nobody said so yet."""
        if self.has_decay or self.progress.step == 0:
            return False
        few_left = self.progress.step >= (1 - DECAY) * self.steps
        return self.world.any(few_left or self.is_late() or self.has_waited())

    def _begin_decay(
        self,
        save: Callable[[], Any],
        decide: Decide | None,
        find_best: FindBest | None,
        go_back: GoBack | None,
    ) -> None:
        """Decide where the decay begins and how long it takes, and note it before its first step.

        It begins here, or where dev was best if it has become worse since. There is a checkpoint of
        that step: without it, nobody could go back to it later.
        """
        now = self.progress.step
        start = now
        if find_best is not None and go_back is not None and self._is_past_its_best():
            best = find_best()
            # What was best in the first steps, when the rate was still rising, was so by chance.
            if max(1, 2 * self.config.warmup) <= best < now:
                start = best

        end = int(self.world.tell(str(start + self._decay_steps(start))))
        if start == now:
            save()
        if decide is not None:
            decide(start, end)
        self.set_decay(start, end)
        if go_back is not None and start < now:
            go_back()
            self.progress.given_up = now - start

    def _is_past_its_best(self) -> bool:
        """Whether dev has not only stopped improving, but become worse: overfitting."""
        progress = self.progress
        is_known = math.isfinite(progress.latest)  # older versions did not note it
        is_worse = progress.latest - progress.best > WORSE * abs(progress.best)
        return self.has_waited() and is_known and is_worse

    def _decay_steps(self, start: int) -> int:
        """A quarter of the steps before it, which makes a fifth of all; fewer if time is short.

        But not so few that the rate would fall at once, even if the time is over.
        """
        progress = self.progress
        steps = min(self.steps - start, round(start * DECAY / (1 - DECAY)))
        if self.config.minutes:
            left = 60 * self.config.minutes - progress.seconds
            pace = progress.seconds / progress.step
            in_time = max(round(left / max(pace, 1e-9)), round(LEAST_DECAY * start))
            steps = min(steps, in_time)
        return max(1, steps)

    def set_decay(self, start: int, end: int) -> None:
        """Let the learning rate fall from one step to another, at which training ends."""
        self.config = replace(self.config, decay_start=start, decay_end=end)
        self.steps = end
        self.rate = make_rate(self.config, end)
        self.has_decay = True

    def decay_of(self, step: int) -> int:
        """The last step of the decay that this step is part of; 0: it comes before any decay."""
        return self.config.decay_end if step > self.config.decay_start else 0

    def _log_window(self, log: Log) -> None:
        """Log means and speed since the last line. Raises Trouble if training is not healthy."""
        progress = self.progress
        sums = self.sums
        seconds = max(1e-9, progress.seconds - progress.logged_at)
        tokens = max(1.0, sums["tokens"])
        steps = max(1.0, sums["steps"])
        skipped = {"skipped": int(sums["skipped"])} if sums["skipped"] else {}
        log(
            "train",
            step=progress.step,
            **self.epoch(),
            loss=sums["nll"] / tokens,
            objective=sums["loss"] / tokens,
            accuracy=sums["correct"] / tokens,
            norm=sums["norm"] / steps,
            rate=self.rate(progress.step - 1) * progress.factor,
            **skipped,
            seconds=round(progress.seconds, 3),
            tokens_per_second=round(progress.tokens_read / seconds, 1),
            examples_per_second=round(sums["examples"] / seconds, 1),
        )

        progress.logged_at = progress.seconds
        self.totals.zero_()
        progress.tokens_read = 0
        progress.skipped = [(s, count) for s, count in progress.skipped if s > progress.step - 1000]
        if sums["broken"]:
            progress.skipped.append((progress.step, int(sums["broken"])))
        if sum(count for _, count in progress.skipped) > MOST_BROKEN:
            raise Trouble

    def _look(self, validate: Validate, log: Log) -> bool:
        """Judge the model on dev; True if it is the best so far."""
        progress = self.progress
        self.model.eval()
        scores = self.averaged(lambda: validate(self.model))
        scores = json.loads(self.world.tell(json.dumps(scores)))  # so that all decide alike
        self.model.train()
        log("dev", step=progress.step, **self.epoch(), **scores)
        if not self.better(scores):
            progress.waited += 1
            return False
        progress.waited = 0
        progress.best_name = f"step-{progress.step:08d}"
        return True

    def averaged(self, look: Callable[[], Any]) -> Any:
        """look(), with the moving average in place of the weights, where one is kept."""
        raw: dict[str, Tensor] = {}
        if self.ema:
            raw = {name: p.detach().clone() for name, p in self.model.named_parameters()}
            self._put(self.ema)
        try:
            with gathered(self.loss):
                return look()
        finally:
            self._put(raw)

    @torch.no_grad()
    def _put(self, weights: Mapping[str, Tensor]) -> None:
        for name, weight in weights.items():
            self.model.get_parameter(name).copy_(weight)

    def better(self, scores: Mapping[str, float]) -> bool:
        """Whether these dev scores are the best so far; if so, they are the ones to beat."""
        metric = self.config.metric
        scores = {"step": self.progress.step, **scores}
        value = scores[metric] if metric == "loss" else -scores[metric]
        self.progress.latest = value
        if value >= self.progress.best:
            return False
        self.progress.best = value
        return True

    # going on

    @torch.no_grad()
    def restart(self, weights: Mapping[str, Tensor]) -> None:
        """Back to step 0 with these weights, as if nothing had been learned.

        Only the rate's factor stays. Everything is changed in its place: a captured graph knows no
        other.
        """
        set_weights(self.model, weights, "the initial weights")
        for name, parameter in self.model.named_parameters():
            for value in self.optimizer.state.get(parameter, {}).values():
                if isinstance(value, Tensor):
                    value.zero_()
            if self.ema:
                self.ema[name].copy_(parameter)
        self.guard.reset()
        self.totals.zero_()
        self._set_progress(vars(Progress(factor=self.progress.factor)))

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self.progress),
            "decay_end": self.decay_of(self.progress.step),
            "totals": self.totals.tolist(),
            "guard": self.guard.to_json(),
        }

    def from_json(self, values: Mapping[str, Any]) -> None:
        self.totals.copy_(torch.tensor(values["totals"], dtype=torch.float64))
        self.guard.from_json(values["guard"])
        skipped = [tuple(entry) for entry in values["skipped"]]
        # A checkpoint of an older version does not know when the last line was written.
        self._set_progress({"logged_at": values["seconds"], **values, "skipped": skipped})

    def _set_progress(self, values: Mapping[str, Any]) -> None:
        """Change the progress in its place: others hold on to this object."""
        for entry in fields(Progress):
            if entry.name in values:
                setattr(self.progress, entry.name, values[entry.name])


def _is_capturing() -> bool:
    """Whether a CUDA graph is being recorded, in which nothing may be split or waited for."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
