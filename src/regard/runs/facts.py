"""What a run's manifest tells besides the sums of its files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.runs.storage import Corrupt

COUNTS = ("pairs", "longest_source", "duplicates", "leaks", "skipped", "parameters")
TEXTS = ("regard", "torch", "characters")
MOST = 1 << 60  # of a count


def check_facts(manifest: Mapping[str, Any], where: Path) -> None:
    """Refuse a manifest whose facts are not of their types. A fact may be missing."""
    for name in COUNTS:
        value = manifest.get(name, 0)
        if type(value) is not int or not 0 <= value < MOST:
            raise Corrupt(f"{where}: {name} is not a count")
    for name in TEXTS:
        if not isinstance(manifest.get(name, ""), str):
            raise Corrupt(f"{where}: {name} is not a text")

    share = manifest.get("several_sentences", 0.0)
    if type(share) not in (int, float) or not 0 <= share <= 1:
        raise Corrupt(f"{where}: several_sentences is not a share")
    for name in ("pruned", "held_out"):
        if not isinstance(manifest.get(name, {}), dict):
            raise Corrupt(f"{where}: {name} is not a table")
    trials = manifest.get("trials", [])
    if not isinstance(trials, list) or not all(isinstance(trial, dict) for trial in trials):
        raise Corrupt(f"{where}: trials is not a list of tables")
