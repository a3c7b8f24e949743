"""Does it pay? One JSON line for each thing that costs us code and may help nobody.

python benchmarks/worth.py bf16 RUN TEXTS    translating with bfloat16 weights beside float32, CPU
python benchmarks/worth.py muon DATA         Muon beside AdamW: dev loss after the same steps

docs/decisions/0018-what-pays.md has what was decided by them.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import regard


def worth_of_bf16(run: str, file: str, rounds: int) -> None:
    """Seconds for all the texts, greedy, in turn; and how many answers differ."""
    texts = Path(file).read_text(encoding="utf-8").splitlines()
    translators = {
        kind: regard.load(run, device="cpu", precision=kind, beam=1) for kind in ("fp32", "bf16")
    }
    answers = {kind: [r.text for r in t(texts)] for kind, t in translators.items()}
    times: dict[str, list[float]] = {kind: [] for kind in translators}
    for _ in range(rounds):
        for kind, translator in translators.items():
            began = time.perf_counter()
            translator(texts)
            times[kind].append(time.perf_counter() - began)

    medians = {kind: round(statistics.median(x), 2) for kind, x in times.items()}
    changed = sum(a != b for a, b in zip(answers["fp32"], answers["bf16"], strict=True))
    record = {"texts": len(texts), **medians, "speed": round(medians["fp32"] / medians["bf16"], 2)}
    print(json.dumps({**record, "answers changed": changed}), flush=True)


def worth_of_muon(data: str, steps: int, optimizers: list[str], rates: list[float]) -> None:
    """Dev loss after the same number of steps, at several rates, and the time they took."""
    for rate in rates:
        for optimizer in optimizers:
            with tempfile.TemporaryDirectory() as folder:
                began = time.perf_counter()
                settings = {"optimizer": optimizer, "rate": rate, "steps": steps}
                settings |= {"epochs": 0, "patience": 0}
                run = regard.train(data, out=Path(folder, "run"), train=settings)
                seconds = time.perf_counter() - began
                losses = [r["loss"] for r in run.records() if r["kind"] == "dev"]
                record = {"optimizer": optimizer, "rate": rate, "steps": steps}
                record |= {"dev loss": round(min(losses), 4), "seconds": round(seconds, 1)}
                print(json.dumps(record), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("bf16", "muon"))
    parser.add_argument("files", nargs="*")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--optimizers", nargs="+", default=["adamw", "muon"])
    parser.add_argument("--rates", nargs="+", type=float, default=[5e-4, 1e-3, 2e-3])
    arguments = parser.parse_args()
    if arguments.what == "bf16":
        worth_of_bf16(*arguments.files, arguments.rounds)
    else:
        worth_of_muon(*arguments.files, arguments.steps, arguments.optimizers, arguments.rates)


if __name__ == "__main__":
    main()
