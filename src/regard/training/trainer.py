"""The loop. Flat, visible, and a pure function of (config, data, step): stopping anywhere and going on changes nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from regard.config import TrainConfig
from regard.data.batches import Batch
from regard.errors import UserError
from regard.models import Seq2Seq
from regard.training.optimizer import make_optimizer
from regard.training.schedule import make_rate

Validate = Callable[[Seq2Seq], Mapping[str, float]]
"""A look at the dev data: at least loss and accuracy."""


@dataclass
class Window:
    """Sums since the last line of the log."""

    loss: float = 0.0
    nll: float = 0.0
    correct: float = 0.0
    tokens: int = 0
    source_tokens: int = 0
    examples: int = 0
    norm: float = 0.0
    steps: int = 0


@dataclass
class Progress:
    """Where training stands; written into every checkpoint, so a resumed run goes on as if nothing had happened."""

    step: int = 0
    seconds: float = 0.0
    best: float = math.inf
    """Of the metric, turned so that smaller is better."""
    best_name: str = ""
    waited: int = 0
    """Looks at the dev data since the best."""
    finished: bool = False
    window: Window = field(default_factory=Window)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Progress:
        return cls(**{**values, "window": Window(**values["window"])})


class Trainer:
    """Batches -> weights. Knows the model only by its loss; `validate` and `save` are handed in."""

    def __init__(
        self, model: Seq2Seq, batches: Callable[[int], Batch], c: TrainConfig, *, steps: int, device: torch.device
    ) -> None:
        self.model, self.batches, self.c, self.steps, self.device = model, batches, c, steps, device
        self.optimizer = make_optimizer(model, c)
        self.rate = make_rate(c, steps)
        self.progress = Progress()
        self._logged_at = 0.0

    def start_clock(self) -> None:
        """Rates of the log are counted from here."""
        self._logged_at = self.progress.seconds

    def update(self, parts: Sequence[Batch]) -> None:
        """One step over several batches: losses are summed over all their tokens and divided once."""
        step, c, window = self.progress.step, self.c, self.progress.window
        torch.manual_seed(int(np.random.SeedSequence([c.seed, step]).generate_state(1, np.uint64)[0] >> 1))
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(step)
        self.optimizer.zero_grad(set_to_none=True)
        tokens = sum(part.tokens for part in parts)
        for part in parts:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=c.precision == "bf16"):
                sums = self.model.loss(part.to(self.device), c.smoothing)
            (sums.loss / tokens).backward()
            window.loss += float(sums.loss.detach())
            window.nll += float(sums.nll)
            window.correct += float(sums.correct)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), c.clip or math.inf)
        self.optimizer.step()
        window.norm += float(norm)
        window.tokens += tokens
        window.source_tokens += sum(part.source_tokens for part in parts)
        window.examples += sum(part.size for part in parts)
        window.steps += 1
        self.progress.step += 1
        if not math.isfinite(window.loss):
            raise UserError(f"the loss is no longer a number at step {step + 1}: lower train.rate (now {c.rate}) and start again")

    def fit(
        self,
        *,
        validate: Validate | None,
        save: Callable[[], object],
        log: Callable[..., None],
        tick: Callable[[Progress], None],
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Train to the end, or until stop() says so. save() keeps everything; tick() is called after each step."""
        c, p = self.c, self.progress
        self.model.train()
        last = time.monotonic()
        while p.step < self.steps and not p.finished:
            first = p.step * c.accumulate
            self.update([self.batches(first + i) for i in range(c.accumulate)])
            now = time.monotonic()
            p.seconds, last = p.seconds + now - last, now
            out_of_time = c.minutes > 0 and p.seconds >= 60 * c.minutes
            end = p.step == self.steps or out_of_time
            if p.step % c.log_every == 0 or end:
                self._log_window(log)
            better = False
            if validate is not None and (p.step % c.evaluate_every == 0 or end):
                better = self._look(validate, log)
                p.finished = c.patience > 0 and p.waited >= c.patience
            p.finished = p.finished or end
            if better:
                p.best_name = f"step-{p.step:08d}"
            tick(p)
            asked = stop()
            if p.step % c.save_every == 0 or p.finished or better or asked:
                save()
            if asked:
                break
        self.model.eval()

    def _log_window(self, log: Callable[..., None]) -> None:
        p, w = self.progress, self.progress.window
        seconds = max(1e-9, p.seconds - self._logged_at)
        self._logged_at = p.seconds
        log(
            "train",
            step=p.step,
            loss=w.nll / w.tokens,
            objective=w.loss / w.tokens,
            accuracy=w.correct / w.tokens,
            norm=w.norm / w.steps,
            rate=self.rate(p.step - 1),
            seconds=round(p.seconds, 3),
            tokens_per_second=round((w.tokens + w.source_tokens) / seconds, 1),
            examples_per_second=round(w.examples / seconds, 1),
        )
        p.window = Window()

    def _look(self, validate: Validate, log: Callable[..., None]) -> bool:
        """Judge the model on dev; True if it is the best so far."""
        p = self.progress
        self.model.eval()
        found = validate(self.model)
        self.model.train()
        log("dev", step=p.step, **found)
        better = self.better(found)
        p.waited = 0 if better else p.waited + 1
        return better

    def better(self, found: Mapping[str, float]) -> bool:
        """Is this look at dev the best so far? If so, it is the one to beat from now on."""
        value = found[self.c.metric] if self.c.metric == "loss" else -found[self.c.metric]
        if value >= self.progress.best:
            return False
        self.progress.best = value
        return True
