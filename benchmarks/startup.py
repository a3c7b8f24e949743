"""What the first answer of `regard translate RUN TEXT` costs beside `import torch`.

Both are whole processes, started in turn; prints one JSON line with medians in seconds.

    python benchmarks/startup.py runs/NAME "a text" --rounds 11
"""

import argparse
import json
import subprocess
import sys
import time
from statistics import median


def seconds(*words: str) -> float:
    """How long a process of these words runs."""
    started = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("text")
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()

    torch_times = []
    answer_times = []
    for _ in range(options.rounds):
        torch_times.append(seconds("-c", "import torch"))
        answer_times.append(seconds("-m", "regard", "translate", options.run, options.text))

    figures = {
        "import_torch_s": round(median(torch_times), 2),
        "first_answer_s": round(median(answer_times), 2),
        "beyond_torch_s": round(median(answer_times) - median(torch_times), 2),
        "rounds": options.rounds,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
