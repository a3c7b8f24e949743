"""The folder of a comparison: what was asked, its runs, their scores and the reports.

experiment.json   the plan: what is trained and scored
runs/             a run for each system and seed
scores/           a file for each run that was scored
logs/             what each training printed
report.html  report.md  report.json
"""

import json
from dataclasses import asdict
from pathlib import Path

from regard.comparison.cells import Cell, Plan
from regard.comparison.scores import Scores
from regard.errors import UserError
from regard.files import disk_faults_told, write_text
from regard.files.reading import parse_json, read_bytes

PLAN = "experiment.json"
LARGEST = 64 * 2**20  # bytes of a plan


class Folder:
    """The folder of a comparison."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self) -> None:
        with disk_faults_told(self.path):
            for name in ("runs", "scores", "logs"):
                (self.path / name).mkdir(parents=True, exist_ok=True)

    def plan(self, identity: str | None = None) -> Plan | None:
        """The plan that stands here, if it is that of this experiment; None: there is none."""
        try:
            values = parse_json(read_bytes(self.path / PLAN, LARGEST))
            if identity is not None and values["identity"] != identity:
                return None
            return Plan.of(values)
        except FileNotFoundError:
            return None
        except (OSError, KeyError, TypeError, ValueError):
            return None

    def keep_plan(self, plan: Plan, identity: str) -> None:
        values = {"identity": identity, **asdict(plan)}
        write_text(self.path / PLAN, json.dumps(values, ensure_ascii=False, indent=1) + "\n")

    def run(self, cell: Cell) -> Path:
        """Where the run of a cell is, or will be: other cells may share it under their name."""
        runs = self.path / "runs"
        there = sorted(runs.glob(f"*-{cell.run}")) if runs.is_dir() else []
        return there[0] if there else runs / cell.run_name

    def log(self, cell: Cell) -> Path:
        return self.path / "logs" / f"{cell.run_name}.txt"

    def scores(self, cell: Cell) -> Scores | None:
        """The scores of a cell; None: it has none yet."""
        kept = Scores.read(self._scores_file(cell))
        return kept if kept is not None and kept.key == cell.key else None

    def has_scores(self, cell: Cell) -> bool:
        """Whether a cell has been scored, without reading how."""
        return self._scores_file(cell).is_file()

    def keep_scores(self, cell: Cell, scores: Scores) -> None:
        scores.save(self._scores_file(cell))

    def _scores_file(self, cell: Cell) -> Path:
        return self.path / "scores" / f"{cell.key}.json"

    def check(self) -> None:
        """Refuse a folder that holds something else."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise UserError(f"{self.path}: not a folder; choose another one with --out")
        inside = [one.name for one in self.path.iterdir() if not one.name.startswith(".")]
        ours = {PLAN, "runs", "scores", "logs"}
        if inside and not ours & set(inside):
            raise UserError(
                f"{self.path}: a folder that holds something else ({inside[0]}); choose another "
                f"one with --out"
            )
