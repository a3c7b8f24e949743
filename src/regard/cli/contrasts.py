"""`regard score --contrasts`: how often the right target is the more likely one, by kind."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from regard.cli.terms import how_to_read
from regard.display import say, say_json, table, warn
from regard.errors import UserError, counted


def read_items(file: Path, words: list[str]) -> list[Any]:
    """The contrastive pairs of a file. words: how to read it, such as data.encoding=latin-1."""
    from regard.data.contrasts import read_contrasts

    reading = how_to_read(None, words)
    if reading.keys() - {"encoding"}:
        raise UserError("with --contrasts, only data.encoding can be set")
    items = list(read_contrasts(file, reading.get("encoding")))
    if not items:
        raise UserError(f"{file}: no contrastive pairs in it")
    return items


def print_contrasts(contrasts: Iterable[Any], as_json: bool) -> None:
    """Print a table with a row for each kind; as JSON, each contrast and then the kinds."""
    from regard.scoring import scores_by_kind

    judged = []
    for contrast in contrasts:
        judged.append(contrast)
        if as_json:
            say_json(contrast.as_dict())

    scores = scores_by_kind(judged)
    if as_json:
        say_json({"summary": [score.as_dict() for score in scores]})
    else:
        _print_table(judged, scores)
    unknown = sum(contrast.unknown for contrast in judged)
    if unknown:
        warn(
            f"{counted(unknown, 'contrast')} with words that are not in the vocabulary (<unk>); "
            f"they test the vocabulary rather than the grammar"
        )


def _print_table(judged: list[Any], scores: list[Any]) -> None:
    """Print the scores of each kind and of all, and below them the worst item of each kind."""
    from regard.scoring import kind_score

    rows = [_row(score, score.kind or "–") for score in scores if len(scores) > 1 or score.kind]
    if len(rows) != 1:
        rows.append(_row(kind_score("", judged), "all"))
    table(["kind", "items", "right", "accuracy", "mean margin"], rows)

    say("", "The lowest margin of each kind, with [right | wrong]:")
    for score in scores:
        worst = score.worst
        mark = "✓" if worst.correct else "✗"
        say(f"  {mark} {worst.margin:6.2f}  {worst.source} → {worst.difference()}")


def _row(score: Any, kind: str) -> tuple[str, ...]:
    return (
        kind,
        f"{score.items:,}",
        f"{score.right:,}",
        f"{score.accuracy:.2%}",
        f"{score.margin:.2f}",
    )
