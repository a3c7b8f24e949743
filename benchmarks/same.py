"""Fingerprints of what Regard computes: the same before and after a change that should change
nothing.

    PYTHONPATH=src python benchmarks/same.py [--run RUN --texts FILE] > before.json

Trains the presets demo, course and rnn for 200 steps each on one thread, and hashes their weights,
their logs (without the clock) and the config they were trained with. With --run, also translates
the first 500 lines of FILE by greedy search and by a beam of 5, and hashes texts, scores and
warnings. Compare the two outputs with `diff`; figures hold for one machine and one version of
torch.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

PRESETS = {"demo": "phrases", "course-tuned": "arithmetic", "rnn": "phrases"}
CLOCK = ("seconds", "tokens_per_second", "examples_per_second", "epoch")  # older logs have none
SETTINGS = (
    "train.steps=200",
    "train.epochs=0",
    "train.threads=1",
    "train.tensorboard=off",
    "train.device=cpu",
)


def regard(*words: str) -> str:
    command = [sys.executable, "-m", "regard", *words]
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ).stdout


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:24]


def trained(preset: str, data: str, folder: Path) -> dict[str, str]:
    run = folder / preset
    regard("train", data, "--preset", preset, "--out", str(run), *SETTINGS)
    last = max((run / "checkpoints").glob("step-*"))

    log = []
    for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        log.append({name: value for name, value in record.items() if name not in CLOCK})

    return {
        f"{preset} weights": digest((last / "model.safetensors").read_bytes()),
        f"{preset} log": digest(json.dumps(log).encode()),
        f"{preset} config": digest((run / "config.toml").read_bytes()),
    }


def answered(run: Path, texts: Path, beam: int, folder: Path) -> dict[str, str]:
    lines = texts.read_text(encoding="utf-8").splitlines()[:500]
    source = folder / "texts.txt"
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    answers = regard(
        "translate",
        str(run),
        "--input",
        str(source),
        "--beam",
        str(beam),
        "--json",
        "--device",
        "cpu",
    )
    return {f"{len(lines)} answers, beam {beam}": digest(answers.encode())}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path)
    parser.add_argument("--texts", type=Path)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        fingerprints = {}
        for preset, data in PRESETS.items():
            fingerprints |= trained(preset, data, folder)
        if options.run:
            for beam in (1, 5):
                fingerprints |= answered(options.run, options.texts, beam, folder)
        print(json.dumps(fingerprints, indent=1))


if __name__ == "__main__":
    main()
