"""What a beam tried."""

from typing import NamedTuple


class Node(NamedTuple):
    """A token that the beam tried. `parent` is the number of the node before it in their list, -1
    at the first step.
    """

    token: str
    parent: int
    step: int
    logprob: float
    total: float
    """The sum of the logprobs up to here."""
    fate: str
    """chosen: in the answer. kept: went on for some time. ended: a whole hypothesis, not the best.
    dropped: at once.
    """
