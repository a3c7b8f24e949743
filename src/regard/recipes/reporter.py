"""What a person sees while something long goes on: one bar on a terminal, plain lines in a log
file, one picture that is drawn again in its place in a notebook, nothing if asked.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from html import escape
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Reporter:
    """Says things on one stream, standard error by default. `quiet` says only warnings."""

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self.console = Console(file=stream or sys.stderr, highlight=False, soft_wrap=True)
        self.quiet = quiet
        shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        kernel = stream is None and getattr(shell, "kernel", None) is not None
        self.display: Any = sys.modules.get("IPython.display") if kernel else None

    def say(self, text: str) -> None:
        if not self.quiet:
            self.console.print(text, markup=False)

    def warn(self, text: str) -> None:
        self.console.print(f"warning: {text}", markup=False, style="yellow")

    @contextmanager
    def progress(self, note: str, *, after: float = 3.0) -> Iterator[Callable[[float], None]]:
        """A function to call with the share that is done. What takes less than `after` seconds
        shows nothing.
        """
        began = time.monotonic()
        shown: Callable[[int, str], None] | None = None
        last = -1
        with ExitStack() as stack:

            def tell(share: float) -> None:
                nonlocal shown, last
                percent = min(100, int(100 * share))
                if shown is None and time.monotonic() - began >= after:
                    shown = stack.enter_context(self.bar(100, percent))
                if shown is not None and percent > last:
                    shown(percent, note)
                    last = percent

            yield tell

    @contextmanager
    def bar(
        self, total: int, start: int = 0, picture: Callable[[], str] = str
    ) -> Iterator[Callable[[int, str], None]]:
        """A function to call with the steps done and a few figures. picture: HTML for a
        notebook.
        """
        if self.quiet:
            yield lambda done, note: None
        elif self.display is not None:
            handle, last, said = (
                self.display.display(self.display.HTML(""), display_id=True),
                0.0,
                (start, ""),
            )

            def draw(done: int, note: str, *, often: float = 5) -> None:
                nonlocal last, said
                said = done, note
                if time.monotonic() - last >= often:
                    bar = (
                        f"<progress value={done} max={total}></progress> {done:,} of {total:,} "
                        f"{escape(note)}"
                    )
                    handle.update(self.display.HTML(f"<p>{bar}</p>{picture()}"))
                    last = time.monotonic()

            try:
                yield draw
            finally:
                draw(*said, often=0)
        elif self.console.is_terminal:
            note = TextColumn("{task.fields[note]}")
            with Progress(
                BarColumn(24),
                MofNCompleteColumn(),
                note,
                TimeRemainingColumn(),
                console=self.console,
            ) as progress:
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
