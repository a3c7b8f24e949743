"""Does it pay? One JSON line for each thing that costs us code and may help nobody.

python benchmarks/worth.py adamw             our AdamW beside torch.optim.AdamW(fused=True), CPU
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

import torch
from train import WORKLOADS, batches

import regard
from regard.config import TrainConfig, TransformerConfig
from regard.models import build_model
from regard.training.fast import fused
from regard.training.trainer import Trainer

CPU = torch.device("cpu")


def worth_of_adamw(rounds: int) -> None:
    """Milliseconds of a whole training step, in turn."""
    for name in ("W1", "W2"):
        workload = WORKLOADS[name]
        made = batches(name)
        ours = _trainer(workload, own=True)
        theirs = _trainer(workload, own=False)
        times: dict[str, list[float]] = {"own": [], "torch": []}
        for _ in range(rounds):
            for key, trainer in (("own", ours), ("torch", theirs)):
                began = time.perf_counter()
                for batch in made:
                    trainer.update([batch])
                times[key].append(1000 * (time.perf_counter() - began) / len(made))

        medians = {f"{key} ms": round(statistics.median(x[1:]), 2) for key, x in times.items()}
        ratio = medians["torch ms"] / medians["own ms"]
        print(json.dumps({"adamw": name, **medians, "torch / own": round(ratio, 3)}), flush=True)


def _trainer(workload: dict, *, own: bool) -> Trainer:
    torch.manual_seed(1)
    shape = {key: workload[key] for key in ("width", "ffn", "heads", "dropout")}
    layers = workload["layers"]
    config = TransformerConfig(**shape, encoder_layers=layers, decoder_layers=layers)
    model = build_model(config, workload["size"], workload["size"])
    has_adamw = fused.has_adamw
    fused.has_adamw = lambda: own
    try:
        train = TrainConfig(rate=1e-4, warmup=0, schedule="constant", precision="fp32")
        return Trainer(model, lambda step: None, train, steps=10**6, device=CPU)
    finally:
        fused.has_adamw = has_adamw


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
    parser.add_argument("what", choices=("adamw", "bf16", "muon"))
    parser.add_argument("files", nargs="*")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--optimizers", nargs="+", default=["adamw", "muon"])
    parser.add_argument("--rates", nargs="+", type=float, default=[5e-4, 1e-3, 2e-3])
    arguments = parser.parse_args()
    if arguments.what == "adamw":
        worth_of_adamw(arguments.rounds)
    elif arguments.what == "bf16":
        worth_of_bf16(*arguments.files, arguments.rounds)
    else:
        worth_of_muon(*arguments.files, arguments.steps, arguments.optimizers, arguments.rates)


if __name__ == "__main__":
    main()
