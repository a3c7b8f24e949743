"""Decoding on a CPU beside torch.nn.Transformer, in one run, in turn. One JSON line a workload;
only the ratio counts.

python benchmarks/decode.py [--rounds 5] [--only greedy-1 greedy-16 beam-1] [--bf16]

The base model (width 512, 6+6 layers, 32,000 tokens) with the same random weights on both sides, 25
forced tokens. Both write the same tokens: that is checked first. torch.nn.Transformer reads the
whole prefix again at every step, as its manual has it. Beside Hugging Face and the others:
benchmarks/peers.py --sets W4.
"""

import argparse
import json
import platform
import random
import statistics
import time
from functools import partial

import torch
from torch import nn
from train import Plain, take_over

from regard.config import TransformerConfig
from regard.data.batches import collate
from regard.models import Seq2Seq, build_model
from regard.nn.kernels import read_only
from regard.search import beam, greedy

STEPS, SIZE = 25, 32000
WORKLOADS = {
    "greedy-1": (1, 1, 1.7, 2.6),
    "greedy-16": (1, 16, 3.2, 5.0),
    "beam-1": (5, 1, 1.8, 3.5),
}


def sources(count: int) -> list[list[int]]:
    rng = random.Random(3)
    return sorted(
        (
            [rng.randrange(16, SIZE) for _ in range(rng.randint(5, 30) - 1)] + [2]
            for _ in range(count)
        ),
        key=len,
    )


@torch.no_grad()
def theirs(model: Plain, rows: list[list[int]], width: int) -> list[list[int]]:
    source = collate([(row, [1, 2]) for row in rows]).source
    padding, count = source == 0, len(rows)
    memory = model.body.encoder(model.place(source), src_key_padding_mask=padding)
    memory, padding = memory.repeat_interleave(width, 0), padding.repeat_interleave(width, 0)
    y, scores = torch.full((count * width, 1), 1), torch.full((count, width), -torch.inf)
    scores[:, 0] = 0
    for _ in range(STEPS):
        causal = nn.Transformer.generate_square_subsequent_mask(y.shape[1]) == float("-inf")
        hidden = model.body.decoder(
            model.place(y),
            memory,
            tgt_mask=causal,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        logits = nn.functional.linear(hidden[:, -1], model.embed.weight)
        logits[:, :3] = -torch.inf
        if width == 1:
            y = torch.cat((y, logits.argmax(-1, keepdim=True)), 1)
            continue
        sums = (scores[..., None] + logits.log_softmax(-1).view(count, width, -1)).flatten(1)
        scores, best = sums.topk(width)
        parents = (best // SIZE + torch.arange(count)[:, None] * width).flatten()
        y = torch.cat((y[parents], (best % SIZE).view(-1, 1)), 1)
    return y.view(count, width, -1)[:, 0, 1:].tolist()


@torch.inference_mode()
def ours(model: Seq2Seq, rows: list[list[int]], width: int) -> list[list[int]]:
    made = collate([(row, [1, 2]) for row in rows])
    state = model.decoder.start(model.encoder(made.source, made.source_lengths))
    banned = torch.arange(SIZE) < 3
    rules = {"batch": len(rows), "limit": [STEPS] * len(rows), "minimum": STEPS, "suppress": banned}
    if width == 1:
        return [one.tokens for one in greedy(model.step, state, **rules)]
    return [best.tokens for [best] in beam(model.step, state, width=width, **rules)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument(
        "--bf16", action="store_true", help="our weights in bfloat16; theirs stay in fp32"
    )
    given = parser.parse_args()
    torch.manual_seed(0)
    w = {"size": SIZE, "width": 512, "ffn": 2048, "heads": 8, "layers": 6, "dropout": 0.1}
    c = TransformerConfig(
        width=512, ffn=2048, heads=8, encoder_layers=6, decoder_layers=6, tie="all"
    )
    model, plain = build_model(c, SIZE, SIZE).eval(), Plain(w).eval()
    take_over(plain, model)
    plain.body.encoder.enable_nested_tensor = False
    read_only(model, torch.bfloat16 if given.bf16 else torch.float32)
    for name in given.only:
        width, count, *wanted = WORKLOADS[name]
        rows = sources(count)
        sides = {
            "torch.nn.Transformer": partial(theirs, plain, rows, width),
            "regard": partial(ours, model, rows, width),
        }
        same = statistics.mean(a == b for a, b in zip(*(side() for side in sides.values())))
        assert same == 1 or given.bf16, f"{name}: other answers than torch.nn.Transformer's"
        times: dict[str, list[float]] = {who: [] for who in sides}
        for _ in range(given.rounds):
            for who, side in sides.items():
                began = time.perf_counter()
                side()
                times[who].append(time.perf_counter() - began)
        ratio = statistics.median(a / b for a, b in zip(*times.values()))
        speeds = {
            f"{who} tokens/s": round(count * STEPS / statistics.median(t), 1)
            for who, t in times.items()
        }
        print(
            json.dumps(
                {
                    "workload": name,
                    "ratio": round(ratio, 3),
                    "wanted": wanted[given.bf16],
                    "bf16": given.bf16,
                    "same answers": same,
                    **speeds,
                    "threads": torch.get_num_threads(),
                    "torch": torch.__version__,
                    "machine": platform.machine(),
                    "date": time.strftime("%Y-%m-%d"),
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
