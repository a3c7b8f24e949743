"""What a person sees while something long goes on: one bar on a terminal, plain lines in a log file, nothing if asked."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


class Reporter:
    """Says things on one stream. `quiet` says only warnings."""

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        from rich.console import Console

        self.console = Console(file=stream or sys.stderr, highlight=False, soft_wrap=True)
        self.quiet = quiet

    def say(self, text: str) -> None:
        """A line for the person."""
        if not self.quiet:
            self.console.print(text, markup=False)

    def warn(self, text: str) -> None:
        """A line that must be seen."""
        self.console.print(f"warning: {text}", markup=False, style="yellow")

    @contextmanager
    def bar(self, total: int, start: int = 0) -> Iterator[Bar]:
        """A progress bar over `total` steps."""
        if self.quiet:
            yield Bar(total, start)
        elif self.console.is_terminal:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                TimeRemainingColumn(),
            )
            with Progress(*columns, console=self.console, transient=False) as progress:
                yield _Rich(total, start, progress)
        else:
            yield _Lines(total, start, self)


class Bar:
    """Counts, and shows nothing."""

    def __init__(self, total: int, start: int) -> None:
        self.total, self.start = total, start

    def to(self, done: int, note: str) -> None:
        """`done` steps are behind us; note: a few figures."""


class _Rich(Bar):
    def __init__(self, total: int, start: int, progress: object) -> None:
        from rich.progress import Progress

        super().__init__(total, start)
        assert isinstance(progress, Progress)
        self.progress = progress
        self.task = progress.add_task("", total=total, completed=start, note="")

    def to(self, done: int, note: str) -> None:
        self.progress.update(self.task, completed=done, note=note)


class _Lines(Bar):
    """A line every ten seconds, and the last one."""

    def __init__(self, total: int, start: int, reporter: Reporter) -> None:
        super().__init__(total, start)
        self.reporter = reporter
        self.began = self.last = time.monotonic()

    def to(self, done: int, note: str) -> None:
        now = time.monotonic()
        if now - self.last < 10 and done < self.total:
            return
        self.last = now
        left = (now - self.began) / max(1, done - self.start) * (self.total - done)
        self.reporter.say(f"{done}/{self.total}  {note}  {int(left // 60)}:{int(left % 60):02d} left")
