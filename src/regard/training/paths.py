"""How a step is computed: plain, or by a fast twin on a GPU. All give the same numbers."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from regard.config import Config
from regard.data.batches import Batch, Feed
from regard.errors import UserError, only_fast_is_missing
from regard.models import Seq2Seq

try:
    from regard.training.fast import paths as fast
except ModuleNotFoundError as error:
    only_fast_is_missing(error)
    fast = None  # type: ignore[assignment]

Path = Literal["auto", "plain", "packed", "compiled", "captured"]
Step = Callable[[Sequence[Batch], Tensor], None]
"""One training step of some batches, given the number of their tokens."""


def choose_path(c: Config, device: torch.device, parameters: int, tokens: float = 0.0) -> Path:
    """What `train.path=auto` means here, for so many parameters and tokens of training."""
    if fast is not None:
        return fast.choose_path(c, device, parameters, tokens)
    if c.train.path not in ("auto", "plain"):
        raise UserError(f"train.path={c.train.path}: regard/training/fast is missing; use plain")
    return "plain"


def compile_blocks(model: Seq2Seq) -> None:
    """For `train.path=compiled`: compile the blocks of a Transformer."""
    if fast is None:
        raise UserError("train.path=compiled: regard/training/fast is missing; use plain")
    fast.compile_blocks(model)


def read_ahead(batches: Feed, path: str, device: torch.device) -> Feed:
    """The same batches; on a GPU each is made ready while the steps before it run."""
    if fast is None or device.type != "cuda":
        return batches
    return fast.Ahead(batches, path, device)


def prepare(batch: Batch, path: str, device: torch.device) -> Batch:
    """A batch on its device, with all that the path needs."""
    return batch.to(device) if fast is None else fast.prepare(batch, path, device)


def capture(step: Step) -> Callable[[Batch], None]:
    """For `train.path=captured`: the step as one CUDA graph for each shape of batch."""
    if fast is None:
        raise UserError("train.path=captured: regard/training/fast is missing; use plain")
    return fast.Captured(step)
