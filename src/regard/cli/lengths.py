"""`regard evaluate --by-length`: the scores by length of the source, as table and picture."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from regard.display import table

Column = list[float | None]
"""A score from 0 to 100 in each bin; None where it says nothing."""


@dataclass(frozen=True)
class LengthScores:
    """The scores of a run by length of the source, beside those of another run if there is one."""

    run: str
    bins: list[Any]
    against: str
    others: list[Any]
    metric: str
    """Field of the score by which the two runs are compared; empty: there is only one."""

    @classmethod
    def of(cls, evaluation: Any, run: str, against: str) -> Self:
        """The scores of an evaluation; `run` and `against` are the names of its runs."""
        bins = evaluation.by_length()
        if evaluation.comparison is None:
            return cls(run, bins, "", [], "")
        others = evaluation.by_length(evaluation.other_answers)
        if against == run:
            against += " (again)"
        return cls(run, bins, against, others, evaluation.comparison.metric)

    def as_dict(self) -> dict[str, Any]:
        """Fields for JSON."""
        fields = {"by_length": [one.as_dict() for one in self.bins]}
        if self.metric:
            fields["against_by_length"] = [one.as_dict() for one in self.others]
        return fields

    def columns(self) -> dict[str, Column]:
        """The scores of each bin, by name: all of one run, or one score of two runs."""
        if self.metric:
            name = NAMES[self.metric]
            return {
                f"{name}, {self.run}": _column(self.bins, self.metric),
                f"{name}, {self.against}": _column(self.others, self.metric),
            }
        columns = {name: _column(self.bins, field) for field, name in NAMES.items()}
        return {name: column for name, column in columns.items() if column != [None] * len(column)}

    def print(self) -> None:
        """Print them as a table."""
        columns = self.columns()
        cells = [[_cell(value) for value in column] for column in columns.values()]
        others = {} if self.metric else self._unbounded()
        cells += [[_cell(value, ".4g") for value in column] for column in others.values()]

        rows = [
            (str(one.bin), f"{one.sentences:,}", *row)
            for one, row in zip(self.bins, zip(*cells, strict=True), strict=True)
        ]
        table(["source tokens", "sentences", *columns, *others], rows)

    def _unbounded(self) -> dict[str, Column]:
        """Loss, and metrics of the user's own."""
        names = dict.fromkeys(name for one in self.bins for name in one.metrics)
        own = {name: [one.metrics.get(name) for one in self.bins] for name in names}
        return {"loss": [one.loss for one in self.bins], **own}

    def draw(self, out: Path) -> None:
        """Draw them as curves."""
        from regard.pictures.lengths import length_figure

        title = "Scores by length of the source"
        if not self.metric:
            title += f": {Path(self.run).name}"
        bins = [str(one.bin) for one in self.bins]
        sentences = [one.sentences for one in self.bins]
        length_figure(bins, sentences, self.columns(), title=title, out=out)


NAMES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "exact_match": "exact match (%)",
    "token_accuracy": "token accuracy (%)",
}
"""The scores from 0 to 100, by their fields."""
SHARES = ("exact_match", "token_accuracy")
"""Those that are from 0 to 1."""


def _column(bins: list[Any], field: str) -> Column:
    """A score of each bin, from 0 to 100."""
    scale = 100 if field in SHARES else 1
    values = [getattr(one, field) for one in bins]
    return [None if value is None else scale * value for value in values]


def _cell(value: float | None, form: str = ".2f") -> str:
    return "–" if value is None else format(value, form)
