"""Where a model looked, what an answer depends on, how far a gradient reaches.

`doctor` proves that a run is sound.
"""

from regard.inspection.evidence import (
    Head,
    Reading,
    agreement,
    correlation,
    gradient_times_input,
    heads,
    logit_lens,
    occlusion,
    without,
)
from regard.inspection.flow import gradient_flow, textbook

__all__ = [
    "Head",
    "Reading",
    "agreement",
    "correlation",
    "gradient_flow",
    "gradient_times_input",
    "heads",
    "logit_lens",
    "occlusion",
    "textbook",
    "without",
]
