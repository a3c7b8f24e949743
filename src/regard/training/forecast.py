"""What training will take in memory and time, tried before it starts.

Nothing that is learned changes by it.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch

from regard.errors import counted
from regard.files import write_output
from regard.nn.devices import free_memory, linux_bytes
from regard.training.batch import Supply, TrainingBatch
from regard.training.paths import prepare
from regard.training.trainer import Trainer

FEWEST = 20  # steps; below, a forecast is not worth its time


def forecast(trainer: Trainer, say: Callable[[str], None]) -> None:
    """Try the longest batch and the next few, and say what is to come.

    What does not fit into memory is split from now on.
    """
    steps = trainer.steps - trainer.progress.step
    if steps < FEWEST or trainer.progress.finished:
        return

    words = []
    is_alone = trainer.world.size == 1  # several would have to wait for one another
    is_timed = is_alone and trainer.captured is None and not trainer.model.compiled
    if is_alone:
        with _untouched(trainer):
            words += _memory_words(trainer, _longest(trainer))
            if is_timed:
                words += _pace(trainer, steps)
    if not is_timed:
        words.append(_untimed_pace(trainer, steps))
    say("; ".join(words))


def _supply(trainer: Trainer) -> Supply:
    """The batches themselves, without what gets them ready ahead on a GPU."""
    batches: Any = trainer.batches
    supply: Supply = getattr(batches, "batches", batches)
    return supply


def _longest(trainer: Trainer) -> TrainingBatch:
    longest = _supply(trainer).longest(trainer.progress.step)
    return prepare(longest, trainer.config.path, trainer.device)


@contextmanager
def _untouched(trainer: Trainer) -> Iterator[None]:
    """Afterwards nothing is known of what was tried, except how much fits into memory."""
    model = trainer.model
    device = trainer.device
    was_training = model.training
    was_compiled = model.compiled
    shortages = trainer.shortages
    # Shapes that never come again are not worth compiling for.
    eager = torch.compiler.set_stance("force_eager") if was_compiled else nullcontext()
    model.compiled = False
    model.train()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []), eager:
            yield
    finally:
        trainer.optimizer.zero_grad(set_to_none=True)
        model.compiled = was_compiled
        trainer.shortages = shortages
        model.train(was_training)
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _memory_words(trainer: Trainer, longest: TrainingBatch) -> list[str]:
    """Try the longest batch; say how much memory it takes, and in how many parts it fits."""
    words = []
    size = _memory(trainer, longest)
    if size >= 1e9:
        words.append(f"about {size / 1e9:.1f} GB of memory")
    elif size:
        words.append(f"about {max(1, round(size / 1e6)):,} MB of memory")

    parts = len(trainer._fitting(longest))
    if parts > 1:
        words.append(f"each batch is split into {parts} parts to fit in memory")
    return words


def _memory(trainer: Trainer, longest: TrainingBatch) -> int:
    """Bytes that the longest batch and the optimiser need at most; 0: this system does not tell.

    Sets trainer.largest_fitting if there are not so many.
    """
    state = _optimizer_bytes(trainer)
    room = _room(trainer.device) - state
    size = longest.padded_tokens
    if trainer.device.type == "cpu" and longest.size >= 8:
        # A system that runs short of memory kills the process: first try smaller pieces.
        quarter = longest.split()[0].split()[0]
        eighth = quarter.split()[0]
        eighth_peak = _peak(trainer, eighth)
        quarter_peak = _peak(trainer, quarter)
        # A peak is something fixed, and so much for each eighth.
        for_an_eighth = quarter_peak - eighth_peak
        fixed = eighth_peak - for_an_eighth
        whole = fixed + 8 * for_an_eighth
        if whole > room:
            share = (room - fixed) / max(1, whole - fixed)
            trainer.largest_fitting = max(1, int(0.9 * size * share))

    peak = _peak(trainer, longest)
    if peak > room and trainer.device.type == "cuda":
        trainer.largest_fitting = (trainer.largest_fitting or size) // 2
    return peak + state if peak else 0


def _optimizer_bytes(trainer: Trainer) -> int:
    """Bytes that the optimiser will need, and does not hold yet."""
    copies = 1 if trainer.config.optimizer == "sgd" else 2
    without_state = [
        weight for weight in trainer.model.parameters() if not trainer.optimizer.state.get(weight)
    ]
    return sum(copies * weight.nbytes for weight in without_state)


def _peak(trainer: Trainer, batch: TrainingBatch) -> int:
    """Most bytes in use while the gradient of a batch is computed.

    On a GPU those of torch, on a CPU those of the whole process.
    """
    reset = Path("/proc/self/clear_refs")
    if trainer.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(trainer.device)
    elif reset.exists():
        with suppress(OSError):  # not every container lets us; then the peak is of all time
            write_output(reset, b"5")
    trainer._gradient([batch], batch.tokens)
    if trainer.device.type == "cuda":
        return torch.cuda.max_memory_allocated(trainer.device)
    return linux_bytes("self/status", "VmHWM", 0) or _peak_of_process()


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
        return free_memory(device)
    return free_memory(device) + linux_bytes("self/status", "VmRSS", 0)


def _pace(trainer: Trainer, steps: int) -> list[str]:
    """Tokens a second, and steps and time until the end."""
    progress = trainer.progress
    config = trainer.config
    batches = _supply(trainer)
    speed = _speed(trainer)
    tokens = steps * config.accumulate * batches.count_tokens() / batches.per_epoch
    needed = tokens / speed
    given = trainer.seconds_left()

    done = f"{counted(steps, 'step')}, about {duration(needed)}"
    if needed > given:
        reached = float(f"{steps * given / needed:.2g}")
        done = f"about {reached:,.0f} of {counted(steps, 'step')} in the {duration(given)} allowed"
        if progress.step + reached < config.warmup:
            done += f", all within the warm-up of {counted(config.warmup, 'step')}"
    seconds = min(needed, given)
    form = "%H:%M" if seconds < 12 * 3600 else "%A %H:%M"
    clock = time.strftime(form, time.localtime(time.time() + seconds))
    return [f"{float(f'{speed:.2g}'):,.0f} tokens/s", f"{done} (done around {clock})"]


def _untimed_pace(trainer: Trainer, steps: int) -> str:
    """The steps to come, where their speed is not measured beforehand."""
    given = trainer.seconds_left()
    if math.isinf(given):
        return counted(steps, "step")
    return f"at most {counted(steps, 'step')}, in the {duration(given)} allowed"


def _speed(trainer: Trainer) -> float:
    """Tokens a second, over the next three batches or two seconds."""
    first = trainer.progress.step * trainer.config.accumulate
    trainer.batches(first)  # the order of an epoch is made once
    tokens = 0
    began = time.monotonic()
    for number in range(3):
        batch = trainer.ready(trainer.batches(first + number))
        trainer._gradient([batch], batch.tokens)
        if trainer.device.type == "cuda":
            torch.cuda.synchronize(trainer.device)
        tokens += batch.tokens_read
        seconds = time.monotonic() - began
        if seconds > 2:
            break
    return tokens / seconds


def duration(seconds: float) -> str:
    """Seconds in words: 1 second, 90 seconds, 10 minutes, 2.5 hours."""
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= 2 * length:
            digits = 0 if unit == "minute" else 1
            return f"{seconds / length:.{digits}f} {unit}s"
    whole = max(1, round(seconds))
    return counted(whole, "second")
