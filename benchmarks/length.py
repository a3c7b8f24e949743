"""Time and memory of attention against the length of a text: patterns for long inputs beside full
attention (torch's SDPA) and an LSTM.

python benchmarks/length.py [--device cpu] [--precision fp32|bf16] [--lengths 512 1024 …]
                            [--only full window] [--seconds 2]

One layer of width 256 with 4 heads reads one text of random numbers; projections included, the same
for all. On a CPU each measurement runs in a process of its own, so that its peak memory is its own;
a GPU counts its memory itself. One JSON line each: seconds (the fastest round) and megabytes beyond
what was in use before, forward alone and with backward. At the end, a line for each mechanism: the
fitted exponent of its growth, and from which length on it is faster than full attention.
"""

import argparse
import json
import math
import multiprocessing
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from regard.config import TransformerConfig
from regard.models import build_model
from regard.nn import (
    LSH,
    Approximation,
    BigBird,
    Chunked,
    Layout,
    Linformer,
    Mask,
    Pattern,
    Performer,
    Routing,
    SelfAttention,
    Window,
)

WIDTH = 256
HEADS = 4
HEAD = WIDTH // HEADS
MODES = ("forward", "training")
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
PATTERNS: dict[str, Pattern | None] = {
    "full": None,
    "window": Window(64),
    "chunked": Chunked(64, neighbors=1),
    "bigbird": BigBird(64, random_blocks=2, global_tokens=64),
}
APPROXIMATIONS: dict[str, Callable[[int], Approximation]] = {
    "linformer": lambda length: Linformer(HEADS, HEAD, max_positions=length, mixtures=256),
    "performer": lambda length: Performer(HEADS, HEAD, features=256),
    "lsh": lambda length: LSH(HEADS, HEAD, chunk=64, rounds=2),
    "routing": lambda length: Routing(HEADS, HEAD, clusters=round(math.sqrt(length))),
}
"""By the length of the text."""
UP_TO = {("cpu", "full"): 16_384, ("cuda", "lstm"): 32_768}
"""The most tokens that are measured, by device and mechanism.

Full attention would take minutes on a CPU; cuDNN's LSTM refuses 65,536 steps.
"""

Layer = Callable[[Tensor], Tensor]


def make_layer(name: str, length: int, device: torch.device) -> Layer:
    """(1, T, width) -> the same shape, for texts of this length."""
    torch.manual_seed(0)
    if name == "lstm":
        lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True).to(device)
        return lambda x: lstm(x)[0]
    if name == "levels":
        return two_levels(length, device)
    approximation = APPROXIMATIONS[name](length) if name in APPROXIMATIONS else None
    attention = SelfAttention(WIDTH, heads=HEADS, approximation=approximation).to(device)
    pattern = PATTERNS.get(name)

    def layer(x: Tensor) -> Tensor:
        queries, memory = attention.read(x)
        return attention.look(queries, memory, Mask(pattern=pattern))

    return layer


def two_levels(length: int, device: torch.device) -> Layer:
    """One layer within segments of 64 tokens, and one among the segments."""
    config = TransformerConfig(
        width=WIDTH,
        heads=HEADS,
        encoder_layers=1,
        segment_layers=1,
        levels=2,
        window=64,
        feedforward=False,
        norm="none",
        dropout=0.0,
    )
    encoder = build_model(config, 8, 8).encoder.to(device)
    lengths = torch.tensor([length], device=device)
    layout = Layout.of(lengths, length)
    positions = torch.arange(length, device=device)[None]  # (1, T)
    mask = Mask(pattern=encoder.pattern)

    def layer(x: Tensor) -> Tensor:
        rows, _ = encoder.blocks[0](layout.pack(x), mask, positions, layout)  # (T, width)
        return layout.pad(encoder.level(rows, lengths, layout))

    return layer


def measured(
    name: str, length: int, mode: str, device: str, precision: str, seconds: float
) -> dict[str, float]:
    """Seconds and megabytes of a layer; mode: forward, or training, which has a backward, too."""
    place = torch.device(device)
    layer = make_layer(name, length, place)
    x = torch.randn(1, length, WIDTH, device=place, requires_grad=mode == "training")
    half = torch.autocast(place.type, torch.bfloat16, enabled=precision == "bf16")

    def run() -> None:
        with torch.set_grad_enabled(mode == "training"), half:
            output = layer(x)
        if mode == "training":
            output.sum().backward()
        if place.type == "cuda":
            torch.cuda.synchronize()

    before = reset_peak(place)
    run()
    megabytes = (peak(place) - before) / 1e6
    return {f"{mode}_mb": megabytes, f"{mode}_seconds": fastest(run, seconds)}


def apart(
    name: str, length: int, mode: str, device: str, precision: str, seconds: float
) -> dict[str, float]:
    """`measured`, on a CPU in a process of its own."""
    what = (name, length, mode, device, precision, seconds)
    if torch.device(device).type == "cuda":
        return measured(*what)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measured, what)


def fastest(run: Callable[[], None], seconds: float) -> float:
    """The fastest of at least two rounds."""
    best = math.inf
    began = time.perf_counter()
    rounds = 0
    while rounds < 2 or time.perf_counter() - began < seconds:
        round_began = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - round_began)
        rounds += 1
    return best


# ---- memory ----


def reset_peak(device: torch.device) -> int:
    """Forget the peak so far -> bytes in use now."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")
    return _resident("VmRSS")


def peak(device: torch.device) -> int:
    """The most bytes that were in use since `reset_peak`."""
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else _resident("VmHWM")


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {field}")


# ---- growth ----


def exponent(points: list[tuple[int, float]]) -> float:
    """The slope of log seconds against log length, by least squares."""
    x = [math.log(length) for length, _ in points]
    y = [math.log(value) for _, value in points]
    x_mean = sum(x) / len(x)
    y_mean = sum(y) / len(y)
    covariance = sum((a - x_mean) * (b - y_mean) for a, b in zip(x, y))
    return covariance / sum((a - x_mean) ** 2 for a in x)


def crossing(points: dict[int, float], full: dict[int, float]) -> int | None:
    """The first measured length from which on it is always faster than full attention."""
    both = sorted(set(points) & set(full))
    slower = [length for length in both if points[length] >= full[length]]
    faster = [length for length in both if not slower or length > max(slower)]
    return faster[0] if faster else None


def summaries(rows: list[dict[str, float]], least: int) -> Iterator[dict[str, object]]:
    """Of each mechanism: exponents of time and memory from `least` tokens on, and the crossing."""
    for mode in MODES:
        curves: dict[str, dict[int, dict[str, float]]] = {}
        for row in rows:
            curves.setdefault(str(row["name"]), {})[int(row["length"])] = row
        full = {n: row[f"{mode}_seconds"] for n, row in curves.get("full", {}).items()}
        for name, curve in curves.items():
            seconds = {n: row[f"{mode}_seconds"] for n, row in curve.items()}
            long = [(n, s) for n, s in sorted(seconds.items()) if n >= least]
            memory = [(n, row[f"{mode}_mb"]) for n, row in sorted(curve.items()) if n >= least]
            has_memory = len(memory) > 1 and min(mb for _, mb in memory) > 0
            yield {
                "summary": name,
                "mode": mode,
                "from": least,
                "time_exponent": round(exponent(long), 3) if len(long) > 1 else None,
                "memory_exponent": round(exponent(memory), 3) if has_memory else None,
                "faster_than_full_from": crossing(seconds, full),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--only", nargs="+", default=[*PATTERNS, *APPROXIMATIONS, "levels", "lstm"])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--fit-from", type=int, default=2048)
    options = parser.parse_args()
    machine = {"machine": platform.processor() or platform.machine(), "torch": torch.__version__}
    kind = torch.device(options.device).type
    if kind == "cuda":
        machine["machine"] = torch.cuda.get_device_name()
    how = {"device": options.device, "precision": options.precision}
    print(json.dumps(machine | how | {"date": time.strftime("%Y-%m-%d")}))

    rows = []
    for length in options.lengths:
        for name in options.only:
            if length > UP_TO.get((kind, name), length):
                continue
            row = {"name": name, "length": length}
            for mode in MODES:
                figures = apart(name, length, mode, *how.values(), options.seconds)
                row |= {figure: round(value, 6) for figure, value in figures.items()}
            rows.append(row)
            print(json.dumps(row), flush=True)
    for summary in summaries(rows, options.fit_from):
        print(json.dumps(summary))


if __name__ == "__main__":
    main()
