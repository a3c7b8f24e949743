"""Steps -> hypotheses: greedy, beam and sampling. The room knows no model; it is given a step function and a state."""

from regard.search.beam import beam
from regard.search.constraints import Constraints, Rules
from regard.search.greedy import greedy
from regard.search.hypothesis import Hypothesis, Selectable, Step
from regard.search.sample import sample

__all__ = ["Constraints", "Hypothesis", "Rules", "Selectable", "Step", "beam", "greedy", "sample"]
