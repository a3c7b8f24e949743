"""Two trees of this repository side by side on a CPU, in turn: has a change made it slower?

git worktree add /tmp/before COMMIT
python benchmarks/trees.py /tmp/before [--rounds 11] [--only W1 W2 W3 greedy-1 greedy-16 beam-1]

Each tree is a process of its own that imports its own library and its own benchmarks. They take
turns: a round of this tree, a round of the other. One JSON line a workload: the median of the
ratios, above 1 where this tree is faster.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TRAINING = ["W1", "W2", "W3"]
DECODING = ["greedy-1", "greedy-16", "beam-1"]
HERE = Path(__file__).resolve().parents[1]


def training(name: str) -> Callable[[], Any]:
    """A round of training steps."""
    import train

    batches = train.batches(name)
    steps, _ = train.sides(name, batches)
    step = steps["regard"]
    return lambda: [step(batch) for batch in batches]


def decoding(name: str) -> Callable[[], Any]:
    """A round of decoding."""
    import decode
    import torch

    torch.manual_seed(0)
    config = decode.TransformerConfig(
        width=512, ffn=2048, heads=8, encoder_layers=6, decoder_layers=6, tie="all"
    )
    model = decode.build_model(config, decode.SIZE, decode.SIZE).eval()
    decode.read_only(model, torch.float32)
    width, count, *_ = decode.WORKLOADS[name]
    rows = decode.sources(count)
    return lambda: decode.ours(model, rows, width)


def serve(name: str) -> None:
    """Be one of the two: a round for each line of standard input, its seconds as the answer."""
    sys.path.pop(0)  # this file's folder: each tree has benchmarks of its own
    work = training(name) if name in TRAINING else decoding(name)
    work()
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        work()
        print(time.perf_counter() - began, flush=True)


class Tree:
    """A process that runs the benchmarks of one tree."""

    def __init__(self, folder: Path, name: str) -> None:
        paths = os.pathsep.join([str(folder / "src"), str(folder / "benchmarks")])
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", name],
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == "ready", f"{folder}: it did not start"

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def round(self) -> float:
        """Seconds of a round."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self._answer())


def compare(other: Path, name: str, rounds: int) -> dict[str, Any]:
    """The median ratio of a workload."""
    ours = Tree(HERE, name)
    theirs = Tree(other, name)
    pairs = [(ours.round(), theirs.round()) for _ in range(rounds)]
    for tree in (ours, theirs):
        tree.process.kill()
    return {
        "workload": name,
        "ratio": round(statistics.median(before / now for now, before in pairs), 3),
        "seconds": round(statistics.median(now for now, _ in pairs), 4),
        "rounds": rounds,
        "date": time.strftime("%Y-%m-%d"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--only", nargs="*", default=[*TRAINING, *DECODING])
    parser.add_argument("--serve", metavar="WORKLOAD", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
        return
    if given.other is None:
        parser.error("name the folder of the other tree")
    for name in given.only:
        print(json.dumps(compare(given.other.resolve(), name, given.rounds)), flush=True)


if __name__ == "__main__":
    main()
