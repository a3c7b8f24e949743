"""Training speed beside torch.nn.Transformer, in one run, interleaved. One JSON line a workload; on a CPU only the ratio counts.

python benchmarks/train.py [--rounds 5] [--workload calculator|small]
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.config import TrainConfig, TransformerConfig
from regard.data.batches import Batch, collate
from regard.models import build_model
from regard.nn import sinusoids
from regard.training.trainer import Trainer

WORKLOADS = {
    "calculator": {"size": 16, "width": 64, "ffn": 64, "layers": 2, "dropout": 0.01, "batch": 125, "lengths": ((9, 9), (5, 5))},
    "small": {"size": 8000, "width": 256, "ffn": 1024, "layers": 3, "dropout": 0.1, "batch": 64, "lengths": ((5, 30), (5, 30))},
}


def batches(w: dict, count: int) -> list[Batch]:
    """Random tokens of random lengths, the same for both sides of the comparison."""
    rng = torch.Generator().manual_seed(0)

    def row(low: int, high: int) -> list[int]:
        n = int(torch.randint(low, high + 1, (), generator=rng))
        return torch.randint(4, w["size"], (n,), generator=rng).tolist()

    rows = [([*row(*w["lengths"][0])[:-1], 2], [1, *row(*w["lengths"][1])[:-1], 2]) for _ in range(count * w["batch"])]
    return [collate(rows[i : i + w["batch"]]) for i in range(0, len(rows), w["batch"])]


class Plain(nn.Module):
    """What people write around torch.nn.Transformer: embeddings, sinusoids, masks, output."""

    def __init__(self, w: dict) -> None:
        super().__init__()
        self.embed, self.width = nn.Embedding(w["size"], w["width"]), w["width"]
        kwargs = {"dropout": w["dropout"], "batch_first": True, "norm_first": True}
        self.body = nn.Transformer(w["width"], 4, w["layers"], w["layers"], w["ffn"], **kwargs)
        self.out = nn.Linear(w["width"], w["size"])

    def forward(self, b: Batch) -> Tensor:
        def place(x: Tensor) -> Tensor:
            return self.embed(x) * self.width**0.5 + sinusoids(torch.arange(x.shape[1]), self.width)

        causal = nn.Transformer.generate_square_subsequent_mask(b.target_in.shape[1], dtype=torch.bool)
        padding = b.source == 0
        hidden = self.body(
            place(b.source), place(b.target_in), tgt_mask=causal, src_key_padding_mask=padding,
            memory_key_padding_mask=padding, tgt_is_causal=True,
        )  # fmt: skip
        return nn.functional.cross_entropy(self.out(hidden).flatten(0, 1), b.target_out.flatten(), ignore_index=0)


def plain_step(w: dict) -> Callable[[Batch], None]:
    model = Plain(w)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(b: Batch) -> None:
        optimizer.zero_grad()
        model(b).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def our_step(w: dict) -> Callable[[Batch], None]:
    d = w["dropout"]
    c = TransformerConfig(
        width=w["width"], ffn=w["ffn"], heads=4, encoder_layers=w["layers"], decoder_layers=w["layers"],
        dropout=d, attention_dropout=d, activation_dropout=d, tie="all",
    )  # fmt: skip
    train = TrainConfig(smoothing=0.0, precision="fp32")
    trainer = Trainer(build_model(c, w["size"], w["size"]), lambda step: None, train, steps=10**6, device=torch.device("cpu"))
    return lambda b: trainer.update([b])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workload", choices=WORKLOADS)
    given = parser.parse_args()
    for name in [given.workload] if given.workload else WORKLOADS:
        w, speeds = WORKLOADS[name], {"torch.nn.Transformer": [], "regard": []}
        made, steps = batches(w, 10), {"torch.nn.Transformer": plain_step(w), "regard": our_step(w)}
        real = sum(b.tokens + b.source_tokens for b in made)
        for b in made[:3] * 2:
            for step in steps.values():
                step(b)
        for _ in range(given.rounds):
            for who, step in steps.items():
                began = time.perf_counter()
                for b in made:
                    step(b)
                speeds[who].append(real / (time.perf_counter() - began))
        median = {who: statistics.median(values) for who, values in speeds.items()}
        ratio = median["regard"] / median["torch.nn.Transformer"]
        print(json.dumps({
            "workload": name, "ratio": round(ratio, 3), **{f"{who} tokens/s": round(v) for who, v in median.items()},
            "threads": torch.get_num_threads(), "torch": torch.__version__, "machine": platform.processor() or platform.machine(),
            "date": time.strftime("%Y-%m-%d"),
        }))  # fmt: skip


if __name__ == "__main__":
    main()
