"""Encoder-decoder models, built from the parts in `regard.nn`."""

from regard.models.build import build_model
from regard.models.learner import Learner, Sums
from regard.models.parts import Parts
from regard.models.seq2seq import Decoder, Encoder, Memory, Seq2Seq
from regard.models.torch_weights import copy_weights

__all__ = [
    "Decoder",
    "Encoder",
    "Learner",
    "Memory",
    "Parts",
    "Seq2Seq",
    "Sums",
    "build_model",
    "copy_weights",
]
