"""One process or many: who we are, what the others say, and a model whose gradient is
everyone's.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from regard.data.batches import Batch, Batches, Feed, collate
from regard.errors import UserError
from regard.models import Seq2Seq, Sums
from regard.text.vocabulary import BOS, EOS, PAD

Loss = Callable[[Batch], Sums]
LOST = (
    "closed by peer",
    "reset by peer",
    "Broken pipe",
    "remote process exited",
)  # gloo and NCCL, when one of us is gone


@dataclass(frozen=True)
class World:
    """The processes that train one model together; `torchrun` says how many. Alone, every method
    does nothing.
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
            raise UserError("train.device=mps trains in one process: start it without torchrun")
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(device)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            timeout=timedelta(minutes=minutes),
        )
        try:
            yield cls(dist.get_rank(), dist.get_world_size(), device)
        except BaseException as error:
            if device.type != "cuda":  # NCCL would wait for those who are gone
                dist.destroy_process_group()
            if isinstance(error, RuntimeError) and any(sign in str(error) for sign in LOST):
                time.sleep(1)  # whoever knows more may speak first
                raise UserError(
                    "another process of this training has ended (it may say why); --resume goes on"
                ) from error
            raise
        dist.destroy_process_group()

    def sum(self, x: Tensor) -> Tensor:
        """x of all processes, added up in place."""
        if self.size > 1:
            dist.all_reduce(x)
        return x

    def any(self, flag: bool) -> bool:
        """Does one of us say yes? A word on the CPU, so that no GPU is waited for."""
        return bool(self.sum(torch.tensor(float(flag))) > 0) if self.size > 1 else flag

    def wait(self) -> None:
        self.any(False)

    def tell(self, text: str) -> str:
        """What rank 0 says, however long it is."""
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

    def share(self, batches: Batches) -> Feed:
        """batch(step), of which each process takes every size-th sentence; counts of tokens are
        those of the whole batch.
        """

        def mine(step: int) -> Batch:
            indices, corpus = batches.indices(step), batches.corpus
            own = indices[self.rank :: self.size]
            # Fewer sentences than processes: this one looks at a token that counts for nothing, and
            # takes part in the sum.
            batch = batches.load(own, step) if len(own) else collate([([EOS], [BOS, PAD])])
            tokens, source_tokens = (
                int(corpus.target_lengths[indices].sum()),
                int(corpus.source_lengths[indices].sum()),
            )
            return replace(batch, tokens=tokens, source_tokens=source_tokens)

        return batches if self.size == 1 else mine

    def wrap(self, model: Seq2Seq, strategy: str, loss: Callable[[Seq2Seq, Batch], Sums]) -> Loss:
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
    def __init__(self, model: Seq2Seq, loss: Callable[[Seq2Seq, Batch], Sums]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Batch) -> Sums:
        sums = self.loss(self.model, batch)
        return sums._replace(
            loss=sums.loss.clone()
        )  # FSDP watches this tensor, and must not be given a view


@contextmanager
def gathered(loss: Loss) -> Iterator[None]:
    """While somebody looks, weights that are spread over processes are whole on each; then spread
    again.
    """
    unshard, reshard = (getattr(loss, name, lambda: None) for name in ("unshard", "reshard"))
    unshard()
    try:
        yield
    finally:
        reshard()
