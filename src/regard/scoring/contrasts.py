"""Scores of contrastive pairs, by kind."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from regard.errors import UserError
from regard.records.contrast import Contrast


@dataclass(frozen=True)
class KindScore:
    """How often a model prefers the right target, among the contrastive pairs of one kind."""

    kind: str
    items: int
    right: int
    """Items of which the right target is the more likely one."""
    accuracy: float
    """From 0 to 1; guessing has 0.5."""
    margin: float
    """Mean of the margins: log-probability of the right target minus that of the wrong one."""
    worst: Contrast
    """The item with the lowest margin."""

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**asdict(self), "worst": self.worst.as_dict()}


def scores_by_kind(contrasts: Iterable[Contrast]) -> list[KindScore]:
    """The scores of each kind, in the order in which the kinds first appear."""
    kinds: dict[str, list[Contrast]] = defaultdict(list)
    for contrast in contrasts:
        kinds[contrast.kind].append(contrast)
    return [kind_score(kind, members) for kind, members in kinds.items()]


def kind_score(kind: str, contrasts: Sequence[Contrast]) -> KindScore:
    """The scores of contrasts that are taken for one kind."""
    if not contrasts:
        raise UserError("no contrasts: there must be at least one")
    right = sum(contrast.correct for contrast in contrasts)
    return KindScore(
        kind,
        len(contrasts),
        right,
        accuracy=right / len(contrasts),
        margin=sum(contrast.margin for contrast in contrasts) / len(contrasts),
        worst=min(contrasts, key=lambda contrast: contrast.margin),
    )
