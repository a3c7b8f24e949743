"""What a comparison found, as a notebook shows it."""

from regard.comparison import tables
from regard.comparison.doubts import doubts, verdict
from regard.comparison.outcome import Outcome
from regard.display import html


class NotebookOutcome(Outcome):
    """What a comparison found. In a notebook it is a table, below the verdict."""

    def _repr_html_(self) -> str:
        results = tables.results(self)
        rows = [results.columns, *results.rows]
        lines = "".join(
            f"<tr>{''.join(f'<td>{html(cell)}</td>' for cell in row)}</tr>" for row in rows
        )
        careful = "".join(f"<li>{html(doubt.text)}</li>" for doubt in doubts(self))
        return (
            f"<p><b>{html(verdict(self))}</b></p><table>{lines}</table>"
            f"<p>{html(results.note)}</p><ul>{careful}</ul>"
        )
