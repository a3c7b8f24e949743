"""Memory of a whole `regard.train` on generated pairs: the peak of RssAnon, one JSON line a size,
and bytes a pair at the end.

python benchmarks/memory.py [--pairs 100000 1000000 10000000]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

SETTINGS = {
    "model": {"width": 16, "ffn": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1},
    "train": {
        "epochs": 0,
        "steps": 20,
        "warmup": 2,
        "evaluate_every": 10,
        "save_every": 20,
        "tensorboard": "off",
        "threads": 1,
    },
    "search": {"width": 1},
}


def anonymous() -> int:
    """Bytes of this process that no file backs."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("RssAnon:")[1].split()[0])


def measure(pairs: int) -> dict[str, float]:
    """Train in this very process, and watch it from a thread."""
    import regard
    from regard.recipes.reporter import Reporter

    peak, ended, began = 0, threading.Event(), time.perf_counter()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.02):
            peak = max(peak, anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    with tempfile.TemporaryDirectory() as folder:
        data = {"options": {"train": pairs, "dev": 200, "test": 200}}
        regard.train(
            "arithmetic",
            out=Path(folder) / "run",
            reporter=Reporter(quiet=True),
            data=data,
            **SETTINGS,
        )
    ended.set()
    watcher.join()
    return {
        "pairs": pairs,
        "peak MiB": round(peak / 2**20, 1),
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument(
        "--here",
        action="store_true",
        help="measure in this process, not in one of its own for each size",
    )
    given = parser.parse_args()
    if given.here:
        print(json.dumps(measure(given.pairs[0])))
        return
    found = []
    for pairs in given.pairs:
        command = [sys.executable, __file__, "--here", "--pairs", str(pairs)]
        found.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
        print(json.dumps(found[-1]), flush=True)
    least, most = min(found, key=lambda one: one["pairs"]), max(found, key=lambda one: one["pairs"])
    if most["pairs"] > least["pairs"]:
        grown = (most["peak MiB"] - least["peak MiB"]) * 2**20 / (most["pairs"] - least["pairs"])
        print(json.dumps({"bytes a pair": round(grown, 2), "date": time.strftime("%Y-%m-%d")}))


if __name__ == "__main__":
    main()
