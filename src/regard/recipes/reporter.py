"""What a person sees while something long goes on.

One bar on a terminal, plain lines in a log file, one picture that is drawn again in its place in a
notebook, nothing if asked.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from html import escape
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Update = Callable[[int, str], None]
"""Takes the number of steps done, and a note to show beside it."""
NOTEBOOK_SECONDS = 5.0  # between two pictures
LINE_SECONDS = 10.0  # between two lines


class Reporter:
    """Says things on one stream, standard error by default. `quiet` says only warnings."""

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self.console = Console(file=stream or sys.stderr, highlight=False, soft_wrap=True)
        self.quiet = quiet
        self.display: Any = _notebook_display() if stream is None else None

    def say(self, text: str) -> None:
        """Print a line, unless the reporter is quiet."""
        if not self.quiet:
            self.console.print(text, markup=False)

    def warn(self, text: str) -> None:
        """Print a warning, even if the reporter is quiet."""
        self.console.print(f"warning: {text}", markup=False, style="yellow")

    @contextmanager
    def progress(self, note: str, *, after: float = 3.0) -> Iterator[Callable[[float], None]]:
        """Show progress in per cent; gives a function to call with the share that is done.

        What takes less than `after` seconds shows nothing.
        """
        began = time.monotonic()
        update: Update | None = None
        last = -1
        with ExitStack() as stack:

            def tell(share: float) -> None:
                nonlocal update, last
                percent = min(100, int(100 * share))
                if update is None and time.monotonic() - began >= after:
                    update = stack.enter_context(self.bar(100, percent))
                if update is not None and percent > last:
                    update(percent, note)
                    last = percent

            yield tell

    def bar(
        self, total: int, start: int = 0, picture: Callable[[], str] = str
    ) -> AbstractContextManager[Update]:
        """Show progress in steps; gives a function to call with the steps done and a note.

        picture: makes HTML that a notebook shows below.
        """
        if self.quiet:
            return nullcontext(lambda done, note: None)
        if self.display is not None:
            return self._notebook_bar(total, start, picture)
        if self.console.is_terminal:
            return self._terminal_bar(total, start)
        return self._lines(total, start)

    @contextmanager
    def _notebook_bar(self, total: int, start: int, picture: Callable[[], str]) -> Iterator[Update]:
        """Draw bar and picture again and again in their place; what came last, in any case."""
        handle = self.display.display(self.display.HTML(""), display_id=True)
        drawn_at = 0.0
        newest = (start, "")

        def draw() -> None:
            nonlocal drawn_at
            done, note = newest
            bar = (
                f"<progress value={done} max={total}></progress> {done:,} of {total:,} "
                f"{escape(note)}"
            )
            handle.update(self.display.HTML(f"<p>{bar}</p>{picture()}"))
            drawn_at = time.monotonic()

        def update(done: int, note: str) -> None:
            nonlocal newest
            newest = (done, note)
            if time.monotonic() - drawn_at >= NOTEBOOK_SECONDS:
                draw()

        try:
            yield update
        finally:
            draw()

    @contextmanager
    def _terminal_bar(self, total: int, start: int) -> Iterator[Update]:
        """A bar that moves in its line."""
        columns = (
            BarColumn(24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console) as progress:
            task = progress.add_task("", total=total, completed=start, note="")
            yield lambda done, note: progress.update(task, completed=done, note=note)

    @contextmanager
    def _lines(self, total: int, start: int) -> Iterator[Update]:
        """A line every ten seconds, and the last one."""
        began = time.monotonic()
        said_at = began

        def update(done: int, note: str) -> None:
            nonlocal said_at
            now = time.monotonic()
            if now - said_at >= LINE_SECONDS or done >= total:
                said_at = now
                left = (now - began) / max(1, done - start) * (total - done)
                self.say(f"{done}/{total}  {note}  {int(left // 60)}:{int(left % 60):02d} left")

        yield update


def _notebook_display() -> Any:
    """IPython's module for what a notebook shows; None outside of a notebook."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell: Any = get_ipython() if get_ipython is not None else None
    if getattr(shell, "kernel", None) is None:
        return None
    return sys.modules.get("IPython.display")
