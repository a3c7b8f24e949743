"""The parts of models: masks, scores, positions, attention, layers, blocks,
recurrence, state.

They can be used alone, and know nothing of text.
"""

from regard.nn.attention import Attention, Record, SelfAttention, attend, watch
from regard.nn.blocks import Block, DecoderBlock, EncoderBlock
from regard.nn.layers import Embedding, FeedForward, Residual, RMSNorm
from regard.nn.masks import Layout, Mask, masked_softmax
from regard.nn.positions import POSITIONS, Position, sinusoids
from regard.nn.recurrent import Recurrent
from regard.nn.scores import SCORES, Score
from regard.nn.state import KeyValue

__all__ = [
    "POSITIONS",
    "SCORES",
    "Attention",
    "Block",
    "DecoderBlock",
    "Embedding",
    "EncoderBlock",
    "FeedForward",
    "KeyValue",
    "Layout",
    "Mask",
    "Position",
    "RMSNorm",
    "Record",
    "Recurrent",
    "Residual",
    "Score",
    "SelfAttention",
    "attend",
    "masked_softmax",
    "sinusoids",
    "watch",
]
