"""Look inside models: attention, what an answer depends on, gradient flow.

`doctor` checks a run.
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
