"""How far back a language model remembers: one word decides another, 5 to 80 words later.

python benchmarks/distance.py [--steps 4000] [--seeds 1 2 3] [--only LSTM]

A text is a key, words without meaning, a question mark, and the value of that key:

    k3 da di du da … du ? v3

A plain RNN, an LSTM, a Transformer whose layers see the last 8 words, and one that sees all, each
of about 100,000 parameters, learn from the same texts in the same steps. One JSON line for each
model and seed: the share of right values by distance. docs/distance.py draws them.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import regard
from regard.recipes.reporter import Reporter

KEYS = 8
FILLERS = ("da", "di", "do", "du")
NEAREST, FARTHEST = 5, 80
DISTANCES = (5, 10, 15, 20, 25, 30, 40, 50, 60, 70, 80)
TEXTS = 40_000
TESTS = 200
"""Texts for each distance."""

TRANSFORMER = {
    "width": 64,
    "ffn": 256,
    "heads": 4,
    "decoder_layers": 2,
    "position": "rotary",
    "dropout": 0.0,
}
RNN = {"kind": "rnn", "decoder_layers": 1, "attention": "none", "dropout": 0.0}
MODELS: dict[str, dict[str, Any]] = {
    "plain RNN": {**RNN, "cell": "rnn", "width": 256, "embedding": 64},
    "LSTM": {**RNN, "cell": "lstm", "width": 128, "embedding": 64},
    "Transformer, window of 8": {**TRANSFORMER, "decoder_pattern": "window", "window": 8},
    "Transformer": TRANSFORMER,
}


def text(rng: random.Random, distance: int) -> str:
    """A text whose last word stands `distance` words after the first."""
    key = rng.randrange(KEYS)
    fillers = rng.choices(FILLERS, k=distance - 2)
    return " ".join([f"k{key}", *fillers, "?", f"v{key}"])


def texts(seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    for _ in range(TEXTS):
        yield text(rng, rng.randint(NEAREST, FARTHEST))


def trained(model: dict[str, Any], steps: int, seed: int, folder: Path) -> regard.LanguageModel:
    """A causal language model of these settings."""
    run = regard.train(
        list(texts(seed)),
        out=folder,
        reporter=Reporter(quiet=True),
        text={"tokenizer": "words"},
        model=model,
        data={"batch_tokens": 4096, "max_length": 128, "dev": 500, "test": 1},
        train={
            "objective": "causal",
            "steps": steps,
            "epochs": 0,
            "minutes": 0,
            "rate": 2e-3,
            "schedule": "linear",
            "warmup": 100,
            "smoothing": 0.0,
            "seed": seed,
            "evaluate_every": steps // 4,
            "save_every": steps,
            "tensorboard": "off",
            "trials": 0,
        },
    )
    return regard.load(run, kind=regard.LanguageModel, device="cpu")


def accuracy(model: regard.LanguageModel, distance: int) -> float:
    """The share of texts whose value is the likeliest word."""
    rng = random.Random(distance)
    right = 0
    for _ in range(TESTS):
        prompt, _, value = text(rng, distance).rpartition(" ")
        right += model.options(prompt, 1)[0].text.endswith(value)
    return right / TESTS


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", default=list(MODELS), choices=list(MODELS))
    options = parser.parse_args()

    for name in options.only:
        for seed in options.seeds:
            with tempfile.TemporaryDirectory() as folder:
                began = time.perf_counter()
                model = trained(MODELS[name], options.steps, seed, Path(folder, "run"))
                seconds = time.perf_counter() - began
                shares = {distance: accuracy(model, distance) for distance in DISTANCES}
            line = {"model": name, "seed": seed, "seconds": round(seconds)}
            line["parameters"] = sum(weight.numel() for weight in model.model.parameters())
            print(json.dumps({**line, "accuracy": shares}), flush=True)


if __name__ == "__main__":
    main()
