"""Encoder-decoder and language models, built from the parts in `regard.nn`."""

from regard.models.build import build_model
from regard.models.language import CausalModel, MaskedEncoder
from regard.models.learner import Learner, Sums
from regard.models.parts import Parts
from regard.models.predictor import Predictor
from regard.models.seq2seq import Decoder, Encoder, Memory, Seq2Seq
from regard.models.torch_weights import copy_weights

__all__ = [
    "CausalModel",
    "Decoder",
    "Encoder",
    "Learner",
    "MaskedEncoder",
    "Memory",
    "Parts",
    "Predictor",
    "Seq2Seq",
    "Sums",
    "build_model",
    "copy_weights",
]
