"""What a person sees while a comparison runs: a live table, or a line for each run that is done."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from rich.live import Live
from rich.table import Table
from rich.text import Text

from regard.comparison.cells import Cell, Plan
from regard.comparison.folder import Folder
from regard.comparison.scores import Scores
from regard.display import safe
from regard.errors import counted
from regard.files.reading import open_regular
from regard.recipes.reporter import Reporter
from regard.training.forecast import duration

EVERY = 1.0  # seconds between two pictures of the table
TAIL = 8192  # bytes of a log that its last entry is found in
MOST_ROWS = 20
"""Runs that the table has, at most: of more, those that are trained, and those around them."""
SOON = 10.0  # seconds before which nobody can tell how long it will take


class Board:
    """The table of all runs, drawn again and again; without a terminal, a line for each change."""

    def __init__(self, plan: Plan, folder: Folder, jobs: int, reporter: Reporter) -> None:
        self._runs = plan.runs()
        self._folder = folder
        self._jobs = jobs
        self._reporter = reporter
        self._live: Live | None = None
        self._drawn_at = 0.0
        self._began = time.monotonic()
        self._done = self._scored()
        self._failed: dict[int, str] = {}
        self._share_at_start = [self._share_of(number) for number in range(len(self._runs))]
        self._found: dict[int, str] = {}

    def __enter__(self) -> Self:
        reporter = self._reporter
        left = len(self._runs) - len(self._done)
        kept = f"{counted(len(self._done), 'run')} of {len(self._runs):,} done before; "
        jobs = min(self._jobs, left)
        reporter.say(
            f"{kept if self._done else ''}training {counted(left, 'run')}, {jobs} at a time"
        )
        if reporter.console.is_terminal and not reporter.quiet:
            self._live = Live(self._table(set()), console=reporter.console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.update(self._table(set()), refresh=True)
            self._live.stop()

    def update(self, running: set[int], failed: Mapping[int, str]) -> None:
        """Show how far the runs are; running: the numbers of those that are being trained."""
        for number in sorted(self._scored() - self._done):
            self._done.add(number)
            if self._live is None:
                self._say_done(number, running)
        for number in sorted(set(failed) - set(self._failed)):
            self._failed[number] = failed[number]
            self._reporter.warn(failed[number])
        if self._live is not None and time.monotonic() - self._drawn_at >= EVERY:
            self._live.update(self._table(running), refresh=True)
            self._drawn_at = time.monotonic()

    def _say_done(self, number: int, running: set[int]) -> None:
        count = f"{len(self._done)}/{len(self._runs)}"
        name = self._runs[number][0].label
        self._reporter.say(f"{count}  {name}: {self._words(number)}{self._left(running)}")

    def _scored(self) -> set[int]:
        return {
            number
            for number, cells in enumerate(self._runs)
            if all(self._folder.has_scores(cell) for cell in cells)
        }

    def _table(self, running: set[int]) -> Table:
        table = Table(title=f"{len(self._done)} of {len(self._runs)} runs{self._left(running)}")
        table.title_justify = "left"
        for column in ("system", "seed", "state"):
            table.add_column(column, overflow="fold")
        for number in self._shown(running):
            cell = self._runs[number][0]
            state = self._state(number, running)
            table.add_row(Text(safe(cell.system)), str(cell.seed), Text(safe(state)))
        return table

    def _shown(self, running: set[int]) -> list[int]:
        """The runs of the table: all of a few; of many, those around the ones being trained."""
        every = range(len(self._runs))
        if len(every) <= MOST_ROWS:
            return list(every)
        middle = min(running, default=max(self._done, default=0))
        first = max(0, min(middle - MOST_ROWS // 2, len(every) - MOST_ROWS))
        window = set(every[first : first + MOST_ROWS])
        return sorted(window | running)

    def _state(self, number: int, running: set[int]) -> str:
        """What a run does, or has found."""
        cell = self._runs[number][0]
        if number in self._done:
            return self._words(number)
        if number in running:
            return _training(cell, self._folder.run(cell))
        return "failed" if number in self._failed else "waiting"

    def _words(self, number: int) -> str:
        """What a run that is done has found, for a person. Its scores are read once."""
        if number not in self._found:
            scores = self._folder.scores(self._runs[number][0])
            self._found[number] = _in_words(scores) if scores is not None else "damaged scores"
        return self._found[number]

    def _left(self, running: set[int]) -> str:
        """How long it will take, by what was done since the start, for a person."""
        now = list(self._share_at_start)
        for number in running | self._done:
            now[number] = self._share_of(number)
        achieved = sum(now) - sum(self._share_at_start)
        passed = time.monotonic() - self._began
        if achieved < 0.05 or passed < SOON:
            return ""
        missing = sum(1 - share for number, share in enumerate(now) if number not in self._failed)
        return f", about {duration(passed / achieved * missing)} left" if missing else ""

    def _share_of(self, number: int) -> float:
        """How much of a run is done."""
        if number in self._done:
            return 1.0
        cell = self._runs[number][0]
        return min(1.0, _share(cell, _last_entry(self._folder.run(cell))))


def _in_words(scores: Scores) -> str:
    """The scores of a run in a few words."""
    words = [f"trained for {duration(scores.seconds)}"]
    loss = scores.values.get("loss")
    if loss is not None:
        words.insert(0, f"loss {loss:.3f}")
    bleu = scores.values.get("bleu")
    if bleu is not None:
        words.insert(0, f"BLEU {bleu:.1f}")
    return ", ".join(words)


def _training(cell: Cell, run: Path) -> str:
    """How far a run is, for a person."""
    entry = _last_entry(run)
    if entry is None:
        return "preparing"
    share = _share(cell, entry)
    if share >= 1:
        return "scoring"
    loss = f", loss {_number(entry, 'loss'):.3f}" if "loss" in entry else ""
    return f"{share:.0%}: step {_number(entry, 'step'):,.0f}{loss}"


def _share(cell: Cell, entry: dict[str, object] | None) -> float:
    """How much of the training of a cell is done."""
    if entry is None:
        return 0.0
    train = cell.config.train
    share = _number(entry, "step") / max(1, train.steps)
    if train.epochs:
        share = _number(entry, "epoch") / train.epochs
    if train.minutes:
        share = max(share, _number(entry, "seconds") / (60 * train.minutes))
    return share


def _number(entry: dict[str, object], name: str) -> float:
    value = entry.get(name, 0)
    return float(value) if isinstance(value, int | float) else 0.0


def _last_entry(run: Path) -> dict[str, object] | None:
    """The last line of the log that training has written; None: none yet."""
    try:
        with open_regular(run / "log.jsonl") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and entry.get("kind") == "train":
            return entry
    return None
