"""A language model on one megabyte of sentences, beside a count model and a plain torch.nn loop.

python benchmarks/language.py --data ../shared/data/tatoeba-fra-eng [--minutes 10] [--out FOLDER]

The text: distinct English sentences of the train split, drawn evenly; judged on those of dev. All
are judged by bits a character, where the end of a text counts as a character.

counts   a 7-gram model of characters with modified Kneser-Ney smoothing (Chen & Goodman 1999)
regard   regard.train with preset causal for the minutes given, and schedule=wsd, whose rate falls
         in time
loop     torch.nn.TransformerEncoder of the same sizes on the same tokens for as many seconds as
         regard trained: AdamW, warm-up and cosine, batches of random sentences, no cache when it
         writes

The seconds of both include their looks at dev, but for the last one.

Both then continue prompts of two words by sampling: 64 of them together, and one alone, each by
100 tokens; and 64 until their texts end, which these short sentences do after 8 tokens or so.

One JSON line each. Only the ratios count; nothing else should run on the machine.
"""

import argparse
import gzip
import json
import math
import random
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import regard
from regard import LanguageModel, Sampling
from regard.recipes.reporter import Reporter
from regard.text.vocabulary import BOS, EOS, PAD

BYTES = 1_000_000
ORDER = 7
START, END = "\x02", "\x03"
TOKENS = 100
"""Tokens that are written for a prompt: as many as by `regard generate` if nobody says."""


# The text


def english(folder: Path, split: str) -> list[str]:
    """The distinct English sentences of a split, in the order of the file."""
    with gzip.open(folder / f"{split}.tsv.gz", "rt", encoding="utf-8") as lines:
        return list(dict.fromkeys(line.split("\t")[0].strip() for line in lines))


def drawn_evenly(texts: list[str], size: int) -> list[str]:
    """Texts of about so many bytes in all, newlines included, from everywhere in the list."""
    total = sum(len(text.encode()) + 1 for text in texts)
    count = round(len(texts) * size / total)
    return [texts[place * len(texts) // count] for place in range(count)]


# Counting


class Counts:
    """An n-gram model of characters with modified Kneser-Ney smoothing."""

    def __init__(self, texts: list[str], order: int) -> None:
        self.order = order
        self.characters = len({character for text in texts for character in text}) + 1
        self.tables: list[dict[str, Counter[str]]] = [defaultdict(Counter) for _ in range(order)]
        longest = self.tables[-1]
        for text in texts:
            for context, character in self._events(text):
                longest[context][character] += 1
        for shorter, longer in zip(reversed(self.tables[:-1]), reversed(self.tables[1:])):
            for context, counter in longer.items():
                for character in counter:
                    shorter[context[1:]][character] += 1

        self.discounts = [_discounts(table) for table in self.tables]
        self.sums: list[dict[str, tuple[int, float]]] = []
        """By order, for each context: its count, and how much all discounts take from it."""
        for table, discount in zip(self.tables, self.discounts):
            sums = {}
            for context, counter in table.items():
                taken = sum(discount[min(count, 3)] for count in counter.values())
                sums[context] = (sum(counter.values()), taken)
            self.sums.append(sums)

    def _events(self, text: str) -> list[tuple[str, str]]:
        """Each character of a text, its end included, and the characters before it."""
        past = self.order - 1
        padded = START * past + text + END
        return [(padded[place - past : place], padded[place]) for place in range(past, len(padded))]

    def probability(self, context: str, character: str) -> float:
        probability = 1 / self.characters
        for length in range(self.order):
            end = context[len(context) - length :]
            if end not in self.tables[length]:
                break
            total, taken = self.sums[length][end]
            count = self.tables[length][end].get(character, 0)
            kept = count - self.discounts[length][min(count, 3)]
            probability = (kept + taken * probability) / total
        return probability

    def bits_per_character(self, texts: list[str]) -> float:
        events = [event for text in texts for event in self._events(text)]
        return -sum(math.log2(self.probability(*event)) for event in events) / len(events)


def _discounts(table: dict[str, Counter[str]]) -> list[float]:
    """What is taken from counts of 0, 1, 2, and 3 or more."""
    times = Counter(count for counter in table.values() for count in counter.values())
    share = times[1] / (times[1] + 2 * times[2])
    return [0.0] + [k - (k + 1) * share * times[k + 1] / max(1, times[k]) for k in (1, 2, 3)]


# A plain loop


class Loop(nn.Module):
    """A causal language model as a tutorial has it, of the sizes of a run."""

    def __init__(self, size: int, model: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size, model.width)
        self.position = nn.Embedding(256, model.width)
        layer = nn.TransformerEncoderLayer(
            model.width,
            model.heads,
            model.ffn,
            model.dropout,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.layers = nn.TransformerEncoder(
            layer, model.decoder_layers, nn.LayerNorm(model.width), enable_nested_tensor=False
        )
        self.dropout = nn.Dropout(model.dropout)
        nn.init.normal_(self.embedding.weight, std=0.02)
        nn.init.normal_(self.position.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) -> logits (B, T, V)."""
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        states = self.dropout(self.embedding(tokens) + self.position.weight[:length])
        states = self.layers(states, mask=mask, is_causal=True)
        return states @ self.embedding.weight.T


def padded(rows: list[list[int]]) -> Tensor:
    return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True, PAD)


def nats(logits: Tensor, tokens: Tensor, reduction: str = "mean") -> Tensor:
    return nn.functional.cross_entropy(
        logits.flatten(0, 1), tokens.flatten(), ignore_index=PAD, reduction=reduction
    )


def train_loop(
    loop: Loop,
    train: list[list[int]],
    dev: list[list[int]],
    seconds: float,
    options: argparse.Namespace,
) -> tuple[float, int, float]:
    """Train for so many seconds. The least loss on dev, summed, in nats; steps; its seconds."""
    optimizer = torch.optim.AdamW(loop.parameters(), lr=options.rate, betas=(0.9, 0.98))
    rng = random.Random(1)
    order: list[int] = []
    used, step, best, look_at = 0.0, 0, math.inf, 0.1
    began = time.perf_counter()
    while used < seconds:
        if len(order) < options.sentences:
            order = rng.sample(range(len(train)), len(train))
        tokens = padded([train[order.pop()] for _ in range(options.sentences)])  # (B, T)
        rate = min(1, (step + 1) / 100) * (1 + math.cos(math.pi * used / seconds)) / 2
        for group in optimizer.param_groups:
            group["lr"] = options.rate * rate
        loss = nats(loop(tokens[:, :-1]), tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(loop.parameters(), 1.0)
        optimizer.step()
        step += 1
        used = time.perf_counter() - began
        if look_at * seconds <= used < seconds:
            best = min(best, judge(loop, dev))
            look_at += 0.1
    return min(best, judge(loop, dev)), step, used


@torch.no_grad()
def judge(loop: Loop, dev: list[list[int]]) -> float:
    """The loss on dev, summed, in nats."""
    loop.eval()
    total = 0.0
    for start in range(0, len(dev), 100):
        tokens = padded(dev[start : start + 100])
        total += float(nats(loop(tokens[:, :-1]), tokens[:, 1:], "sum"))
    loop.train()
    return total


@torch.no_grad()
def write(loop: Loop, prompts: list[list[int]], *, may_end: bool) -> int:
    """Continue prompts, all together, by sampling; the number of tokens written."""
    loop.eval()
    generator = torch.Generator().manual_seed(1)
    rows = [[BOS, *prompt] for prompt in prompts]
    going = list(range(len(rows)))
    written = 0
    for _ in range(TOKENS):
        tokens = padded([rows[row] for row in going])  # (B, T)
        last = torch.tensor([len(rows[row]) - 1 for row in going])
        logits = loop(tokens)[torch.arange(len(going)), last]  # (B, V)
        if not may_end:
            logits[:, EOS] = -math.inf
        drawn = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0].tolist()
        for row, token in zip(going, drawn):
            rows[row].append(token)
        written += len(going)
        going = [row for row in going if rows[row][-1] != EOS]
        if not going:
            break
    return written


# Side by side


def tokens_per_second(
    run: regard.Run, loop: Loop, prompts: list[str], *, may_end: bool = False
) -> dict[str, float]:
    """Tokens written a second by both, sampled: the median of five rounds in turn, and the ratio.

    may_end: whether a text may end before it has all tokens.
    """
    minimum = 0 if may_end else TOKENS
    model = regard.load(run, kind=LanguageModel, device="cpu", minimum=minimum)
    ids = [model.tokenizer.encode(prompt) for prompt in prompts]

    def ours() -> int:
        texts = model.generate(prompts, tokens=TOKENS, sampling=Sampling(seed=1))
        return sum(len(text.tokens) + text.finished for text in texts)

    def theirs() -> int:
        return write(loop, ids, may_end=may_end)

    ours(), theirs()
    rates: dict[str, list[float]] = {"regard": [], "loop": []}
    for _ in range(5):
        for name, generate in (("regard", ours), ("loop", theirs)):
            began = time.perf_counter()
            written = generate()
            rates[name].append(written / (time.perf_counter() - began))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {**medians, "times as fast": medians["regard"] / medians["loop"]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--out", type=Path, help="keep the text and the run here")
    parser.add_argument("--run", type=Path, help="only write, by this run and an untrained loop")
    parser.add_argument("--rate", type=float, default=1e-3, help="of the loop")
    parser.add_argument("--sentences", type=int, default=128, help="of a batch of the loop")
    parser.add_argument("--prompts", type=int, default=64)
    options = parser.parse_args()

    dev = english(options.data, "dev")
    prompts = [" ".join(text.split()[:2]) for text in dev[:: len(dev) // options.prompts]]
    prompts = prompts[: options.prompts]
    if options.run:
        run = regard.Run.open(options.run)
        loop = Loop(run.source.size, run.config.model)
        say_speeds(run, loop, prompts)
        return

    with tempfile.TemporaryDirectory() as folder:
        run, loop = compare(options, dev, options.out or Path(folder))
        say_speeds(run, loop, prompts)
        say(until_they_end=tokens_per_second(run, loop, prompts, may_end=True))


def say_speeds(run: regard.Run, loop: Loop, prompts: list[str]) -> None:
    """How fast both write: together, and one prompt alone."""
    say(threads=torch.get_num_threads(), prompts=len(prompts), tokens=TOKENS)
    say(together=tokens_per_second(run, loop, prompts))
    say(alone=tokens_per_second(run, loop, prompts[:1]))


def compare(options: argparse.Namespace, dev: list[str], out: Path) -> tuple[regard.Run, Loop]:
    """Train both, and judge them and the counts on dev."""
    train = drawn_evenly(english(options.data, "train"), BYTES)
    counts = Counts(train, ORDER).bits_per_character(dev)
    say(system=f"{ORDER}-gram counts", bits=counts)

    out.mkdir(parents=True, exist_ok=True)
    for name, texts in (("train", train), ("dev", dev)):
        (out / f"{name}.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    run = regard.train(
        out / "train.txt",
        preset="causal",
        out=out / "run",
        overwrite=True,
        reporter=Reporter(quiet=True),
        data={"dev_file": str(out / "dev.txt"), "test": 1},
        train={
            "minutes": options.minutes,
            "schedule": "wsd",
            "epochs": 0,
            "steps": 10**7,  # more than there is time for
            "patience": 0,
        },
    )
    end = run.records("train")[-1]
    steps, seconds = end["step"], end["seconds"]
    model = regard.load(run, kind=LanguageModel, device="cpu")
    bits = model.bits_per_character(dev)
    parameters = run.manifest["parameters"]
    say(system="regard", bits=bits, parameters=parameters, steps=steps, seconds=seconds)

    torch.manual_seed(1)
    loop = Loop(model.tokenizer.size, run.config.model)
    rows = [
        [[BOS, *ids, EOS] for ids in model.tokenizer.encode_batch(texts)] for texts in (train, dev)
    ]
    total, steps, seconds = train_loop(loop, *rows, seconds, options)
    loop_bits = total / math.log(2) / sum(len(text) + 1 for text in dev)
    parameters = sum(weight.numel() for weight in loop.parameters())
    say(system="loop", bits=loop_bits, parameters=parameters, steps=steps, seconds=seconds)
    say(bits_below_loop=1 - bits / loop_bits)
    return run, loop


def say(**values: Any) -> None:
    def rounded(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: rounded(one) for name, one in value.items()}
        return round(value, 4) if isinstance(value, float) else value

    print(json.dumps({name: rounded(value) for name, value in values.items()}), flush=True)


if __name__ == "__main__":
    main()
