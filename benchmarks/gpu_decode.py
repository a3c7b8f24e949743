"""Decoding on one GPU beside Hugging Face's Marian `generate`, in one run, in turn. One JSON line a
workload.

python benchmarks/gpu_decode.py [--rounds 5] [--only greedy-1 ...] [--without-hf]

The base model (width 512, 6+6 layers, 32,000 tokens) in bf16, random weights, sources of 16 to 32
tokens, 32 forced tokens each. First, on a small model in fp32: that the graphs write what the
ordinary engine writes. Needs `transformers` for the comparison.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from regard.config import TransformerConfig
from regard.data.batches import collate
from regard.models import Seq2Seq, build_model
from regard.models.fast.fixed import reserve
from regard.search import Beam, Job, Rules, decode
from regard.search.fast.captured import CapturedSearch

CUDA, SIZE, STEPS = torch.device("cuda"), 32000, 32
WORKLOADS = {  # width, sentences, tokens/s wanted or times Hugging Face
    "greedy-1": (1, 1, 2300.0),
    "greedy-64": (1, 64, 5.0),
    "greedy-512": (1, 512, 5.0),
    "beam4-1": (4, 1, 5.0),
    "beam4-64": (4, 64, 5.0),
    "beam4-256": (4, 256, 5.0),
}


def sources(
    count: int, seed: int = 3, low: int = 16, high: int = 32, size: int = SIZE
) -> list[list[int]]:
    rng = random.Random(seed)
    rows = [
        [rng.randrange(16, size) for _ in range(rng.randint(low, high) - 1)] + [2]
        for _ in range(count)
    ]
    return sorted(rows, key=len, reverse=True)


def search_for(model: Seq2Seq, width: int, size: int, minimum: int) -> CapturedSearch:
    return CapturedSearch(
        partial(reserve, model),
        model.step,
        Beam(width),
        torch.arange(size, device=CUDA) < 2,
        minimum,
    )


def check() -> dict:
    """300 sentences, greedy and beam 4: graphs beside the engine, fp32."""
    torch.manual_seed(1)
    c = TransformerConfig(
        width=128, ffn=256, heads=4, encoder_layers=2, decoder_layers=2, position="rotary"
    )
    model, found = build_model(c, 5000, 5000).to(CUDA).eval(), {}

    def begin(jobs: list[Job]) -> object:
        made = collate([(job.source, [1, 2]) for job in jobs]).to(CUDA)
        return model.decoder.start(model.encoder(made.source, made.source_lengths))

    for width in (1, 4):
        rows = sources(300, low=2, high=40, size=5000)
        ways: list[Callable[[list[Job]], object]] = [
            lambda jobs, w=width: list(search_for(model, w, 5000, 0).decode(jobs, 2048)),
            lambda jobs, w=width: list(
                decode(model.step, begin, jobs, Beam(w), Rules(device=CUDA), 2048)
            ),
        ]
        answers = []
        for way in ways:
            jobs = [Job(row, limit=len(row) + 10) for row in rows]
            with torch.inference_mode():
                way(jobs)
            answers.append([job.found[0] for job in jobs])
        same = sum(a.tokens == b.tokens for a, b in zip(*answers))
        apart = max(abs(a.score - b.score) for a, b in zip(*answers))
        found[f"width {width}"] = {
            "same answers": f"{same} of {len(rows)}",
            "scores differ by": apart,
        }
    return {"check": "graphs beside the engine", **found}


def hugging_face() -> Callable[[list[list[int]], int], None]:
    from transformers import MarianConfig, MarianMTModel

    sizes = {
        f"{side}_{what}": n
        for side in ("encoder", "decoder")
        for what, n in (("layers", 6), ("ffn_dim", 2048))
    }
    heads = {"encoder_attention_heads": 8, "decoder_attention_heads": 8, "decoder_vocab_size": SIZE}
    special = {
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
        "forced_eos_token_id": None,
    }
    c = MarianConfig(
        vocab_size=SIZE,
        d_model=512,
        max_position_embeddings=256,
        activation_function="relu",
        scale_embedding=True,
        **sizes,
        **heads,
        **special,
    )
    model = MarianMTModel(c).to(CUDA, torch.bfloat16).eval()

    def run(rows: list[list[int]], width: int) -> None:
        made = collate([(row, [1, 2]) for row in rows]).to(CUDA)
        rules = {
            "min_new_tokens": STEPS,
            "max_new_tokens": STEPS,
            "num_beams": width,
            "do_sample": False,
        }
        model.generate(
            input_ids=made.source, attention_mask=(made.source != 0).long(), **rules
        ).tolist()

    return run


def timed(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--without-hf", action="store_true")
    given = parser.parse_args()
    torch.set_float32_matmul_precision("highest")
    print(
        json.dumps(
            {
                "device": torch.cuda.get_device_name(),
                "torch": torch.__version__,
                "date": time.strftime("%Y-%m-%d"),
            }
        )
    )
    print(json.dumps(check()), flush=True)
    torch.manual_seed(0)
    c = TransformerConfig(width=512, ffn=2048, heads=8, encoder_layers=6, decoder_layers=6)
    model = build_model(c, SIZE, SIZE).to(CUDA, torch.bfloat16).eval()
    theirs = None if given.without_hf else hugging_face()
    for name in given.only:
        width, count, wanted = WORKLOADS[name]
        rows, search = sources(count), search_for(model, width, SIZE, STEPS)

        def ours(rows: list[list[int]] = rows, search: CapturedSearch = search) -> None:
            jobs = [Job(row, limit=STEPS) for row in rows]
            assert all(len(job.found[0].tokens) == STEPS for job in search.decode(jobs))

        first, times = timed(ours), {"regard": [], "hf": []}
        if theirs:
            theirs(rows, width)
        for _ in range(given.rounds):
            times["regard"] += [timed(ours)]
            times["hf"] += [timed(lambda r=rows, w=width: theirs(r, w))] if theirs else []
        speed = {who: round(count * STEPS / statistics.median(t)) for who, t in times.items() if t}
        ratio = round(speed["regard"] / speed["hf"], 2) if "hf" in speed else None
        line = {
            "workload": name,
            "tokens/s": speed,
            "ratio": ratio,
            "wanted": wanted,
            "first call s": round(first, 2),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
