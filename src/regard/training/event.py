"""What a callback is told."""

from dataclasses import dataclass
from typing import Any

from regard.models import Learner
from regard.runs.run import Run


@dataclass(frozen=True)
class Event:
    """A line of the log: what a callback of the user's own is called with.

    A callback that returns True ends the training, with a checkpoint.
    """

    kind: str
    """train: means since the last such line. dev: scores on the validation set."""
    step: int
    values: dict[str, Any]
    """loss, accuracy, … as in log.jsonl."""
    model: Learner
    """As it is now, to look at."""
    run: Run
