"""Training on a CPU beside torch.nn.Transformer, in one run, in turn. One JSON line a workload;
only the ratio counts.

python benchmarks/train.py [--rounds 7] [--only W1 W2 W2b W3] [--busy]

Both sides start from the same weights; before the clock starts their losses without dropout are
compared. Both then train with the same dropout everywhere (embeddings, attention weights, inside
and after the feed-forward). torch.nn.Transformer is used as its manual has it, with
torch.optim.Adam; ours is Trainer.update as `regard train` calls it, with AdamW (no decay: the same
rule), clipping, guard and counting. W2b is bfloat16 on both sides: where a CPU announces AMX that
does not work, set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16.
"""

import argparse
import json
import platform
import random
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.config import TrainConfig, TransformerConfig
from regard.data.batches import Batch, collate
from regard.models import Seq2Seq, build_model
from regard.nn import sinusoids
from regard.training.trainer import Trainer

WORKLOADS = {
    "W1": {
        "size": 32,
        "width": 64,
        "ffn": 64,
        "heads": 4,
        "layers": 2,
        "dropout": 0.01,
        "batches": 16,
        "wanted": 1.3,
    },
    "W2": {
        "size": 8000,
        "width": 256,
        "ffn": 1024,
        "heads": 4,
        "layers": 3,
        "dropout": 0.1,
        "batches": 4,
        "wanted": 1.65,
    },
    "W2b": {
        "size": 8000,
        "width": 256,
        "ffn": 1024,
        "heads": 4,
        "layers": 3,
        "dropout": 0.1,
        "batches": 4,
        "wanted": 1.5,
    },
    "W3": {
        "size": 32000,
        "width": 512,
        "ffn": 2048,
        "heads": 8,
        "layers": 6,
        "dropout": 0.1,
        "batches": 1,
        "wanted": 1.3,
    },
}


def batches(name: str) -> list[Batch]:
    """W1: 125 formulas cut to 9 and 5 tokens; W2: 64 pairs of U(5, 30) tokens a side; W3: pairs
    until 1,500 target tokens.
    """
    w, rng = WORKLOADS[name], random.Random(7)

    def formula() -> tuple[list[int], list[int]]:
        a, b, sign = rng.randint(-1000, 1000), rng.randint(0, 1000), rng.choice((1, -1))
        texts = f"{a}{'+' if sign > 0 else '-'}{b}", str(a + sign * b)
        ids = [[16 + "0123456789+-".index(c) for c in text] + [2] for text in texts]
        return ids[0][:9], [1, *ids[1][:5]]

    def sentence() -> list[int]:
        return [rng.randrange(16, w["size"]) for _ in range(rng.randint(5, 30) - 1)] + [2]

    made = []
    for _ in range(w["batches"]):
        if name == "W1":
            rows = [formula() for _ in range(125)]
        elif name == "W3":
            rows = []
            while sum(len(target) - 1 for _, target in rows) < 1500:
                rows.append((sentence(), [1, *sentence()]))
        else:
            rows = [(sentence(), [1, *sentence()]) for _ in range(64)]
        made.append(collate(rows))
    return made


class Plain(nn.Module):
    """What people write around torch.nn.Transformer: embedding, sinusoids, masks, tied output."""

    def __init__(self, w: dict) -> None:
        super().__init__()
        self.embed, self.width = nn.Embedding(w["size"], w["width"], padding_idx=0), w["width"]
        self.drop = nn.Dropout(w["dropout"])
        kwargs = {"dropout": w["dropout"], "batch_first": True, "norm_first": True}
        self.body = nn.Transformer(
            w["width"], w["heads"], w["layers"], w["layers"], w["ffn"], **kwargs
        )
        self.register_buffer("places", sinusoids(torch.arange(64), w["width"]))

    def place(self, x: Tensor) -> Tensor:
        return self.drop(self.embed(x) * self.width**0.5 + self.places[: x.shape[1]])

    def forward(self, b: Batch) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(b.target_in.shape[1]) == float(
            "-inf"
        )
        padding = b.source == 0
        hidden = self.body(
            self.place(b.source),
            self.place(b.target_in),
            tgt_mask=causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        logits = nn.functional.linear(hidden, self.embed.weight)
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), b.target_out.flatten(), ignore_index=0
        )


@torch.no_grad()
def take_over(plain: Plain, ours: Seq2Seq) -> None:
    """Our weights into torch's layers."""
    plain.embed.weight.copy_(ours.encoder.embedding.weight)
    for side, theirs in ((ours.encoder, plain.body.encoder), (ours.decoder, plain.body.decoder)):
        theirs.norm.load_state_dict(side.norm.state_dict())
        for block, layer in zip(side.blocks, theirs.layers, strict=True):
            norms = [block.attention_residual.norm]
            layer.self_attn.in_proj_weight.copy_(block.attention.qkv.weight)
            layer.self_attn.in_proj_bias.copy_(block.attention.qkv.bias)
            layer.self_attn.out_proj.load_state_dict(block.attention.output.state_dict())
            if side is ours.decoder:
                cross = layer.multihead_attn
                cross.in_proj_weight.copy_(
                    torch.cat((block.cross.query.weight, block.cross.keyvalue.weight))
                )
                cross.in_proj_bias.copy_(
                    torch.cat((block.cross.query.bias, block.cross.keyvalue.bias))
                )
                cross.out_proj.load_state_dict(block.cross.output.state_dict())
                norms.append(block.cross_residual.norm)
            for i, norm in enumerate([*norms, block.feed_residual.norm], 1):
                getattr(layer, f"norm{i}").load_state_dict(norm.state_dict())
            layer.linear1.load_state_dict(block.feed.inner.state_dict())
            layer.linear2.load_state_dict(block.feed.outer.state_dict())


def sides(name: str, made: list[Batch]) -> tuple[dict[str, Callable[[Batch], None]], float]:
    """A step of each, and how far their losses are apart without dropout."""
    w, low, d = WORKLOADS[name], name.endswith("b"), WORKLOADS[name]["dropout"]
    torch.manual_seed(0)
    c = TransformerConfig(
        width=w["width"],
        ffn=w["ffn"],
        heads=w["heads"],
        encoder_layers=w["layers"],
        decoder_layers=w["layers"],
        dropout=d,
        attention_dropout=d,
        activation_dropout=d,
        tie="all",
    )
    model, plain = build_model(c, w["size"], w["size"]), Plain(w)
    take_over(plain, model)
    counts = [sum(p.numel() for p in m.parameters()) for m in (model, plain)]
    assert counts[0] == counts[1], counts
    model.eval(), plain.eval()
    plain.body.encoder.enable_nested_tensor = False
    with torch.no_grad():
        sums = model.loss(made[0])
        apart = abs(float(sums.loss) / sums.tokens - float(plain(made[0])))
    model.train(), plain.train()
    optimizer = torch.optim.Adam(plain.parameters(), lr=1e-4)
    train = TrainConfig(
        smoothing=0.0,
        rate=1e-4,
        warmup=0,
        schedule="constant",
        optimizer="adamw",
        path="plain",
        precision="bf16" if low else "fp32",
    )
    trainer = Trainer(model, lambda step: made[0], train, steps=10**6, device=torch.device("cpu"))

    def step(b: Batch) -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            loss = plain(b)
        loss.backward()
        optimizer.step()

    return {"torch.nn.Transformer": step, "regard": lambda b: trainer.update([b])}, apart


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="*", choices=WORKLOADS, default=["W1", "W2", "W3"])
    parser.add_argument(
        "--busy",
        action="store_true",
        help="one thread and its processor time: holds on a machine others use",
    )
    given = parser.parse_args()
    clock = time.process_time if given.busy else time.perf_counter
    if given.busy:
        torch.set_num_threads(1)
    for name in given.only:
        made = batches(name)
        steps, apart = sides(name, made)
        real = sum(b.tokens + b.source_tokens for b in made)
        speeds: dict[str, list[float]] = {who: [] for who in steps}
        for step in steps.values():
            for b in made[:2]:
                step(b)
        for _ in range(given.rounds):
            for who, step in steps.items():
                began = clock()
                for b in made:
                    step(b)
                speeds[who].append(real / (clock() - began))
        pairs = zip(*speeds.values(), strict=True)
        ratio = statistics.median(ours / theirs for theirs, ours in pairs)
        median = {
            f"{who} tokens/s": round(statistics.median(values)) for who, values in speeds.items()
        }
        print(
            json.dumps(
                {
                    "workload": name,
                    "ratio": round(ratio, 3),
                    "wanted": WORKLOADS[name]["wanted"],
                    "losses differ by": apart,
                    **median,
                    "clock": "processor" if given.busy else "wall",
                    "threads": torch.get_num_threads(),
                    "torch": torch.__version__,
                    "machine": platform.processor() or platform.machine(),
                    "date": time.strftime("%Y-%m-%d"),
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
