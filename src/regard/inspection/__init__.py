"""Why: where a model looked, what an answer depends on, how far a gradient reaches; proofs on a run
(doctor).
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
