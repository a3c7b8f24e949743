"""What a person sees while something long goes on: one bar on a terminal, plain lines in a log file, nothing if asked."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Reporter:
    """Says things on one stream, standard error by default. `quiet` says only warnings."""

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self.console = Console(file=stream or sys.stderr, highlight=False, soft_wrap=True)
        self.quiet = quiet

    def say(self, text: str) -> None:
        if not self.quiet:
            self.console.print(text, markup=False)

    def warn(self, text: str) -> None:
        self.console.print(f"warning: {text}", markup=False, style="yellow")

    @contextmanager
    def bar(self, total: int, start: int = 0) -> Iterator[Callable[[int, str], None]]:
        """A function to call with the steps done and a few figures."""
        if self.quiet:
            yield lambda done, note: None
        elif self.console.is_terminal:
            note = TextColumn("{task.fields[note]}")
            with Progress(BarColumn(24), MofNCompleteColumn(), note, TimeRemainingColumn(), console=self.console) as progress:
                task = progress.add_task("", total=total, completed=start, note="")
                yield lambda done, note: progress.update(task, completed=done, note=note)
        else:
            began = last = time.monotonic()

            def line(done: int, note: str) -> None:  # every ten seconds, and the last one
                nonlocal last
                now = time.monotonic()
                if now - last >= 10 or done >= total:
                    last, left = now, (now - began) / max(1, done - start) * (total - done)
                    self.say(f"{done}/{total}  {note}  {int(left // 60)}:{int(left % 60):02d} left")

            yield line
