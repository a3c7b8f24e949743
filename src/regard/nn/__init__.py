"""The parts of models: masks, scores, positions, attention, layers, blocks,
recurrence, state.

They can be used alone, and know nothing of text.
"""

from regard.nn.attention import Attention, Record, SelfAttention, attend, watch
from regard.nn.blocks import Block, DecoderBlock, EncoderBlock
from regard.nn.layers import Embedding, FeedForward, Residual, RMSNorm
from regard.nn.masks import Layout, Mask, masked_softmax
from regard.nn.patterns import BigBird, Chunked, Pattern, Window
from regard.nn.patterns.approximation import Approximation
from regard.nn.patterns.linformer import Linformer
from regard.nn.patterns.lsh import LSH
from regard.nn.patterns.performer import Performer
from regard.nn.patterns.routing import Routing
from regard.nn.positions import POSITIONS, Position, sinusoids
from regard.nn.recurrent import Recurrent
from regard.nn.scores import SCORES, Score
from regard.nn.state import KeyValue

__all__ = [
    "LSH",
    "POSITIONS",
    "SCORES",
    "Approximation",
    "Attention",
    "BigBird",
    "Block",
    "Chunked",
    "DecoderBlock",
    "Embedding",
    "EncoderBlock",
    "FeedForward",
    "KeyValue",
    "Layout",
    "Linformer",
    "Mask",
    "Pattern",
    "Performer",
    "Position",
    "RMSNorm",
    "Record",
    "Recurrent",
    "Residual",
    "Routing",
    "Score",
    "SelfAttention",
    "Window",
    "attend",
    "masked_softmax",
    "sinusoids",
    "watch",
]
