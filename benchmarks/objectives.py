"""Encoder, decoder or both: what the three kinds of model learn from the same text.

python benchmarks/objectives.py PART --data ../shared/data/multi30k [--seeds 1 2 3] [--only …]

The text: the 29,000 English captions of Multi30k.

abilities   models of equal parameters that learned the same tokens: bits a character of the dev
            captions, missing words found (whatever became of the others), and how alike the German
            of a caption and that of the nearest other caption are (chrF), by the models' vectors
transfer    German → English from 1,000 pairs, by a translator of three and three layers: nothing
            learned before, or its decoder (causal), its encoder (masked) or all of it (denoise)
            from the English text. All have the same tokens, of the German and English captions.

One JSON line for each model and seed.
"""

import argparse
import gzip
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import sacrebleu

import regard
from regard import LanguageModel, MaskedLanguageModel, Translator
from regard.recipes.reporter import Reporter

OBJECTIVES = ("causal", "masked", "denoise")
PAIRS = 1000
MODEL = {
    "width": 128,
    "ffn": 512,
    "heads": 4,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "position": "rotary",
}
ALONE = {"encoder_layers": 7, "decoder_layers": 7}
"""Layers of a decoder or an encoder alone, as large as three and three layers with attention
between them."""


def lines(folder: Path, name: str) -> list[str]:
    with gzip.open(folder / f"{name}.gz", "rt", encoding="utf-8") as file:
        return [line.strip() for line in file]


def pairs(folder: Path, split: str) -> list[tuple[str, str]]:
    """German and English."""
    return list(zip(lines(folder, f"{split}.de"), lines(folder, f"{split}.en"), strict=True))


def beginning(options: argparse.Namespace, seed: int, out: Path) -> regard.Run:
    """A translator that knows the tokens of both languages, and nothing else: of one tiny step."""
    return regard.train(
        {"train": pairs(options.data, "train"), "dev": pairs(options.data, "val")},
        out=out,
        reporter=Reporter(quiet=True),
        data={"batch_tokens": 2048},
        text={"size": 4000},
        model={**MODEL, "dropout": 0.1},
        train={
            "objective": "translate",
            "epochs": 0,
            "steps": 1,
            "minutes": 0,
            "rate": 1e-9,
            "schedule": "constant",
            "seed": seed,
            "trials": 0,
            "tensorboard": "off",
        },
    )


def pretrained(
    objective: str, begin: dict[str, Any], options: argparse.Namespace, seed: int, out: Path
) -> regard.Run:
    """A run that has read the English captions. begin: what it starts from, or its sizes."""
    return regard.train(
        lines(options.data, "train.en"),
        out=out,
        reporter=Reporter(quiet=True),
        data={"dev": 500, "test": 1, "batch_tokens": 2048},
        train={
            "objective": objective,
            "mask_rate": options.mask_rate if objective == "denoise" else 0.15,
            "epochs": options.passes,
            "minutes": 0,
            "rate": 2e-3,
            "schedule": "cosine",
            "warmup": 200,
            "smoothing": 0.0,
            "seed": seed,
            "trials": 0,
            "tensorboard": "off",
        },
        **begin,
    )


# What each can do


def abilities(objective: str, run: regard.Run, options: argparse.Namespace) -> dict[str, Any]:
    """Bits a character, missing words found, German of nearest captions; None: it cannot."""
    dev = pairs(options.data, "val")
    english = [text for _, text in dev]
    found: dict[str, Any] = {"bits": None, "filled": None, "nearest_chrf": None}
    if objective == "causal":
        causal = regard.load(run, kind=LanguageModel, device="cpu")
        found["bits"] = causal.bits_per_character(english)
        texts = causal.generate(["A man", "Two dogs"], sampling=regard.Sampling(seed=1))
        found["sample"] = [generation.text for generation in texts]
        return found

    model: Any
    if objective == "masked":
        model = regard.load(run, kind=MaskedLanguageModel, device="cpu")
    else:
        model = regard.load(run, kind=Translator, device="cpu", beam=1)
    asked = gaps(english)
    answers = [answer.text for answer in model([gap.text for gap in asked])]
    right = [gap.is_filled_by(answer) for gap, answer in zip(asked, answers, strict=True)]
    found["filled"] = sum(right) / len(right)
    found["nearest_chrf"] = chrf_of_nearest(model, dev)
    return found


class Gap(NamedTuple):
    """A text with one of its words missing."""

    text: str
    word: str
    place: int
    """Of the word among the words of the text."""

    def is_filled_by(self, answer: str) -> bool:
        """Whether the word stands at its place, whatever became of the others."""
        words = answer.split()
        return self.place < len(words) and words[self.place].strip(".,") == self.word


def gaps(texts: list[str]) -> list[Gap]:
    """The texts with one word missing, drawn at random, of those where it is made of letters."""
    rng = random.Random(1)
    found = []
    for text in texts:
        words = text.split()
        place = rng.randrange(len(words))
        word = words[place].strip(".,")
        if word.isalpha():
            gap = [*words[:place], words[place].replace(word, "<mask>"), *words[place + 1 :]]
            found.append(Gap(" ".join(gap), word, place))
    return found


def chrf_of_nearest(model: Any, dev: list[tuple[str, str]]) -> float:
    """Mean chrF between the German of each caption and that of the caption nearest to it."""
    vectors = model.embed([english for _, english in dev])
    vectors = vectors - vectors.mean(0)
    vectors /= (vectors**2).sum(1, keepdims=True) ** 0.5
    similar = vectors @ vectors.T
    similar[range(len(dev)), range(len(dev))] = -1
    scores = [
        sacrebleu.sentence_chrf(dev[nearest][0], [german]).score
        for (german, _), nearest in zip(dev, similar.argmax(1).tolist())
    ]
    return sum(scores) / len(scores)


# What it is worth to a translator


def translated(base: regard.Run, options: argparse.Namespace, seed: int, out: Path) -> float:
    """BLEU on test of a translator that learned from 1,000 pairs."""
    every = pairs(options.data, "train")
    some = [every[place * len(every) // PAIRS] for place in range(PAIRS)]
    test = pairs(options.data, "test_2016_flickr")
    run = regard.train(
        {"train": some, "dev": pairs(options.data, "val")},
        out=out,
        reporter=Reporter(quiet=True),
        data={"batch_tokens": 2048},
        train={
            "objective": "translate",
            "epochs": 0,
            "steps": options.steps,
            "minutes": 0,
            "rate": options.rate,
            "schedule": "cosine",
            "warmup": 100,
            "smoothing": 0.1,
            "evaluate_every": options.steps // 10,
            "save_every": options.steps // 10,
            "seed": seed,
            "trials": 0,
            "tensorboard": "off",
        },
        start_from=base.path,
        model={"dropout": 0.3},
    )
    report = regard.evaluate(run, test, device="cpu").report
    assert report.bleu is not None
    return report.bleu


def transfer(
    kind: str, start: regard.Run, options: argparse.Namespace, seed: int, out: Path
) -> dict[str, Any]:
    """BLEU of a translator whose first weights have learned nothing, or from the English text."""
    base = start
    if kind != "none":
        begin = {"start_from": start.path, "model": {"dropout": 0.1}}
        base = pretrained(kind, begin, options, seed, out / kind)
    bleu = translated(base, options, seed, out / f"{kind}-translator")
    return {"parameters": base.manifest["parameters"], "bleu": bleu}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("abilities", "transfer"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", choices=("none", *OBJECTIVES))
    parser.add_argument("--passes", type=int, default=6, help="over the English text")
    parser.add_argument("--mask-rate", type=float, default=0.3, help="of denoising")
    parser.add_argument("--steps", type=int, default=800, help="on the 1,000 pairs")
    parser.add_argument("--rate", type=float, default=1e-3, help="on the 1,000 pairs")
    options = parser.parse_args()

    kinds = options.only or (OBJECTIVES if options.part == "abilities" else ("none", *OBJECTIVES))
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder)
            start = None
            if options.part == "transfer":
                start = beginning(options, seed, out / "beginning")
            for kind in kinds:
                began = time.perf_counter()
                line: dict[str, Any] = {"part": options.part, "model": kind, "seed": seed}
                if start is not None:
                    line |= transfer(kind, start, options, seed, out)
                else:
                    sizes = MODEL if kind == "denoise" else {**MODEL, **ALONE}
                    begin = {"text": {"size": 3000}, "model": {**sizes, "dropout": 0.1}}
                    base = pretrained(kind, begin, options, seed, out / kind)
                    line |= {"parameters": base.manifest["parameters"]}
                    line |= abilities(kind, base, options)
                line["seconds"] = round(time.perf_counter() - began)
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
