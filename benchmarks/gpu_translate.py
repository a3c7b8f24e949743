"""`regard translate` on one GPU beside its own engine, which is given the same sentences already
tokenised.

python benchmarks/gpu_translate.py RUN SENTENCES.txt [--beams 1 5] [--profile]

One JSON line a beam: sentences a second of the command (reading, tokenising, decoding, writing; its
start-up, measured on eight sentences, taken off) and of the engine with the same run, precision and
batch, after one pass in which it captures its graphs.
"""

import argparse
import cProfile
import json
import pstats
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

import regard
from regard.search import Beam, Greedy, Job
from regard.text.vocabulary import EOS


def command(run: str, source: Path, beam: int) -> float:
    """Seconds of the whole command."""
    with tempfile.TemporaryDirectory() as folder:
        words = [
            "translate",
            run,
            "--input",
            source,
            "--output",
            Path(folder) / "out",
            "--beam",
            beam,
            "--device",
            "cuda",
        ]
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "regard", *map(str, words)],
            check=True,
            stderr=subprocess.DEVNULL,
        )
        seconds = time.perf_counter() - began
        written = (Path(folder) / "out").read_text(encoding="utf-8").count("\n")
        assert written == source.read_text(encoding="utf-8").count("\n")
    return seconds


def engine(translator: regard.Translator, texts: list[str], beam: int) -> float:
    """Seconds of the search alone."""
    encoded = translator.source.encode_batch(texts)
    search = Greedy() if beam == 1 else Beam(beam)
    jobs = [Job([*ids, EOS]) for ids in encoded]
    torch.cuda.synchronize()
    began = time.perf_counter()
    translator._run(jobs, search)
    torch.cuda.synchronize()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run")
    parser.add_argument("sentences", type=Path)
    parser.add_argument("--beams", type=int, nargs="*", default=[1, 5])
    parser.add_argument("--rounds", type=int, default=3, help="of the command; their median counts")
    parser.add_argument(
        "--profile", action="store_true", help="where the time goes, of the first 20,000"
    )
    given = parser.parse_args()
    texts = given.sentences.read_text(encoding="utf-8").splitlines()
    print(
        json.dumps(
            {
                "device": torch.cuda.get_device_name(),
                "torch": torch.__version__,
                "sentences": len(texts),
            }
        )
    )

    for beam in given.beams:
        translator = regard.load(given.run, device="cuda", beam=beam)
        engine(translator, texts, beam)  # captures the graphs
        alone = min(engine(translator, texts, beam) for _ in range(2))

        began = time.perf_counter()
        for _ in translator.translate(texts):
            pass
        call = time.perf_counter() - began

        if given.profile:
            profile = cProfile.Profile()
            profile.runcall(lambda t=translator: list(t.translate(texts[:20_000])))
            pstats.Stats(profile).sort_stats("tottime").print_stats(18)

        del translator
        torch.cuda.empty_cache()
        with tempfile.TemporaryDirectory() as folder:
            few = Path(folder) / "few.txt"
            few.write_text("\n".join(texts[:: len(texts) // 8][:8]) + "\n", encoding="utf-8")
            start = median(command(given.run, few, beam) for _ in range(given.rounds))
        whole = median(command(given.run, given.sentences, beam) for _ in range(given.rounds))
        rates = {"engine": alone, "translator.translate": call, "regard translate": whole - start}
        line = {
            "beam": beam,
            **{f"{name}, sentences/s": round(len(texts) / s) for name, s in rates.items()},
        }
        line |= {
            "command / engine": round(alone / (whole - start), 3),
            "start-up s": round(start, 2),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
