"""From a file of pairs to the first training step: seconds and anonymous memory of `regard.train`,
one JSON line a size.

python benchmarks/prepare.py [--pairs 100000 1000000] [--small] [--folder DIR]

The pairs are made up and the same on every machine: words of the built-in phrases and 60,000
invented ones, drawn by Zipf's law, about 150 bytes a pair. Seconds count from the start of Python;
`cpu` is user and system time of all threads, which others on the same machine change little.
`prepared MiB` is the peak of RssAnon until the run is prepared, less 4 bytes a parameter of the
model that is built to count them; `first step MiB` until the first step is done, less 16 (weight,
gradient, two of Adam): that has the activations of a batch too. --small trains a model of width 16
with 8,000 tokens, which leaves what grows with the data.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

BEGAN = time.perf_counter()
CHUNK = 50_000
STEPS = 3
INVENTED = 60_000
SMALL = {"width": 16, "ffn": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}


def write_corpus(path: Path, pairs: int) -> None:
    """Pairs of nearly as many words on both sides, each word with a translation of its own."""
    import numpy as np

    rng = np.random.default_rng(0)
    phrases = files("regard.data.tasks").joinpath("phrases.toml").read_text(encoding="utf-8")
    known = sorted({*re.findall(r"[^\W\d_]{2,}", phrases)})
    syllables = [
        a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "é", "an", "er")
    ]

    def invented() -> list[str]:
        parts = rng.integers(0, len(syllables), (INVENTED, 4))
        lengths = rng.integers(1, 5, INVENTED)
        return [
            "".join(syllables[i] for i in row[:n])
            for row, n in zip(parts.tolist(), lengths.tolist())
        ]

    source = np.array([*known, *invented()], dtype=object)
    target = np.array([*reversed(known), *invented()], dtype=object)
    weights = 1 / (np.arange(len(source)) + 2.7)  # Mandelbrot's form of Zipf's law
    edges = np.cumsum(weights / weights.sum())

    with path.open("w", encoding="utf-8") as file:
        for first in range(0, pairs, CHUNK):
            count = min(CHUNK, pairs - first)
            lengths = rng.integers(5, 17, count)
            drawn = np.searchsorted(edges, rng.random(int(lengths.sum()))).clip(max=len(source) - 1)
            words = source[drawn].tolist()
            answers = target[drawn].tolist()
            start = 0
            for length in lengths.tolist():
                end = start + length
                file.write(f"{' '.join(words[start:end])} .\t{' '.join(answers[start:end])} .\n")
                start = end


class Stop(Exception):
    """The first step is done."""


def anonymous() -> int:
    """Bytes of this process that no file backs."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("RssAnon:")[1].split()[0])


def measure(path: Path, pairs: int, small: bool) -> dict[str, Any]:
    """Train in this very process, and watch it from a thread."""
    import regard
    from regard.recipes import training as recipes
    from regard.recipes.reporter import Reporter

    peaks = {"now": 0}
    ended = threading.Event()
    imported = time.perf_counter() - BEGAN
    seconds: dict[str, float] = {}

    def watch() -> None:
        while not ended.wait(0.02):
            peaks["now"] = max(peaks["now"], anonymous())

    def mark(name: str) -> None:
        if name not in peaks:
            peaks[name] = max(peaks["now"], anonymous())
            seconds[name] = time.perf_counter() - BEGAN
            seconds[f"{name} cpu"] = sum(os.times()[:2])

    class Watching(Reporter):
        @contextmanager
        def bar(self, total: int, *_: Any, **__: Any) -> Iterator[Callable[..., None]]:
            def tick(done: int, *notes: str, **more: Any) -> None:
                if total == STEPS:
                    mark("first step")
                    raise Stop

            yield tick

    original = recipes.prepare

    def prepare(*given: Any, **more: Any) -> Any:
        run = original(*given, **more)
        seconds["parameters"] = run.manifest["parameters"]
        mark("prepared")
        return run

    recipes.prepare = prepare
    base = anonymous()
    watcher = threading.Thread(target=watch)
    watcher.start()
    with tempfile.TemporaryDirectory() as folder:
        train = {
            "epochs": 0,
            "steps": STEPS,
            "evaluate_every": 100,
            "save_every": 100,
            "tensorboard": "off",
            "threads": 2,
        }
        settings: dict[str, Any] = {
            "train": train,
            "search": {"width": 1},
            "data": {"dev": 100, "test": 100},
        }
        if small:
            settings |= {"model": SMALL, "text": {"tokenizer": "bpe", "size": 8000}}
        with suppress(Stop):
            regard.train(path, out=Path(folder) / "run", reporter=Watching(), **settings)
    parameters = int(seconds.pop("parameters"))
    ended.set()
    watcher.join()
    return {
        "pairs": pairs,
        "MB": round(path.stat().st_size / 1e6, 1),
        "parameters": parameters,
        "import s": round(imported, 1),
        **{f"{name} s": round(value, 1) for name, value in seconds.items()},
        "imported MiB": round(base / 2**20),
        "prepared MiB": round((peaks["prepared"] - 4 * parameters) / 2**20),
        "first step MiB": round((peaks["first step"] - 16 * parameters) / 2**20),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--small", action="store_true", help="a model of width 16")
    parser.add_argument(
        "--folder", type=Path, help="where the corpora are kept; default: a temporary folder"
    )
    parser.add_argument(
        "--here",
        action="store_true",
        help="measure in this process, not in one of its own for each size",
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        results = []
        for pairs in given.pairs:
            path = folder / f"pairs-{pairs}.tsv"
            if given.here:
                print(json.dumps(measure(path, pairs, given.small)))
                return
            if not path.exists():
                write_corpus(path, pairs)
            command = [
                sys.executable,
                __file__,
                "--here",
                "--pairs",
                str(pairs),
                "--folder",
                str(folder),
            ]
            command += ["--small"] if given.small else []
            results.append(
                json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            )
            print(json.dumps(results[-1]), flush=True)
    least = min(results, key=lambda result: result["pairs"])
    most = max(results, key=lambda result: result["pairs"])
    if most["pairs"] > least["pairs"]:
        for name in ("prepared", "first step"):
            grown = (
                (most[f"{name} MiB"] - least[f"{name} MiB"])
                * 2**20
                / (most["pairs"] - least["pairs"])
            )
            print(
                json.dumps(
                    {f"{name}: bytes a pair": round(grown, 2), "date": time.strftime("%Y-%m-%d")}
                )
            )


if __name__ == "__main__":
    main()
