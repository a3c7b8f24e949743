"""The folder of a comparison: what was asked, its runs, their scores and the reports.

experiment.json   the plan: what is trained and scored
runs/             a run for each system and seed
scores/           a file for each run that was scored
logs/             what each training printed
report.html  report.md  report.json
"""

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from regard.comparison.cells import Cell, Plan
from regard.comparison.scores import Scores
from regard.comparison.typed import check_fields
from regard.errors import UserError
from regard.files import disk_faults_told, remove, write_text
from regard.files.holder import is_note
from regard.files.reading import parse_json, read_bytes

PLAN = "experiment.json"
LOCK = "lock"
PARTS = ("runs", "scores", "logs")
LARGEST = 256 * 2**20  # bytes of a file


class Folder:
    """The folder of a comparison."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self) -> None:
        """Make what is not there yet; refuse a folder that holds something else."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path}: not a folder; choose another one with --out")
        with disk_faults_told(self.path):
            strange = self._strange()
            if strange:
                raise UserError(
                    f"{self.path}: a folder that holds something else ({strange}); choose "
                    f"another one with --out"
                )
            for name in PARTS:
                (self.path / name).mkdir(parents=True, exist_ok=True)

    def _strange(self) -> str:
        """What is in the folder and not ours; empty: nothing, or the folder is a comparison."""
        if not self.path.is_dir() or self._is_ours:
            return ""
        others = [place for place in self.path.iterdir() if not place.name.startswith(".")]
        strange = [
            place.name
            for place in others
            # Killed before it had a plan, a comparison leaves no more than empty folders.
            if place.name not in PARTS or not place.is_dir() or any(place.iterdir())
        ]
        strange = [name for name in strange if name != LOCK or not is_note(self.path / LOCK)]
        return min(strange, default="")

    @property
    def _is_ours(self) -> bool:
        """Whether a comparison was made here: its plan may be damaged if its folders are there."""
        has_folders = all((self.path / name).is_dir() for name in PARTS)
        return self.has_plan and (has_folders or _read(self.path / PLAN) is not None)

    # the plan

    def plan(self, identity: str | None = None) -> Plan | None:
        """The plan that was written here, if it is that of this experiment.

        None: there is none, or it is damaged.
        """
        values = _read(self.path / PLAN)
        if values is None or identity not in (None, values.get("identity")):
            return None
        try:
            return Plan.of(values)
        except (KeyError, TypeError, ValueError, UserError):  # of another version, or hostile
            return None

    def keep_plan(self, plan: Plan, identity: str) -> None:
        _write(self.path / PLAN, {"identity": identity, **asdict(plan)})

    @property
    def has_plan(self) -> bool:
        """Whether there is a plan, which may be damaged."""
        return (self.path / PLAN).is_file()

    # runs and scores

    def run(self, cell: Cell) -> Path:
        """Where the run of a cell is, or will be: other cells may share it under their name."""
        runs = self.path / "runs"
        there = sorted(runs.glob(f"*-{cell.run}")) if runs.is_dir() else []
        return there[0] if there else runs / cell.run_name

    def log(self, cell: Cell) -> Path:
        return self.path / "logs" / f"{cell.run_name}.txt"

    def scores(self, cell: Cell) -> Scores | None:
        """The scores of a cell; None: it has none yet, or they are damaged, so they are made again.

        They may have been made for a system of another name and the same settings.
        """
        values = _read(self._scores_file(cell)) or {}
        try:
            check_fields(Scores, values)
            scores = Scores(**values)
        except TypeError:  # of another version, or hostile
            return None
        if scores.key != cell.key:
            return None
        return replace(scores, system=cell.system)

    def has_scores(self, cell: Cell) -> bool:
        """Whether a cell has been scored, without reading how."""
        return self._scores_file(cell).is_file()

    def drop_damaged_scores(self, cell: Cell) -> None:
        """Delete the file of scores that cannot be read, so that nobody takes the cell for done."""
        file = self._scores_file(cell)
        if file.is_file() and self.scores(cell) is None:
            with disk_faults_told(file):
                remove(file)

    def keep_scores(self, cell: Cell, scores: Scores) -> None:
        _write(self._scores_file(cell), asdict(scores))

    def _scores_file(self, cell: Cell) -> Path:
        return self.path / "scores" / f"{cell.key}.json"


def _write(path: Path, values: dict[str, Any]) -> None:
    """Write values as JSON, with a checksum over them."""
    text = json.dumps(values)
    with disk_faults_told(path):
        write_text(path, f'{{"sum": "{_sum_of(text)}", "values": {text}}}\n')


def _read(path: Path) -> dict[str, Any] | None:
    """The values of such a file; None: there is none, or it is damaged."""
    try:
        content = parse_json(read_bytes(path, LARGEST))
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict):
        return None
    values = content.get("values")
    is_sound = isinstance(values, dict) and content.get("sum") == _sum_of(json.dumps(values))
    return values if is_sound else None


def _sum_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
