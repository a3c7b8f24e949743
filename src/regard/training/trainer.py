"""The loop. Flat, visible, and a pure function of (config, data, step): stopping anywhere and going
on changes nothing.
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.config import TrainConfig
from regard.data.batches import Batch, Feed
from regard.errors import Failed
from regard.models import Seq2Seq, Sums
from regard.nn.devices import float_for_sums, seed_device
from regard.nn.precision import at_least_single
from regard.runs.weights import set_weights, whole
from regard.text.vocabulary import PAD
from regard.training.guard import Guard
from regard.training.optimizer import has_fused_step, make_optimizer
from regard.training.parallel import World, gathered
from regard.training.paths import capture, prepare
from regard.training.schedule import make_rate
from regard.training.tensors import divide, move_towards

Validate = Callable[
    [Seq2Seq], Mapping[str, float]
]  # a look at the dev data: at least loss and accuracy
Log = Callable[..., None]  # of the kind of record, and its values by name
# What is summed on the device between two lines of the log.
COUNTED = ("loss", "nll", "correct", "examples", "tokens", "norm", "steps", "skipped", "broken")


class Trouble(Exception):
    """Too many steps in a row had to be left out: go back to a healthy checkpoint, with a lower
    rate.
    """


@dataclass
class Progress:
    """Where training stands; written into every checkpoint, so a resumed run goes on as if nothing
    had happened.
    """

    step: int = 0
    seconds: float = 0.0
    best: float = math.inf  # of the metric, turned so that smaller is better
    best_name: str = ""
    waited: int = 0  # looks at the dev data since the best
    finished: bool = False
    factor: float = 1.0  # of the learning rate; each time training had to go back it is halved
    # (step, how many): steps of the last thousand that were not finite, counted at each line of the
    # log
    skipped: list[tuple[int, int]] = field(default_factory=list)
    source_tokens: int = 0  # since the last line of the log


Tick = Callable[[Progress], None]


class Trainer:
    """Batches -> weights. Knows the model only by its loss; `validate` and `save` are handed in."""

    def __init__(
        self,
        model: Seq2Seq,
        batches: Feed,
        c: TrainConfig,
        *,
        steps: int,
        device: torch.device,
        world: World | None = None,
    ) -> None:
        self.model, self.batches, self.c, self.steps, self.device = model, batches, c, steps, device
        self.world = world or World(device=device)
        graphs = (
            c.path in ("captured", "compiled") and device.type == "cuda" and self.world.size == 1
        )
        self.loss = self.world.wrap(model, c.strategy, self._loss)
        self.weights = list(model.parameters())
        self.optimizer = make_optimizer(model, c, captured=graphs)
        self.rate = make_rate(c, steps)
        self.progress = Progress()
        self.guard = Guard(c.spike, device)
        self.totals = torch.zeros(len(COUNTED), dtype=float_for_sums(device), device=device)
        self.ema = (
            {name: p.detach().clone() for name, p in model.named_parameters()} if c.ema else {}
        )
        self.captured = capture(self._step) if graphs else None
        self.most = (
            0  # largest batch, in places, that fits into memory; 0: none was too large so far
        )
        self.short: list[int] = []  # steps at which memory ran out
        self._logged_at = 0.0

    @property
    def sums(self) -> dict[str, float]:
        """What was summed since the last line of the log; asks the device."""
        return dict(zip(COUNTED, self.totals.tolist(), strict=True))

    # one step

    def update(self, parts: Sequence[Batch]) -> None:
        """One step over several batches: losses are summed over all their tokens and divided once.
        Nobody waits for a GPU.
        """
        p, c = self.progress, self.c
        words = np.random.SeedSequence([c.seed, p.step, self.world.rank]).generate_state(
            1, np.uint64
        )
        seed_device(self.device, int(words[0] >> 1))
        for group in self.optimizer.param_groups:
            rate = self.rate(p.step) * p.factor * group.get("share", 1.0)
            group["lr"] = group["lr"].fill_(rate) if isinstance(group["lr"], Tensor) else rate
        ready = [
            part
            if part.source.device.type == self.device.type
            else prepare(part, c.path, self.device)
            for part in parts
        ]
        if self.captured is not None and len(ready) == 1:
            self.captured(ready[0])
        else:
            self._step(ready, sum(part.tokens for part in parts))
        p.source_tokens += sum(part.source_tokens for part in parts)
        p.step += 1

    def _step(self, parts: Sequence[Batch], tokens: int | Tensor) -> None:
        sums = self._gradient(list(parts), tokens)
        self.world.sum(sums)
        gradients = [p.grad for p in self.weights if p.grad is not None]
        norm = whole(torch.nn.utils.get_total_norm(gradients, foreach=None))
        bad, broken = self.guard.refuses(sums[0] / tokens, norm)
        self._apply(gradients, norm, bad)
        count = tokens if isinstance(tokens, Tensor) else norm.new_full((), tokens)
        counted = torch.cat((sums, torch.stack((count, norm, torch.ones_like(norm))))).to(
            self.totals.dtype
        )
        self.totals[:-2] += torch.where(bad > 0, 0.0, counted)  # not a product: 0 × nan is nan
        self.totals[-2:] += torch.stack((bad, broken))

    def _gradient(self, parts: list[Batch], tokens: int | Tensor) -> Tensor:
        """Gradient of summed loss / tokens; gives (loss, nll, correct, examples). Out of memory:
        again in halves, same sum.
        """
        parts = [piece for part in parts for piece in self._fitting(part)]
        while True:
            self.optimizer.zero_grad(set_to_none=True)
            total = torch.zeros(4, dtype=at_least_single(self.weights[0].dtype), device=self.device)
            try:
                for number, part in enumerate(parts):
                    if isinstance(
                        self.loss, torch.nn.parallel.DistributedDataParallel
                    ):  # processes add up at the last part
                        self.loss.require_backward_grad_sync = number + 1 == len(parts)
                    sums = self.loss(part)
                    (sums.loss * self.world.size / tokens).backward()
                    real = (
                        part.target[:, 1] != PAD
                    ).sum()  # some rows are only there to fill a shape
                    total += torch.stack((sums.loss.detach(), sums.nll, sums.correct, real))
                return total
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not isinstance(
                    error, torch.OutOfMemoryError
                ) and "can't allocate memory" not in str(error):
                    raise
                parts = self._halved(parts)

    def _loss(self, model: Seq2Seq, part: Batch) -> Sums:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.c.precision == "bf16"):
            if self.c.rdrop:
                return model.rdrop(part, self.c.smoothing, self.c.rdrop)
            return model.loss(part, self.c.smoothing)

    def _fitting(self, part: Batch) -> list[Batch]:
        if not self.most or places(part) <= self.most or part.size == 1:
            return [part]
        return [piece for half in self._halves(part) for piece in self._fitting(half)]

    def _halved(self, parts: Sequence[Batch]) -> list[Batch]:
        """Memory ran out: smaller parts; and from now on what is as large is split beforehand."""
        step, largest = self.progress.step, max(places(part) for part in parts)
        self.short = sorted({s for s in self.short if s > step - 100} | {step})
        if len(self.short) > 3 or all(part.size == 1 for part in parts) or self.world.size > 1:
            raise Failed(
                f"out of memory at step {step + 1}: lower data.batch_tokens or data.max_length, "
                f"or use a smaller model"
            )
        self.optimizer.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.most = min(self.most or largest, largest - 1)
        return [half for part in parts for half in self._halves(part)]

    def _halves(self, part: Batch) -> list[Batch]:
        return [prepare(half, self.c.path, self.device) for half in part.to("cpu").split()]

    def _apply(self, gradients: list[Tensor], norm: Tensor, bad: Tensor) -> None:
        """Clip and step, unless the guard refuses. Fused optimisers do all of it on the device."""
        excess = (norm / self.c.clip).clamp(min=1.0) if self.c.clip else torch.ones_like(norm)
        by_kernel = has_fused_step(self.c, self.device)
        if by_kernel:
            self.optimizer.grad_scale = excess.float()  # type: ignore[attr-defined]  # the kernel takes no other
        if by_kernel and self.device.type == "cuda":
            self.optimizer.found_inf = bad  # type: ignore[attr-defined]
            self.optimizer.step()
        elif not float(bad):
            if not by_kernel and float(excess) > 1:
                divide(gradients, float(excess))
            self.optimizer.step()
        if self.ema:
            now = [p.detach() for p in self.model.parameters()]
            move_towards(list(self.ema.values()), now, 1 - self.c.ema)

    # many steps

    def fit(
        self,
        *,
        validate: Validate | None,
        save: Callable[[], Any],
        log: Log,
        tick: Tick,
        stop: Callable[[], bool],
    ) -> None:
        """Train to the end, or until stop() says so. save() keeps everything; tick() is called
        after each step.
        """
        c, p = self.c, self.progress
        self.model.train()
        last = time.monotonic()
        while p.step < self.steps and not p.finished:
            first = p.step * c.accumulate
            self.update([self.batches(first + i) for i in range(c.accumulate)])
            now = time.monotonic()
            p.seconds, last = p.seconds + now - last, now
            out_of_time = (
                self.world.any(c.minutes > 0 and p.seconds >= 60 * c.minutes)
                if c.minutes
                else False
            )
            end = p.step == self.steps or out_of_time
            if p.step % c.log_every == 0 or end:
                self._log_window(log)
            better = False
            if validate is not None and (p.step % c.evaluate_every == 0 or end):
                better = self._look(validate, log)
                p.finished = 0 < c.patience <= p.waited
            p.finished = p.finished or end
            tick(p)
            asked = self.world.any(stop())
            if p.step % c.save_every == 0 or p.finished or better or asked:
                save()
            if asked:
                break
        self.model.eval()

    def _log_window(self, log: Log) -> None:
        p, sums = self.progress, self.sums
        seconds = max(1e-9, p.seconds - self._logged_at)
        self._logged_at = p.seconds
        tokens, steps, skipped = (
            max(1.0, sums["tokens"]),
            max(1.0, sums["steps"]),
            int(sums["skipped"]),
        )
        log(
            "train",
            step=p.step,
            loss=sums["nll"] / tokens,
            objective=sums["loss"] / tokens,
            accuracy=sums["correct"] / tokens,
            norm=sums["norm"] / steps,
            rate=self.rate(p.step - 1) * p.factor,
            **({"skipped": skipped} if skipped else {}),
            seconds=round(p.seconds, 3),
            tokens_per_second=round((sums["tokens"] + p.source_tokens) / seconds, 1),
            examples_per_second=round(sums["examples"] / seconds, 1),
        )
        self.totals.zero_()
        p.source_tokens = 0
        broken = int(sums["broken"])
        p.skipped = [(s, n) for s, n in p.skipped if s > p.step - 1000] + (
            [(p.step, broken)] if broken else []
        )
        if sum(n for _, n in p.skipped) > 10:
            raise Trouble

    def _look(self, validate: Validate, log: Log) -> bool:
        """Judge the model on dev; True if it is the best so far."""
        p = self.progress
        self.model.eval()
        found = json.loads(
            self.world.tell(json.dumps(self.averaged(lambda: validate(self.model))))
        )  # all decide alike
        self.model.train()
        log("dev", step=p.step, **found)
        if not self.better(found):
            p.waited += 1
            return False
        p.waited, p.best_name = 0, f"step-{p.step:08d}"
        return True

    def averaged(self, look: Callable[[], Any]) -> Any:
        """look(), with the moving average of the weights in place of the weights, where one is
        kept.
        """
        own = (
            {name: p.detach().clone() for name, p in self.model.named_parameters()}
            if self.ema
            else {}
        )
        self._put(self.ema)
        try:
            with gathered(self.loss):
                return look()
        finally:
            self._put(own)

    @torch.no_grad()
    def _put(self, weights: Mapping[str, Tensor]) -> None:
        for name, parameter in self.model.named_parameters() if weights else ():
            parameter.copy_(weights[name])

    def better(self, found: Mapping[str, float]) -> bool:
        """Is this look at dev the best so far? If so, it is the one to beat from now on."""
        value = found[self.c.metric] if self.c.metric == "loss" else -found[self.c.metric]
        if value >= self.progress.best:
            return False
        self.progress.best = value
        return True

    # going on

    @torch.no_grad()
    def restart(self, weights: Mapping[str, Tensor]) -> None:
        """Back to step 0 with these weights, as if nothing had been learned; only the rate's factor
        stays.

        Everything is changed in its place: a captured graph knows no other.
        """
        set_weights(self.model, weights, "the first weights")
        for name, parameter in self.model.named_parameters():
            for value in self.optimizer.state.get(parameter, {}).values():
                if isinstance(value, Tensor):
                    value.zero_()
            if self.ema:
                self.ema[name].copy_(parameter)
        self.guard.reset()
        self.totals.zero_()
        fresh = Progress(factor=self.progress.factor)
        for name, value in vars(fresh).items():  # others hold on to this object
            setattr(self.progress, name, value)
        self._logged_at = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self.progress),
            "totals": self.totals.tolist(),
            "guard": self.guard.to_json(),
        }

    def from_json(self, values: Mapping[str, Any]) -> None:
        values = {**values, "skipped": [tuple(entry) for entry in values["skipped"]]}
        self.totals.copy_(torch.tensor(values.pop("totals"), dtype=torch.float64))
        self.guard.from_json(values.pop("guard"))
        for name, value in values.items():  # in place: others hold on to this object
            setattr(self.progress, name, value)
        self._logged_at = self.progress.seconds


def places(part: Batch) -> int:
    """How large a batch is, with its padding."""
    return part.source.numel() + part.target.numel()
