"""How a step is computed: plain, or by a fast twin on a GPU. All give the same numbers."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from regard.config import Config
from regard.errors import UserError, only_fast_is_missing
from regard.models import Learner
from regard.training.batch import Feed, TrainingBatch

try:
    from regard.training.fast import paths as fast
except ModuleNotFoundError as error:
    only_fast_is_missing(error)
    fast = None  # type: ignore[assignment]

Path = Literal["auto", "plain", "packed", "compiled", "captured"]
StepFunction = Callable[[Sequence[TrainingBatch], Tensor], None]
"""One training step of some batches, given the number of their tokens."""


def choose_path(config: Config, device: torch.device, parameters: int, tokens: float = 0.0) -> Path:
    """What `train.path=auto` means here, for so many parameters and tokens of training."""
    if fast is not None:
        return fast.choose_path(config, device, parameters, tokens)
    path = config.train.path
    if path not in ("auto", "plain"):
        raise UserError(f"train.path={path}: regard/training/fast is missing; use train.path=plain")
    return "plain"


def compile_blocks(model: Learner) -> None:
    """For `train.path=compiled`: compile the blocks of a Transformer."""
    if fast is None:
        raise UserError(
            "train.path=compiled: regard/training/fast is missing; use train.path=plain"
        )
    fast.compile_blocks(model)


def read_ahead(batches: Feed, path: str, device: torch.device) -> Feed:
    """The same batches; on a GPU each is made ready while the steps before it run."""
    if fast is None or device.type != "cuda":
        return batches
    return fast.Ahead(batches, path, device)


def prepare(batch: TrainingBatch, path: str, device: torch.device) -> TrainingBatch:
    """The batch on its device, with all that the path needs."""
    return batch.to(device) if fast is None else fast.prepare(batch, path, device)


def capture(step: StepFunction) -> Callable[[Any], None]:
    """For `train.path=captured`: the step as one CUDA graph for each shape of batch."""
    if fast is None:
        raise UserError(
            "train.path=captured: regard/training/fast is missing; use train.path=plain"
        )
    return fast.CapturedStep(step)
