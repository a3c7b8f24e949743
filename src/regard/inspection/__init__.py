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
from regard.inspection.flow import gradient_by_depth, gradient_flow, gradient_norms, reach
from regard.inspection.untrained import gradient_panels

__all__ = [
    "Head",
    "Reading",
    "agreement",
    "correlation",
    "gradient_by_depth",
    "gradient_flow",
    "gradient_norms",
    "gradient_panels",
    "gradient_times_input",
    "heads",
    "logit_lens",
    "occlusion",
    "reach",
    "without",
]
