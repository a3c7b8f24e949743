"""What training will take, tried before it starts: memory, speed and time, without changing
anything that is learned.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.data.batches import Batch, Batches, collate
from regard.training.paths import prepare
from regard.training.trainer import Trainer, places

FEWEST = 20  # steps; below, a forecast is not worth its time


def forecast(trainer: Trainer, say: Callable[[str], None]) -> None:
    """Try the longest batch and the next few, and say what is to come. What does not fit into
    memory is split from now on.
    """
    left, timed = trainer.steps - trainer.progress.step, False
    if left < FEWEST or trainer.progress.finished:
        return
    words = [f"{sum(w.numel() for w in trainer.model.parameters()):,} parameters"]
    if trainer.world.size == 1:  # several would have to wait for one another
        batches: Any = getattr(
            trainer.batches, "batches", trainer.batches
        )  # below what gets them ready on a GPU
        timed = trainer.captured is None and not trainer.model.compiled
        with _untouched(trainer):
            longest = _longest(trainer, batches)
            size = _memory(trainer, longest)
            if size:
                words.append(
                    f"about {size / 1e9:.1f} GB"
                    if size >= 1e9
                    else f"about {max(1, round(size / 1e6)):,} MB"
                )
            if (parts := len(trainer._fitting(longest))) > 1:
                words.append(f"batches are computed in {parts} parts to fit memory")
            words += _pace(trainer, batches, left) if timed else []
    if not timed:
        words.append(f"{left:,} steps, whose speed the log will tell")
    say("; ".join(words))


@contextmanager
def _untouched(trainer: Trainer) -> Iterator[None]:
    """Afterwards nothing is known of what was tried, except how much fits into memory."""
    model, device = trainer.model, trainer.device
    before = model.training, model.compiled, trainer.short
    eager = (
        torch.compiler.set_stance("force_eager") if model.compiled else nullcontext()
    )  # for shapes that never come again
    model.compiled = False
    model.train()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []), eager:
            yield
    finally:
        trainer.optimizer.zero_grad(set_to_none=True)
        was_training, model.compiled, trainer.short = before
        model.train(was_training)
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _longest(trainer: Trainer, batches: Batches) -> Batch:
    """The pairs that are longest, as one batch."""
    lengths = np.maximum(batches.corpus.source_lengths, batches.corpus.target_lengths)
    size = min(
        len(lengths), batches.sentences or max(1, (batches.tokens or 0) // int(lengths.max()))
    )
    batch = batches.load(np.argpartition(lengths, -size)[-size:], trainer.progress.step)
    return prepare(batch, trainer.c.path, trainer.device)


def _memory(trainer: Trainer, longest: Batch) -> int:
    """Bytes that the longest batch and the optimiser need at most; sets trainer.most if there are
    not so many.

    0: this system does not tell.
    """
    each = 1 if trainer.c.optimizer == "sgd" else 2
    state = sum(
        each * w.nbytes
        for w in trainer.model.parameters()
        if not trainer.optimizer.state.get(w, {})
    )
    room, size = _room(trainer.device) - state, places(longest)
    if (
        trainer.device.type == "cpu" and longest.size >= 8
    ):  # a system that runs short kills: first ask smaller pieces
        eighth, quarter = (
            _peak(trainer, collate(longest.rows()[: longest.size // n])) for n in (8, 4)
        )
        whole, fixed = quarter + 6 * (quarter - eighth), 2 * eighth - quarter
        if whole > room:
            trainer.most = max(1, int(0.9 * size * (room - fixed) / max(1, whole - fixed)))
    peak = _peak(trainer, longest)
    if peak > room and trainer.device.type == "cuda":
        trainer.most = (trainer.most or size) // 2
    return peak + state if peak else 0


def _peak(trainer: Trainer, batch: Batch) -> int:
    """Most bytes in use while the gradient of a batch is computed: torch's own on a GPU, the whole
    process's on a CPU.
    """
    reset = Path("/proc/self/clear_refs")
    if trainer.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(trainer.device)
    elif reset.exists():
        reset.write_text("5")
    trainer._gradient([batch], batch.tokens)
    if trainer.device.type == "cuda":
        return torch.cuda.max_memory_allocated(trainer.device)
    return _proc("self/status", "VmHWM", 0) or _peak_of_process()


def _peak_of_process() -> int:
    """Most bytes this process ever held, as Unix tells them; 0 on Windows."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _room(device: torch.device) -> int:
    """Bytes that this process may come to hold in all."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    return _proc("meminfo", "MemAvailable", sys.maxsize) + _proc("self/status", "VmRSS", 0)


def _proc(path: str, name: str, otherwise: int) -> int:
    """Bytes, as Linux tells them."""
    lines = Path("/proc", path).read_text().splitlines() if Path("/proc", path).exists() else []
    return next(
        (int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":")), otherwise
    )


def _pace(trainer: Trainer, batches: Batches, steps: int) -> list[str]:
    """Tokens a second, source and target, over the next three batches or two seconds; steps and
    time until the end.
    """
    p, c, corpus = trainer.progress, trainer.c, batches.corpus
    first, tokens = p.step * c.accumulate, 0
    trainer.batches(first)  # the order of an epoch is made once
    began = time.monotonic()
    for number in range(3):
        batch = trainer.batches(first + number)
        trainer._gradient([batch], batch.tokens)
        if trainer.device.type == "cuda":
            torch.cuda.synchronize(trainer.device)
        tokens, seconds = tokens + batch.tokens + batch.source_tokens, time.monotonic() - began
        if seconds > 2:
            break
    speed = tokens / seconds
    epoch = sum(side.sum(dtype=np.int64) for side in (corpus.source_lengths, corpus.target_lengths))
    needed = steps * c.accumulate * epoch / batches.per_epoch / speed
    given = 60 * c.minutes - p.seconds if c.minutes else math.inf
    done = f"{steps:,} steps, about {_span(needed)}"
    if needed > given:
        done = (
            f"about {float(f'{steps * given / needed:.2g}'):,.0f} of {steps:,} steps in the "
            f"{_span(given)} given"
        )
    form = "%H:%M" if min(needed, given) < 12 * 3600 else "%A %H:%M"
    clock = time.strftime(form, time.localtime(time.time() + min(needed, given)))
    return [f"{float(f'{speed:.2g}'):,.0f} tokens/s", f"{done} (done around {clock})"]


def _span(seconds: float) -> str:
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.{0 if unit == 'minute' else 1}f} {unit}s"
    return f"{max(1, round(seconds))} seconds"
