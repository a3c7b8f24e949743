"""Our worker in the side-by-side timing of toolkits; `benchmarks/peers.py` puts it beside the
others and runs it.

The protocol's `common.py` owns data, loop and torch.optim.Adam, alike for all: what is timed is our
model and loss (not Trainer.update, whose optimiser is faster), and our searches. As in
benchmarks/train.py dropout is everywhere the same. Blocks are pre-norm, our default; torch's,
Marian's, d2l's and JoeyNMT's are post-norm here, with as many weights or nearly so.
"""

import os

import common
import torch

import regard
from regard.config import TransformerConfig
from regard.data.batches import Batch, collate
from regard.models import Seq2Seq, build_model
from regard.nn.kernels import read_only
from regard.search import beam, greedy
from regard.text.vocabulary import BOS, EOS, PAD

assert (PAD, BOS, EOS) == (common.PAD, common.BOS, common.EOS)


class Peer:
    name, version = "regard", regard.__version__

    def build(self, c: dict) -> Seq2Seq:
        d = c["dropout"]
        config = TransformerConfig(
            width=c["d"],
            ffn=c["ffn"],
            heads=c["heads"],
            encoder_layers=c["layers"],
            decoder_layers=c["layers"],
            dropout=d,
            attention_dropout=d,
            activation_dropout=d,
            tie="all",
        )
        return build_model(config, c["vocab"], c["vocab"])

    def loss(self, model: Seq2Seq, b: dict) -> torch.Tensor:
        if "regard" not in b:
            b["regard"] = batch(b)  # padded once, as the others' is
        sums = model.loss(b["regard"])
        return sums.loss / sums.tokens

    def load_decoder(self, c: dict, variant: str) -> None:
        kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16}
        variant = os.environ.get("REGARD_WEIGHTS", variant)  # run.py knows no bfloat16 of ours
        if variant not in kinds:
            raise NotImplementedError(variant)
        self.model = self.build(c).eval()
        read_only(self.model, kinds[variant])  # as `regard.load` does

    @torch.inference_mode()
    def decode(self, sentences: list[list[int]], width: int, n: int) -> int:
        """Exactly n tokens each: <eos> may not come before the limit."""
        made = collate([(row, [BOS, EOS]) for row in sentences])
        state = self.model.decoder.start(self.model.encoder(made.source, made.source_lengths))
        rules = {"batch": len(sentences), "limit": [n] * len(sentences), "minimum": n}
        if width == 1:
            return sum(len(found.tokens) for found in greedy(self.model.step, state, **rules))
        return sum(
            len(found.tokens) for [found] in beam(self.model.step, state, width=width, **rules)
        )


def batch(b: dict) -> Batch:
    sides = (b["src"], b["src_len"]), (b["tgt_out"], b["tgt_len"])
    source, target = (
        [row[:n] for row, n in zip(ids.tolist(), lengths.tolist())] for ids, lengths in sides
    )
    return collate([(one, [BOS, *other]) for one, other in zip(source, target)])


if __name__ == "__main__":
    common.serve(Peer())
