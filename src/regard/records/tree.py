"""What a beam tried."""

from typing import NamedTuple


class Node(NamedTuple):
    """A token that the beam tried."""

    token: str
    parent: int
    """The number of the node before it, in the list of all nodes; -1 at the first step."""
    step: int
    logprob: float
    total: float
    """The sum of the logprobs up to here."""
    fate: str
    """What became of it: chosen, kept, ended or dropped.

    chosen: in the answer. kept: went on for some time. ended: a whole hypothesis, not the best.
    dropped: at once.
    """
