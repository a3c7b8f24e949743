"""One process or many: who we are, what the others say, and a gradient that is everyone's."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from regard.errors import UserError
from regard.models import Learner, Sums
from regard.training.batch import TrainingBatch

Loss = Callable[[TrainingBatch], Sums]
ModelLoss = Callable[[Learner, TrainingBatch], Sums]

# What gloo and NCCL say when one of us is gone.
LOST = ("closed by peer", "reset by peer", "Broken pipe", "remote process exited")


@dataclass(frozen=True)
class World:
    """The processes that train one model together; `torchrun` says how many.

    Alone, nothing is exchanged.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @classmethod
    @contextmanager
    def join(cls, device: torch.device, minutes: float = 120) -> Iterator["World"]:
        """Meet the others, if torchrun started us; leave them at the end."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            yield cls(device=device)
            return
        if device.type == "mps":
            raise UserError("train.device=mps supports one process only: run without torchrun")
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(minutes=minutes))
        try:
            yield cls(dist.get_rank(), dist.get_world_size(), device)
        except BaseException as error:
            if device.type != "cuda":  # NCCL would wait for those who are gone
                dist.destroy_process_group()
            if isinstance(error, RuntimeError) and any(sign in str(error) for sign in LOST):
                time.sleep(1)  # whoever knows more may speak first
                raise UserError(
                    "another training process has ended (see its output); continue with --resume"
                ) from error
            raise
        dist.destroy_process_group()

    def sum(self, x: Tensor) -> Tensor:
        """x of all processes, added up in place."""
        if self.size > 1:
            dist.all_reduce(x)
        return x

    def any(self, flag: bool) -> bool:
        """Whether one of us says yes. Asked on the CPU, so that no GPU is waited for."""
        if self.size == 1:
            return flag
        return bool(self.sum(torch.tensor(float(flag))) > 0)

    def wait(self) -> None:
        """Until all have come here."""
        self.any(False)

    def tell(self, text: str) -> str:
        """The text of rank 0, whatever the others give; it may be of any length."""
        if self.size == 1:
            return text
        content = torch.tensor(list(text.encode()), dtype=torch.uint8)
        length = torch.tensor(len(content))
        dist.broadcast(length, 0)
        if self.rank != 0:
            content = torch.empty(int(length), dtype=torch.uint8)
        if length:
            dist.broadcast(content, 0)
        return bytes(content.tolist()).decode()

    def wrap(self, model: Learner, strategy: str, loss: ModelLoss) -> Loss:
        """A loss whose gradient, after backward, is the mean over all processes."""
        if self.size == 1:
            return lambda batch: loss(model, batch)
        if strategy == "fsdp":
            from torch.distributed.fsdp import fully_shard

            mesh = dist.device_mesh.init_device_mesh(self.device.type, (self.size,))
            spread: Any = fully_shard(_Whole(model, loss), mesh=mesh)
            return spread
        return nn.parallel.DistributedDataParallel(_Whole(model, loss))


class _Whole(nn.Module):
    """Model and loss as one module, which is what DDP and FSDP wrap."""

    def __init__(self, model: Learner, loss: ModelLoss) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, batch: TrainingBatch) -> Sums:
        sums = self.loss(self.model, batch)
        # FSDP watches this tensor, and must not be given a view.
        return sums._replace(loss=sums.loss.clone())


def postpone_sync(loss: Loss, is_later: bool) -> None:
    """Leave it to a later batch of this step to add up the gradients of the processes, or not."""
    if isinstance(loss, nn.parallel.DistributedDataParallel):
        loss.require_backward_grad_sync = not is_later


@contextmanager
def gathered(loss: Loss) -> Iterator[None]:
    """Inside, weights that are spread over processes are whole on each; then spread again."""
    unshard = getattr(loss, "unshard", None)
    reshard = getattr(loss, "reshard", None)
    if unshard is None or reshard is None:
        yield
        return

    unshard()
    try:
        yield
    finally:
        reshard()
