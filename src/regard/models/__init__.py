"""The wholes: encoder-decoders built from the parts."""

from regard.models.build import build_model
from regard.models.seq2seq import Decoder, Encoder, Memory, Seq2Seq, Sums

__all__ = ["Decoder", "Encoder", "Memory", "Seq2Seq", "Sums", "build_model"]
