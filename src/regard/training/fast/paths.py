"""How a step is computed on a GPU: plain, packed, compiled or captured, with the same numbers."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config import Config, TransformerConfig
from regard.data.batches import TENSORS, Batch
from regard.errors import UserError
from regard.models import Learner, Seq2Seq
from regard.models.seq2seq import find_layouts
from regard.models.transformer import TransformerDecoder, TransformerEncoder
from regard.nn import Layout
from regard.text.vocabulary import PAD
from regard.training.batch import Feed, TrainingBatch

if TYPE_CHECKING:
    from regard.training.paths import Path

# Weights up to which launching kernels is what takes the time: graphs cure that.
SMALL = 40_000_000

# Floating-point operations beyond which two minutes of compiling come back.
LONG = 5e16


def choose_path(
    config: Config, device: torch.device, parameters: int, tokens: float = 0.0
) -> "Path":
    """What `train.path=auto` means, for so many parameters and tokens of training.

    Plain on a CPU. On a GPU captured graphs for small models; for large ones packed rows, compiled
    if the training is long enough to pay for it.
    """
    train = config.train
    if train.path != "auto":
        return train.path
    if device.type != "cuda" or not isinstance(config.model, TransformerConfig):
        return "plain"
    if config.model.has_own_masks or config.model.has_patterns or config.data.positions:
        return "plain"
    can_capture = train.accumulate == 1 and train.optimizer != "sgd"
    if can_capture and parameters < SMALL:
        return "captured"

    has_position = config.model.position in ("none", "sinusoidal", "learned")
    has_score = config.model.score in ("dot", "scaled_dot")
    if not has_position or not has_score or train.precision != "bf16":
        return "plain"
    is_long = 6 * parameters * tokens > LONG
    return "compiled" if is_long and can_capture else "packed"


def compile_blocks(model: Learner) -> None:
    """Compile a Transformer: one block serves all layers and lengths.

    Also what stands before the first block and after the last.
    """
    sides = (model.encoder, model.decoder) if isinstance(model, Seq2Seq) else (model,)
    for side in sides:
        if not isinstance(side, TransformerEncoder | TransformerDecoder):
            raise UserError("train.path=compiled needs a Transformer: use train.path=plain")
        side.enter = torch.compile(side.enter, dynamic=True)
        for part in (*side.blocks, side.norm):
            part.compile(dynamic=True)
    model.compiled = True


def prepare(batch: TrainingBatch, path: str, device: torch.device) -> TrainingBatch:
    """The batch on its device, with all that the path needs, so that the step need not ask."""
    if device.type != "cuda" or not isinstance(batch, Batch):
        return batch.to(device)
    if path in ("captured", "compiled") and not batch.has_own:
        batch = rounded(batch, packed=path == "compiled")
    if batch.layouts is None:
        batch = replace(batch, layouts=find_layouts(batch, packed=path == "packed"))
    pinned = {name: getattr(batch, name).pin_memory() for name in TENSORS}
    return replace(batch, **pinned).to(device)


class Ahead:
    """batch(step), made ready on its device while the steps before it run."""

    def __init__(self, batches: Feed, path: str, device: torch.device) -> None:
        self.batches = batches
        self.path = path
        self.device = device
        self.thread = ThreadPoolExecutor(1, initializer=self._begin)
        self.coming: dict[int, Future[TrainingBatch]] = {}

    def __call__(self, step: int) -> TrainingBatch:
        for number in (step, step + 1, step + 2):
            if number not in self.coming:
                self.coming[number] = self.thread.submit(self._make, number)
        return self.coming.pop(step).result()

    def _begin(self) -> None:
        """A thread has a current GPU of its own, and would begin with the first."""
        if self.device.type == "cuda" and self.device.index is not None:
            torch.cuda.set_device(self.device)

    def _make(self, step: int) -> TrainingBatch:
        return prepare(self.batches(step), self.path, self.device)


def rounded(batch: Batch, *, packed: bool) -> Batch:
    """The batch padded to one of few shapes.

    Rows that are added hold a single token that counts for nothing.
    """
    longest = max(batch.source.shape[1], batch.target.shape[1] - 1)
    size = _round_up(batch.size, 4)
    length = _round_up(longest, 4)
    more = size - batch.size

    source = F.pad(batch.source, (0, length - batch.source.shape[1], 0, more), value=PAD)
    target = F.pad(batch.target, (0, length + 1 - batch.target.shape[1], 0, more), value=PAD)
    source_lengths = F.pad(batch.source_lengths, (0, more), value=1)  # (size,)
    target_lengths = F.pad(batch.target_lengths, (0, more), value=1)  # (size,)
    padded = Layout(size, length, None, full=False)
    layouts = (padded, padded)
    if packed:
        layouts = (
            _filled(Layout.of(source_lengths, length)),
            _filled(Layout.of(target_lengths, length)),
        )
    return replace(
        batch,
        source=source,  # (size, length)
        source_lengths=source_lengths,
        target=target,  # (size, length + 1)
        target_lengths=target_lengths,
        layouts=layouts,
    )


def _filled(layout: Layout) -> Layout:
    """The layout with one of few numbers of rows; those added all stand for one padding token.

    A layout that lists its rows leaves some padding out, so there is such a token.
    """
    if layout.rows is None or layout.back is None:
        return layout
    count = len(layout.rows)
    tokens = layout.batch * layout.length
    is_padding = torch.ones(tokens, dtype=torch.bool)
    is_padding[layout.rows] = False
    rows = torch.full((min(_round_up(count, 64), tokens),), int(is_padding.nonzero()[0]))
    rows[:count] = layout.rows
    return replace(layout, rows=rows)


def _round_up(n: int, parts: int) -> int:
    """The next number of a sequence with so many steps to each doubling.

    With four: 4, 5, 6, 7, 8, 10, 12, 14, 16, 20 …
    """
    step = max(1, (1 << max(0, (n - 1).bit_length() - 1)) // parts)
    return -(-n // step) * step


class _Graph(NamedTuple):
    """A recorded step, and the tensors that it reads."""

    graph: torch.cuda.CUDAGraph
    batch: Batch
    tokens: Tensor  # ()


class CapturedStep:
    """step([batch], tokens) as one CUDA graph for each shape of batch.

    The GPU replays it without a word from Python.
    """

    def __init__(self, step: Callable[[Sequence[TrainingBatch], Tensor], None]) -> None:
        self.step = step
        self.graphs: dict[tuple[tuple[int, ...] | None, ...], _Graph] = {}
        self.pool: Any = None
        self.warm = 0

    def __call__(self, batch: Batch) -> None:
        tokens = torch.tensor(float(batch.tokens)).pin_memory()  # ()
        # Optimiser and libraries first make what they will keep. A graph knows no masks and
        # positions of the user's own.
        if self.warm < 3 or batch.has_own:
            self.warm += 1
            self.step([batch], tokens.to(batch.device))
            return

        shapes = tuple(None if x is None else tuple(x.shape) for x in _tensors(batch))
        if shapes not in self.graphs:
            self.graphs[shapes] = self._capture(batch)
        recorded = self.graphs[shapes]
        for held, new in zip(_tensors(recorded.batch), _tensors(batch), strict=True):
            if held is not None and new is not None:
                held.copy_(new, non_blocking=True)
        recorded.tokens.copy_(tokens, non_blocking=True)
        recorded.graph.replay()

    def _capture(self, batch: Batch) -> _Graph:
        layouts = batch.layouts
        if layouts is not None:
            layouts = (layouts[0].clone(), layouts[1].clone())
        tensors = {name: getattr(batch, name).clone() for name in TENSORS}
        held = replace(batch, **tensors, layouts=layouts)
        tokens = torch.ones((), device=batch.device)

        graph = torch.cuda.CUDAGraph()
        if self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()
        torch.cuda.synchronize()
        # thread_local: the thread that feeds goes on meanwhile.
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            self.step([held], tokens)
        return _Graph(graph, held, tokens)


def _tensors(batch: Batch) -> list[Tensor | None]:
    """All tensors that a step reads from a batch, in a fixed order; None: it has no such."""
    tensors: list[Tensor | None] = [getattr(batch, name) for name in TENSORS]
    for layout in batch.layouts or ():
        tensors += [layout.rows, layout.back]
    return tensors
