"""How a step is computed: plain, or one of its fast twins on a GPU (packed, compiled, captured).
All give the same numbers.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config import Config, TransformerConfig
from regard.data.batches import Batch, Feed
from regard.errors import UserError
from regard.models import Seq2Seq
from regard.models.seq2seq import TENSORS, places
from regard.models.transformer import TransformerDecoder, TransformerEncoder
from regard.nn import Layout

if TYPE_CHECKING:
    from regard.training.paths import Path

SMALL = 40_000_000  # weights up to which launching kernels is what takes the time: graphs cure that
LONG = 5e16  # floating-point operations beyond which two minutes of compiling come back


def choose_path(c: Config, device: torch.device, parameters: int, tokens: float = 0.0) -> "Path":
    """What `train.path=auto` means: plain on a CPU; on a GPU captured graphs for small models; for
    large ones packed rows, compiled if training on so many tokens takes long enough to pay for it.
    """
    if (
        c.train.path != "auto"
        or device.type != "cuda"
        or not isinstance(c.model, TransformerConfig)
    ):
        return "plain" if c.train.path == "auto" else c.train.path
    if c.train.accumulate == 1 and parameters < SMALL:
        return "captured"
    fits = c.model.position in ("none", "sinusoidal", "learned") and c.model.score in (
        "dot",
        "scaled_dot",
    )
    if not fits or c.train.precision != "bf16":
        return "plain"
    return "compiled" if 6 * parameters * tokens > LONG and c.train.accumulate == 1 else "packed"


def compile_blocks(model: Seq2Seq) -> None:
    """One compiled block serves all layers and all lengths; and what stands before the first and
    after the last.
    """
    for side in (model.encoder, model.decoder):
        if not isinstance(side, TransformerEncoder | TransformerDecoder):
            raise UserError("train.path=compiled needs a Transformer: use train.path=plain")
        side.enter = torch.compile(side.enter, dynamic=True)
        for part in (*side.blocks, side.norm):
            part.compile(dynamic=True)
    model.compiled = True


def prepare(batch: Batch, path: str, device: torch.device) -> Batch:
    """A batch on its device, with all that the path needs worked out beforehand, so that the step
    need not ask.
    """
    if device.type != "cuda":
        return batch.to(device)
    if path in ("captured", "compiled"):
        batch = rounded(batch, packed=path == "compiled")
    batch = replace(batch, places=batch.places or places(batch, packed=path == "packed"))
    tensors = {name: getattr(batch, name).pin_memory() for name in TENSORS}
    return replace(batch, **tensors).to(device)


class Ahead:
    """batch(step), made ready on its device while the steps before it run."""

    def __init__(self, batches: Feed, path: str, device: torch.device) -> None:
        self.batches, self.path, self.device = batches, path, device
        self.thread = ThreadPoolExecutor(1, initializer=self._begin)
        self.coming: dict[int, Future[Batch]] = {}

    def __call__(self, step: int) -> Batch:
        for number in (step, step + 1, step + 2):
            if number not in self.coming:
                self.coming[number] = self.thread.submit(self._make, number)
        return self.coming.pop(step).result()

    def _begin(self) -> None:
        """A thread has a current GPU of its own, and would begin with the first."""
        if self.device.type == "cuda" and self.device.index is not None:
            torch.cuda.set_device(self.device)

    def _make(self, step: int) -> Batch:
        return prepare(self.batches(step), self.path, self.device)


def rounded(batch: Batch, *, packed: bool) -> Batch:
    """Padded to one of few shapes; rows that were added hold a single token that counts for
    nothing.
    """
    size, length = _up(batch.size, 4), _up(max(batch.source.shape[1], batch.target.shape[1] - 1), 4)
    more, whole = size - batch.size, Layout(size, length, None, full=False)
    source = F.pad(batch.source, (0, length - batch.source.shape[1], 0, more))
    target = F.pad(batch.target, (0, length + 1 - batch.target.shape[1], 0, more))
    one, two = (
        F.pad(lengths, (0, more), value=1)
        for lengths in (batch.source_lengths, batch.target_lengths)
    )
    where = (
        (_filled(Layout.of(one, length)), _filled(Layout.of(two, length)))
        if packed
        else (whole, whole)
    )
    return replace(
        batch, source=source, source_lengths=one, target=target, target_lengths=two, places=where
    )


def _filled(layout: Layout) -> Layout:
    """With one of few numbers of rows; those added all stand for one place of padding."""
    if layout.rows is None or layout.back is None:
        return layout
    count, there = len(layout.rows), layout.batch * layout.length
    empty = torch.ones(there, dtype=torch.bool)
    empty[layout.rows] = False
    rows = torch.full((min(_up(count, 64), there),), int(empty.nonzero()[0]))
    rows[:count] = layout.rows
    return replace(layout, rows=rows)


def _up(n: int, parts: int) -> int:
    """The next of a row that has so many steps to each doubling: for four 4, 5, 6, 7, 8, 10, 12,
    14, 16, 20 …
    """
    step = max(1, (1 << max(0, (n - 1).bit_length() - 1)) // parts)
    return -(-n // step) * step


class Captured:
    """step(parts, tokens) as one CUDA graph for each shape of batch: the GPU runs it without a word
    from Python.
    """

    def __init__(self, step: Callable[[Sequence[Batch], Tensor], None]) -> None:
        self.step = step
        self.graphs: dict[
            tuple[tuple[int, ...], ...], tuple[torch.cuda.CUDAGraph, Batch, Tensor]
        ] = {}
        self.pool: Any = None
        self.warm = 0

    def __call__(self, batch: Batch) -> None:
        tokens = torch.tensor(float(batch.tokens)).pin_memory()
        if self.warm < 3:  # optimiser and libraries first make what they will keep
            self.warm += 1
            self.step([batch], tokens.to(batch.source.device))
            return
        key = tuple(tuple(x.shape) for x in _tensors(batch))
        if key not in self.graphs:
            self.graphs[key] = self._capture(batch)
        graph, held, count = self.graphs[key]
        for there, x in zip(_tensors(held), _tensors(batch), strict=True):
            there.copy_(x, non_blocking=True)
        count.copy_(tokens, non_blocking=True)
        graph.replay()

    def _capture(self, batch: Batch) -> tuple[torch.cuda.CUDAGraph, Batch, Tensor]:
        where = batch.places and (batch.places[0].clone(), batch.places[1].clone())
        held = replace(
            batch, **{name: getattr(batch, name).clone() for name in TENSORS}, places=where
        )
        count, graph = torch.ones((), device=batch.source.device), torch.cuda.CUDAGraph()
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        torch.cuda.synchronize()
        with torch.cuda.graph(
            graph, pool=self.pool, capture_error_mode="thread_local"
        ):  # the feeding thread goes on
            self.step([held], count)
        return graph, held, count


def _tensors(batch: Batch) -> list[Tensor]:
    sides = [x for side in batch.places or () for x in (side.rows, side.back) if x is not None]
    return [*(getattr(batch, name) for name in TENSORS), *sides]
