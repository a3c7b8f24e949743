"""Decoding: greedy search, beam search and sampling.

A search takes a step function and a state, so it works with any model.
"""

from regard.search.beam import Beam, beam
from regard.search.constraints import Constraints, Rules
from regard.search.engine import Search, decode
from regard.search.greedy import Greedy, greedy
from regard.search.hypothesis import Hypothesis, Job, Selectable, Step
from regard.search.lexical import Lexical, Phrase, Words
from regard.search.sample import Sample, Sampling, sample
from regard.search.traced import Traced

__all__ = [
    "Beam",
    "Constraints",
    "Greedy",
    "Hypothesis",
    "Job",
    "Lexical",
    "Phrase",
    "Rules",
    "Sample",
    "Sampling",
    "Search",
    "Selectable",
    "Step",
    "Traced",
    "Words",
    "beam",
    "decode",
    "greedy",
    "sample",
]
