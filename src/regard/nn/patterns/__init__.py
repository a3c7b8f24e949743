"""Attention for long texts: which tokens see which, a pattern a file."""

from regard.nn.patterns.bigbird import BigBird
from regard.nn.patterns.chunked import Chunked
from regard.nn.patterns.pattern import Pattern
from regard.nn.patterns.window import Window

__all__ = ["BigBird", "Chunked", "Pattern", "Window"]
