"""Memory of `regard translate` on one text of a hundred thousand sentences: its peak, as JSON.

python benchmarks/long_text.py --data ../shared/data/tatoeba-fra-eng [--beam 5] [--run RUN]

The text is a single line, made of distinct English sentences of the train split. The model, unless
a run is given, has width 256 and 3+3 layers and is trained for 250 steps: its answers are long and
repeat themselves, which takes more memory than good ones.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BOUND = 1_000_000
"""Kilobytes that are allowed: 1 GB."""


def sentences(folder: Path, count: int) -> list[str]:
    with gzip.open(folder / "train.tsv.gz", "rt", encoding="utf-8") as lines:
        distinct = list(dict.fromkeys(line.split("\t")[0].strip() for line in lines))
    if len(distinct) < count:
        raise SystemExit(f"{folder} has {len(distinct)} distinct sentences, not {count}")
    return distinct[:count]


def train(folder: Path, out: Path) -> None:
    """In a process of its own: a process is said to have had at least the memory of its parent."""
    settings = ["data.limit=20000", "train.epochs=0", "train.steps=250", "train.save_every=250"]
    words = [sys.executable, "-m", "regard", "train", str(folder / "train.tsv.gz")]
    words += ["--preset", "small", "--out", str(out), *settings, "train.evaluate_every=250"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def measure(run: Path, text: Path, beam: int, threads: int) -> dict[str, float]:
    """Translate the file by the public command, and ask the system what it took at most."""
    answer = text.with_suffix(".out")
    words = [sys.executable, "-m", "regard", "translate", str(run), "--device", "cpu"]
    words += ["--beam", str(beam), "--input", str(text), "--output", str(answer)]
    began = time.perf_counter()
    with subprocess.Popen(
        words, env={**os.environ, "OMP_NUM_THREADS": str(threads)}, stderr=subprocess.DEVNULL
    ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"regard translate ended with {process.returncode}")
    return {
        "seconds": round(time.perf_counter() - began),
        "peak kB": usage.ru_maxrss,
        "of 1 GB": round(usage.ru_maxrss / BOUND, 3),
        "lines": answer.read_text(encoding="utf-8").count("\n"),
        "characters": len(answer.read_text(encoding="utf-8")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--sentences", type=int, default=100_000)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        run = options.run or Path(folder, "run")
        if not run.exists():
            train(options.data, run)
        text = Path(folder, "text.txt")
        lines = sentences(options.data, options.sentences)
        text.write_text(" ".join(lines) + "\n", encoding="utf-8")
        found = measure(run, text, options.beam, options.threads)
    print(json.dumps({"sentences": options.sentences, "beam": options.beam, **found}))


if __name__ == "__main__":
    main()
