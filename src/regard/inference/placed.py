"""A model where it computes: a CPU, or a GPU that repeats its decoding steps as captured graphs."""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batches import collate
from regard.errors import only_fast_is_missing
from regard.inference.room import sentences_that_fit
from regard.models import Seq2Seq
from regard.nn.devices import on_device
from regard.nn.kernels import read_only, writable
from regard.search import Job, Rules, Search, decode
from regard.text.vocabulary import BOS, EOS, PAD

try:
    from regard.models.fast.fixed import fits, reserve
    from regard.search.fast.captured import CapturedSearch
except ModuleNotFoundError as error:
    only_fast_is_missing(error)
    CapturedSearch = None  # type: ignore[assignment,misc]

WORTH = 1e11
"""Source tokens × parameters from which moving to a GPU pays for itself.

The first answer waits some three seconds there, for the driver, the kernels and the graphs, and in
three seconds sixteen cores do about as much (one H200, 2026-11-16).
"""
SMALLER = 4
"""Where a batch does not fit into the GPU's memory, the next try has this part of its tokens."""


def hooked(model: nn.Module) -> bool:
    """Whether somebody has put hooks into a model.

    A graph that was captured without them would not call them.
    """
    names = ("_forward_hooks", "_forward_pre_hooks")  # torch has no public way to ask
    return any(getattr(module, name, None) for module in model.modules() for name in names)


def _copied(model: Seq2Seq, device: torch.device) -> Seq2Seq:
    """A copy of a model on `device`, in which tied weights stay tied.

    The weights are made there, so that the device they come from needs no more room.
    """
    weights: dict[int, Any] = {}
    for parameter in model.parameters():
        there = parameter.detach().to(device, copy=True)
        weights[id(parameter)] = nn.Parameter(there, requires_grad=parameter.requires_grad)

    return copy.deepcopy(model, weights)


class Placed:
    """A model on one device, and all that is kept there for it.

    Several threads may decode on a CPU at once. A captured graph writes into memory of its own, so
    on a GPU they take turns.
    """

    def __init__(self, model: Seq2Seq, suppress: Tensor) -> None:
        self.model = model.eval()
        self.suppress = suppress
        self.device = next(model.parameters()).device
        self._graphs: dict[tuple[str, int], CapturedSearch] = {}
        self._turn = threading.RLock()
        self._room = sys.maxsize  # source tokens that have fitted, once more of them have not

    def moved(self, device: torch.device, kind: torch.dtype) -> Placed:
        """A copy of this model elsewhere; this one stays good for whoever is decoding with it."""
        model = _copied(self.model, device)
        writable(model)
        if device.type == "cpu":
            read_only(model.float(), kind)
        else:
            model.to(kind)

        return Placed(model, self.suppress)

    def begin(self, jobs: Sequence[Job]) -> Any:
        """The decoder's state before the first token that is written for these sentences."""
        nothing = [BOS, EOS]
        rows = [
            (job.source, nothing, job.positions) if job.positions else (job.source, nothing)
            for job in jobs
        ]
        batch = collate(rows).to(self.device)
        reading = {}
        if batch.source_positions is not None:
            reading["positions"] = batch.source_positions  # (B, S)
        return self.model.start(batch.source, batch.source_lengths, **reading)

    @torch.inference_mode()
    def decode(
        self, jobs: Sequence[Job], search: Search, rules: Rules, room: int, *, every: bool = False
    ) -> None:
        """Fill what each job has found.

        room: source tokens side by side; where a GPU cannot hold so many, fewer. every: all
        hypotheses that have finished are wanted, not the best `n_best` only.
        """
        if self.device.type == "cpu":
            self._by_engine(jobs, search, rules, room, every)
            return

        waiting = list(jobs)
        room = min(room, self._room)
        with self._turn, on_device(self.device):
            while True:
                try:
                    self._on_gpu(waiting, search, rules, room, every)
                    return
                except torch.OutOfMemoryError:
                    longest = max(len(job.source) for job in waiting)
                    if room <= longest:
                        raise

                waiting = [job for job in waiting if not job.found]
                room = self._room = max(room // SMALLER, longest)
                self.release()

    def release(self) -> None:
        """Give back the memory of the captured graphs.

        Those that are needed again are captured again.
        """
        with self._turn:
            self._graphs.clear()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def _by_engine(
        self, jobs: Sequence[Job], search: Search, rules: Rules, room: int, every: bool
    ) -> None:
        """Fill what each job has found, by the loop that knows every search."""
        for job in jobs:
            job.restart()

        most = sentences_that_fit(self.model, search, len(self.suppress), jobs, self.device)
        beam = None if every else search.as_beam()
        for job in decode(self.model.step, self.begin, jobs, search, rules, room, most):
            job.ended = []
            if beam is not None:
                job.found = job.found[: beam.n_best]  # the others would wait with it for all jobs

    def _on_gpu(
        self, jobs: Sequence[Job], search: Search, rules: Rules, room: int, every: bool
    ) -> None:
        """Fill what each job has found, by captured graphs where they know the search."""
        graphs = None if every else self._captured(jobs, search, rules)
        if graphs is not None:
            for job in jobs:
                job.restart()

            for _ in graphs.decode(jobs, room):
                pass

            # Those that have found nothing had logits that are not finite: the engine says so.
            jobs = [job for job in jobs if not job.found]

        self._by_engine(jobs, search, rules, room, every)

    def _captured(self, jobs: Sequence[Job], search: Search, rules: Rules) -> CapturedSearch | None:
        """The graphs of this search, if they know all that it asks for."""
        if CapturedSearch is None or self.device.type != "cuda":
            return None
        beam = search.as_beam()
        if beam is None or not fits(self.model):
            return None
        if rules.demands.no_repeat or any(job.prefix or job.positions for job in jobs):
            return None
        if hooked(self.model):
            return None

        key = (repr(beam), rules.minimum)
        if key not in self._graphs:
            banned = self.suppress.clone()  # (V,)
            banned[[PAD, BOS]] = True
            banned = banned.to(self.device)
            begin = partial(reserve, self.model)
            self._graphs[key] = CapturedSearch(begin, self.model.step, beam, banned, rules.minimum)

        return self._graphs[key]
