"""How well each mechanism for long texts learns, in the same number of steps.

python benchmarks/long_quality.py TASK [--length 1024] [--only full window] [--steps 2000]
                                  [--seed 1] [--pairs FILE]

listops    nested lists of operations, `length`/2 to `length` tokens → a digit
retrieval  pairs of a key and a value, `length` tokens, and a key at the end → its value
documents  sentences of a file of pairs (--pairs), joined to texts of about `length` words

Encoders of four layers of width 128, a decoder of two with full attention, rotary positions; an
LSTM of width 256 reads both ways. One JSON line each: exact answers and BLEU on test, seconds of
training.
"""

import argparse
import gzip
import json
import random
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import regard
from regard.data.tasks.toys import listops
from regard.recipes.reporter import Reporter

Pairs = Iterator[tuple[str, str]]

TRANSFORMER = {
    "width": 128,
    "ffn": 512,
    "heads": 4,
    "encoder_layers": 4,
    "decoder_layers": 2,
    "position": "rotary",
    "dropout": 0.1,
}
LSTM = {"kind": "rnn", "width": 256, "embedding": 128, "bidirectional": True, "dropout": 0.1}
MECHANISMS: dict[str, dict[str, Any]] = {
    "full": {},
    "window": {"pattern": "window", "window": 64},
    "window, 1 global": {"pattern": "window", "window": 64, "global_tokens": 1},
    "chunked": {"pattern": "chunked", "window": 64},
    "chunked, alone": {"pattern": "chunked", "window": 64, "neighbors": 0},
    "bigbird": {"pattern": "bigbird", "window": 64, "global_tokens": 64},
    "linformer": {"pattern": "linformer", "features": 256},
    "performer": {"pattern": "performer", "features": 256},
    "lsh": {"pattern": "lsh", "window": 64},
    "routing": {"pattern": "routing"},
    "levels": {"levels": 2, "window": 64, "encoder_layers": 2, "segment_layers": 2},
    "lstm": LSTM,
}

KEYS = 1000
VALUES = 100


# ---- tasks ----


def nested_lists(rng: random.Random, length: int) -> Pairs:
    """Each of a length drawn from length/2 to length."""
    while True:
        wanted = rng.randint(length // 2, length)
        yield next(listops(rng, split="train", depth=6, length=wanted))


def retrieval(rng: random.Random, length: int) -> Pairs:
    """`k17 v3 k5 v80 … k17` → `v3`."""
    count = min(KEYS, (length - 1) // 2)
    while True:
        keys = rng.sample(range(KEYS), count)
        values = [rng.randrange(VALUES) for _ in keys]
        asked = rng.randrange(count)
        words = [f"k{key} v{value}" for key, value in zip(keys, values)]
        yield " ".join([*words, f"k{keys[asked]}"]), f"v{values[asked]}"


def documents(rng: random.Random, length: int, pairs: list[tuple[str, str]]) -> Pairs:
    """Sentences in random order, one after the other."""
    while True:
        sources: list[str] = []
        targets: list[str] = []
        words = 0
        while words < length - 20:
            source, target = rng.choice(pairs)
            sources.append(source)
            targets.append(target)
            words += len(source.split())
        yield " ".join(sources), " ".join(targets)


def sentences(path: Path, split: str) -> list[tuple[str, str]]:
    """The pairs of a TSV for training or, every fiftieth, for test."""
    read = gzip.open if path.suffix == ".gz" else open
    with read(path, "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    pairs = [(row[0], row[1]) for row in rows]
    random.Random(0).shuffle(pairs)
    held_out = len(pairs) // 50
    return pairs[:held_out] if split == "test" else pairs[held_out:]


def pairs_of(task: str, split: str, options: argparse.Namespace) -> Pairs:
    """Pairs without end, the same each time."""
    rng = random.Random(f"{task} {split}")
    if task == "listops":
        return nested_lists(rng, options.length)
    if task == "retrieval":
        return retrieval(rng, options.length)
    return documents(rng, options.length, sentences(options.pairs, split))


# ---- one training ----


def settings(task: str, mechanism: str, length: int, steps: int, seed: int) -> dict[str, Any]:
    """The same for all but the model."""
    change = MECHANISMS[mechanism]
    model = change if change.get("kind") == "rnn" else {**TRANSFORMER, **change}
    if mechanism == "linformer":
        model = {**model, "max_positions": 2 * length}
    text: dict[str, Any] = {"tokenizer": "words", "share": False}
    if task == "documents":
        text = {"tokenizer": "bpe", "size": 4000}
    return {
        "model": model,
        "text": text,
        "data": {"max_length": 2 * length, "batch_tokens": 16_384, "dev": 200},
        "train": {
            "steps": steps,
            "epochs": 0,
            "rate": 1e-3,
            "schedule": "linear",
            "warmup": min(200, steps // 5),
            "seed": seed,
            "patience": 0,
            "tensorboard": "off",
            "evaluate_every": steps,
            "save_every": steps,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=("listops", "retrieval", "documents"))
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--only", nargs="+", default=list(MECHANISMS))
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--count", type=int, default=20_000, help="pairs to train on")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pairs", type=Path, help="for documents: a TSV, also .gz")
    options = parser.parse_args()

    train = list(islice(pairs_of(options.task, "train", options), options.count))
    test = list(islice(pairs_of(options.task, "test", options), 500))

    for mechanism in options.only:
        given = settings(options.task, mechanism, options.length, options.steps, options.seed)
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            run = regard.train(
                train, out=Path(folder, "run"), reporter=Reporter(quiet=True), **given
            )
            seconds = time.perf_counter() - began
            report = regard.evaluate(run, test).report
        line = {"task": options.task, "length": options.length, "mechanism": mechanism}
        line |= {"exact": round(report.exact_match, 4), "accuracy": round(report.token_accuracy, 4)}
        if report.bleu is not None:
            line["bleu"] = round(report.bleu, 2)
        print(
            json.dumps({**line, "steps": options.steps, "seconds": round(seconds, 1)}), flush=True
        )


if __name__ == "__main__":
    main()
