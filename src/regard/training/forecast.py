"""What training will take, tried before it starts: memory, speed and time, without changing anything that is learned."""

import resource
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

FEWEST = 20
"""Steps below which a forecast is not worth its time."""


def forecast(trainer: Trainer, say: Callable[[str], None]) -> None:
    """Try the longest batch and the next few, and say what is to come. What does not fit into memory is split from now on."""
    p, c = trainer.progress, trainer.c
    left = trainer.steps - p.step
    if left < FEWEST or p.finished:
        return
    words, timed = [f"{sum(w.numel() for w in trainer.model.parameters()):,} parameters"], False
    if trainer.world.size == 1:  # several would have to wait for one another
        batches, timed = _batches(trainer), trainer.captured is None and not trainer.model.compiled
        with _untouched(trainer):
            longest = _longest(trainer, batches)
            words.append(f"about {_bytes(_memory(trainer, longest))}")
            parts = len(trainer._fitting(longest))
            speed = _speed(trainer) if timed else 0.0
        if parts > 1:
            words.append(f"batches are computed in {parts} parts to fit memory")
    if timed:
        corpus, rest = batches.corpus, 60 * c.minutes - p.seconds if c.minutes else float("inf")
        tokens = (corpus.source_lengths.sum(dtype=np.int64) + corpus.target_lengths.sum(dtype=np.int64)) / batches.per_epoch
        words += [f"{float(f'{speed:.2g}'):,.0f} tokens/s", _end(left, tokens * c.accumulate / speed, rest)]
    else:
        words.append(f"{left:,} steps, whose speed the log will tell")
    say("; ".join(words))


def _batches(trainer: Trainer) -> Batches:
    """Below what gets them ready on a GPU."""
    feed: Any = trainer.batches
    while not isinstance(feed, Batches):
        feed = feed.batches
    return feed


@contextmanager
def _untouched(trainer: Trainer) -> Iterator[None]:
    """Afterwards nothing is known of what was tried, except how much fits into memory."""
    model, device = trainer.model, trainer.device
    before = model.training, model.compiled, trainer.short
    eager = torch.compiler.set_stance("force_eager") if model.compiled else nullcontext()  # for shapes that never come again
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
    size = min(len(lengths), batches.sentences or max(1, (batches.tokens or 0) // int(lengths.max())))
    batch = batches.load(np.argpartition(lengths, -size)[-size:], trainer.progress.step)
    return prepare(batch, trainer.c.path, trainer.device)


def _memory(trainer: Trainer, longest: Batch) -> int:
    """Bytes that the longest batch and the optimiser need at most; sets trainer.most if there are not so many."""
    each = 1 if trainer.c.optimizer == "sgd" else 2
    state = sum(each * w.nbytes for w in trainer.model.parameters() if not trainer.optimizer.state.get(w, {}))
    room, size = _room(trainer.device) - state, places(longest)
    if trainer.device.type == "cpu" and longest.size >= 8:  # a system that runs short kills: first ask smaller pieces
        eighth, quarter = (_peak(trainer, collate(longest.rows()[: longest.size // n])) for n in (8, 4))
        whole, fixed = quarter + 6 * (quarter - eighth), 2 * eighth - quarter
        if whole > room:
            trainer.most = max(1, int(0.9 * size * (room - fixed) / max(1, whole - fixed)))
    peak = _peak(trainer, longest)
    if peak > room and trainer.device.type == "cuda":
        trainer.most = (trainer.most or size) // 2
    return peak + state


def _peak(trainer: Trainer, batch: Batch) -> int:
    """Most bytes in use while the gradient of a batch is computed: torch's own on a GPU, the whole process's on a CPU."""
    reset = Path("/proc/self/clear_refs")
    if trainer.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(trainer.device)
    elif reset.exists():
        reset.write_text("5")
    trainer._gradient([batch], batch.tokens)
    if trainer.device.type == "cuda":
        return torch.cuda.max_memory_allocated(trainer.device)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return _proc("self/status", "VmHWM", most if sys.platform == "darwin" else most * 1024)


def _room(device: torch.device) -> int:
    """Bytes that this process may come to hold in all."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    return _proc("meminfo", "MemAvailable", sys.maxsize) + _proc("self/status", "VmRSS", 0)


def _proc(path: str, name: str, otherwise: int) -> int:
    """Bytes, as Linux tells them."""
    lines = Path("/proc", path).read_text().splitlines() if Path("/proc", path).exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":")), otherwise)


def _speed(trainer: Trainer) -> float:
    """Tokens a second, source and target, over the next three batches or two seconds."""
    first, tokens = trainer.progress.step * trainer.c.accumulate, 0
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
    return tokens / seconds


def _end(steps: int, each: float, rest: float) -> str:
    """Steps and time, until the last step or until the time given is over."""
    seconds = min(steps * each, rest)
    clock = time.strftime("%H:%M" if seconds < 12 * 3600 else "%A %H:%M", time.localtime(time.time() + seconds))
    done = f"{steps:,} steps, about {_span(seconds)}"
    if steps * each > rest:
        done = f"about {float(f'{rest / each:.2g}'):,.0f} of {steps:,} steps in the {_span(rest)} given"
    return f"{done} (done around {clock})"


def _span(seconds: float) -> str:
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.{0 if unit == 'minute' else 1}f} {unit}s"
    return f"{max(1, round(seconds))} seconds"


def _bytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{max(1, round(count / 1e6)):,} MB"
