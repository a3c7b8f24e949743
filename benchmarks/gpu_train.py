"""Training on one GPU: that the fast paths give the plain path's numbers, and how fast they are.
One JSON line each.

python benchmarks/gpu_train.py [--only base big calculator] [--seconds 10]
"""

import argparse
import json
import subprocess
import sys
import time

import torch

from regard.config import TrainConfig, TransformerConfig
from regard.data.batches import Batch, collate
from regard.models import build_model
from regard.training.fast.paths import Ahead, compile_blocks
from regard.training.trainer import Trainer

CUDA = torch.device("cuda")
SIZES = {
    "base": {
        "width": 512,
        "ffn": 2048,
        "heads": 8,
        "encoder_layers": 6,
        "decoder_layers": 6,
        "bias": False,
    },
    "big": {
        "width": 1024,
        "ffn": 4096,
        "heads": 16,
        "encoder_layers": 6,
        "decoder_layers": 6,
        "bias": False,
    },
    "calculator": {"width": 64, "ffn": 64, "heads": 4, "encoder_layers": 2, "decoder_layers": 2},
}
VOCABULARY = {"base": 32000, "big": 32000, "calculator": 32}
PATHS = {
    "base": ["plain", "compiled"],
    "big": ["plain", "compiled"],
    "calculator": ["plain", "captured", "compiled"],
}
WANTED = {"base": 1_100_000, "big": 550_000, "calculator": 110_000}


def batches(name: str, count: int) -> list[Batch]:
    """768 pairs of U(16, 32) tokens a side, so that three quarters of 32 + 32 places are real; or
    125 formulas of 9 and 5.
    """
    rng, v = torch.Generator().manual_seed(0), VOCABULARY[name]
    size, low, high = (125, (9, 5), (9, 5)) if name == "calculator" else (768, (16, 16), (32, 32))

    def row(side: int) -> list[int]:
        n = int(torch.randint(low[side], high[side] + 1, (), generator=rng))
        return [*torch.randint(16, v, (n - 1,), generator=rng).tolist(), 2]

    return [collate([(row(0), [1, *row(1)]) for _ in range(size)]) for _ in range(count)]


def trainer(
    name: str, path: str, dropout: float, feed: object = None, precision: str = "bf16"
) -> Trainer:
    torch.manual_seed(0)
    model = build_model(
        TransformerConfig(**SIZES[name], dropout=dropout), VOCABULARY[name], VOCABULARY[name]
    ).to(CUDA)
    if path == "compiled":
        compile_blocks(model)
    c = TrainConfig(precision=precision, path=path, warmup=0, schedule="constant", rate=1e-4)
    return Trainer(model, feed, c, steps=10**9, device=CUDA)


def equal(name: str, path: str, made: list[Batch]) -> dict:
    """Losses of four steps without dropout, and how far the weights are apart after them, beside
    the plain path's.
    """
    found = {}
    for way in ("plain", path):
        t = trainer(name, way, 0.0)
        losses = []
        for b in made[:5]:
            t.update([b])
            losses.append(float(t.totals[1] / t.totals[3]))
            t.totals.zero_()
        found[way] = losses, torch.cat([p.detach().float().flatten() for p in t.model.parameters()])
        del t
    apart = (found["plain"][1] - found[path][1]).abs()
    losses = max(abs(a - b) / a for a, b in zip(found["plain"][0], found[path][0], strict=True))
    return {
        "check": name,
        "path": path,
        "losses": found[path][0],
        "losses differ by": losses,
        "weights": float(apart.mean()),
    }


def speed(name: str, path: str, made: list[Batch], seconds: float) -> dict:
    feed = Ahead(lambda step: made[step % len(made)], path, CUDA)
    torch.cuda.reset_peak_memory_stats()
    t = trainer(name, path, 0.01 if name == "calculator" else 0.1, feed)
    began = time.perf_counter()
    for step in range(12):
        t.update([feed(step)])
    torch.cuda.synchronize()
    start = time.perf_counter()
    step = 12
    while time.perf_counter() - start < seconds:
        for _ in range(20):
            t.update([feed(step)])
            step += 1
        torch.cuda.synchronize()
    took = time.perf_counter() - start
    if name == "calculator":
        rate, unit = (step - 12) * 125 / took, "examples/s"
    else:
        real = sum(b.tokens + b.source_tokens for b in made) / len(made)
        rate, unit = (step - 12) * real / took, "real tokens/s"
    return {
        "speed": name,
        "path": path,
        unit: round(rate),
        "wanted": WANTED[name],
        "ms a step": round(1000 * took / (step - 12), 3),
        "start s": round(start - began, 1),
        "GiB": round(torch.cuda.max_memory_allocated() / 2**30, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(SIZES))
    parser.add_argument("--paths", nargs="*", default=[], help="plain, packed, captured, compiled")
    parser.add_argument("--seconds", type=float, default=5)
    given = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    asked = [(name, path) for name in given.only for path in given.paths or PATHS[name]]
    if len(asked) > 1:  # a process each: what one compiles is not in the next one's way
        print(
            json.dumps(
                {
                    "device": torch.cuda.get_device_name(),
                    "torch": torch.__version__,
                    "date": time.strftime("%Y-%m-%d"),
                }
            )
        )
        for name, path in asked:
            words = [
                sys.executable,
                __file__,
                "--only",
                name,
                "--paths",
                path,
                "--seconds",
                str(given.seconds),
            ]
            subprocess.run(words, check=False)
        return
    name, path = asked[0]
    made = batches(name, 8)
    if path != "plain":
        print(json.dumps(equal(name, path, made)), flush=True)
    print(json.dumps(speed(name, path, made, given.seconds)), flush=True)


if __name__ == "__main__":
    main()
