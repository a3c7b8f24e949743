"""What a person sees while something long goes on.

One bar on a terminal, plain lines in a log file, one picture that is drawn again in its place in a
notebook, nothing if asked.
"""

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Protocol, TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment

from regard.display import bounded, console, html, plain, table

NOTEBOOK_SECONDS = 5.0  # between two pictures
LINE_SECONDS = 10.0  # between two lines
LONGEST_BAR = 24  # columns of a terminal
SHORTEST_BAR = 8


class Update(Protocol):
    """What is called with the steps done and with notes, the most important ones first.

    at_most: seconds until a time limit ends the work; infinite if there is no limit. total: all
    steps, where that has changed; 0: nobody knows, and only the time limit counts.
    """

    def __call__(
        self, done: int, *notes: str, at_most: float = math.inf, total: int | None = None
    ) -> None: ...


class Reporter:
    """Says things on one stream. `quiet` says only warnings.

    The stream is standard error, or standard output in a notebook, which paints the other one red.
    """

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self.display: Any = _notebook_display() if stream is None else None
        usual = sys.stderr if self.display is None else sys.stdout
        # Without force_jupyter, Rich would make a paragraph of HTML of each line in a notebook.
        self.console = console(stream or usual, soft_wrap=True, force_jupyter=False)
        # A terminal would break a long line within a word; a file keeps it whole.
        self.console.soft_wrap = not self.console.is_terminal
        self.quiet = quiet

    def say(self, text: str) -> None:
        """Print a text as one line, unless the reporter is quiet."""
        if not self.quiet:
            self.console.print(plain(text))

    def warn(self, text: str) -> None:
        """Print a warning, even if the reporter is quiet."""
        self.console.print(f"warning: {bounded(text)}", style="yellow")

    def table(self, columns: Sequence[str], rows: Iterable[Iterable[str]], title: str) -> None:
        """Print a table with a title, unless the reporter is quiet."""
        if not self.quiet:
            table(columns, rows, stream=self.console.file, title=title)

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
            return nullcontext(lambda done, *notes, at_most=math.inf, total=None: None)
        if self.display is not None:
            return self._notebook_bar(total, start, picture)
        if self.console.is_terminal:
            return self._terminal_bar(total, start)
        return self._lines(total, start)

    @contextmanager
    def _notebook_bar(self, total: int, start: int, picture: Callable[[], str]) -> Iterator[Update]:
        """Draw bar and picture again and again in their place; what came last, in any case."""
        handle = self.display.display(self.display.HTML(""), display_id=True)
        pace = Pace(total, start)
        drawn_at = 0.0
        newest: tuple[str, ...] = ()

        def draw() -> None:
            nonlocal drawn_at
            left = [] if pace.is_done else [pace.left()]
            text = " · ".join([pace.steps(" of "), *left, *newest])
            bar = f"<progress value={pace.share:.3f} max=1></progress> {html(text)}"
            handle.update(self.display.HTML(f"<p>{bar}</p>{picture()}"))
            drawn_at = time.monotonic()

        def update(
            done: int, *notes: str, at_most: float = math.inf, total: int | None = None
        ) -> None:
            nonlocal newest
            pace.note(done, at_most, total)
            newest = notes
            if time.monotonic() - drawn_at >= NOTEBOOK_SECONDS:
                draw()

        try:
            yield update
        finally:
            draw()

    @contextmanager
    def _terminal_bar(self, total: int, start: int) -> Iterator[Update]:
        """A bar that moves in its line."""
        line = _BarLine(Pace(total, start))
        with Live(line, console=self.console, auto_refresh=True):
            yield line.update

    @contextmanager
    def _lines(self, total: int, start: int) -> Iterator[Update]:
        """A line every ten seconds, and the last one, wherever it ends."""
        pace = Pace(total, start)
        said_at = time.monotonic()
        unsaid = ""

        def update(
            done: int, *notes: str, at_most: float = math.inf, total: int | None = None
        ) -> None:
            nonlocal said_at, unsaid
            pace.note(done, at_most, total)
            unsaid = "  ".join([pace.steps(), *notes, pace.left()])
            if time.monotonic() - said_at >= LINE_SECONDS or pace.is_done:
                said_at = time.monotonic()
                self.say(unsaid)
                unsaid = ""

        try:
            yield update
        finally:
            if unsaid:
                self.say(unsaid)


class Pace:
    """How far the work is, and how long it will take: by its steps, or by a time limit."""

    def __init__(self, total: int, start: int = 0) -> None:
        self.total = total
        self.start = start
        self.done = start
        self._began = time.monotonic()
        self._noted_at = self._began
        self._at_most = math.inf

    def note(self, done: int, at_most: float = math.inf, total: int | None = None) -> None:
        """Note the steps done, the seconds that a time limit leaves, and how many steps there are.

        total: 0 where nobody knows; None: as before.
        """
        self._noted_at = time.monotonic()
        if done < self.done:  # training went back: the speed so far was that of other steps
            self.start = done
            self._began = self._noted_at
        self.done = done
        self._at_most = at_most
        if total is not None:
            self.total = total

    @property
    def is_done(self) -> bool:
        """Whether the last step is done, if it is known which one that is."""
        return 0 < self.total <= self.done

    def steps(self, of: str = "/") -> str:
        """The steps done, and of how many, for a person."""
        return f"{self.done:,}{of}{self.total:,}" if self.total else f"step {self.done:,}"

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the last step or the time limit, whichever comes first; None: unknown."""
        waited = time.monotonic() - self._noted_at
        limit = max(0.0, self._at_most - waited)
        steps = self.done - self.start
        if self.is_done:
            return 0.0
        if steps == 0 or not self.total:
            return None if math.isinf(limit) else limit
        needed = (self._noted_at - self._began) / steps * (self.total - self.done)
        return min(max(0.0, needed - waited), limit)

    @property
    def share(self) -> float:
        """The part of the work that is done, from 0 to 1."""
        by_steps = self.done / self.total if self.total else 0.0
        left = self.seconds_left
        if left is None or math.isinf(self._at_most):
            return by_steps
        spent = time.monotonic() - self._began
        return max(by_steps, spent / max(1e-9, spent + left))

    def left(self) -> str:
        """The time left, as 1:05 or 2:01:05."""
        left = self.seconds_left
        if left is None:
            return "-:-- left"
        minutes, seconds = divmod(int(left), 60)
        hours, minutes = divmod(minutes, 60)
        if hours:
            return f"{hours}:{minutes:02d}:{seconds:02d} left"
        return f"{minutes}:{seconds:02d} left"


class _BarLine:
    """The line of a terminal that shows a bar, the step, the time left and notes."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._notes: tuple[str, ...] = ()

    def update(
        self, done: int, *notes: str, at_most: float = math.inf, total: int | None = None
    ) -> None:
        """Note what the line shows when it is drawn next."""
        self._pace.note(done, at_most, total)
        self._notes = tuple(map(plain, notes))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        pace = self._pace
        columns, text = fit_line(options.max_width, [pace.steps(), pace.left(), *self._notes])
        if columns:
            bar = ProgressBar(total=1.0, completed=pace.share, width=columns)
            yield from console.render(bar, options.update(width=columns))
            yield Segment(" ")
        yield Segment(text)
        yield Segment.line()


def fit_line(width: int, pieces: Sequence[str]) -> tuple[int, str]:
    """Fit a line of progress into a width: the columns of its bar (0: none), and its text.

    Where there is no room for all pieces, the last ones are left out. The first three (step, time
    left, loss) are more important than the bar.
    """
    columns = min(max(width // 6, SHORTEST_BAR), LONGEST_BAR)  # steady while the text changes
    if columns + 1 + len("  ".join(pieces[:3])) > width:
        columns = 0

    room = width - columns - 1 if columns else width
    text = pieces[0]
    for piece in pieces[1:]:
        if len(text) + 2 + len(piece) > room:
            break
        text += f"  {piece}"
    return columns, text[:room]


def _notebook_display() -> Any:
    """IPython's module for what a notebook shows; None outside of a notebook."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell: Any = get_ipython() if get_ipython is not None else None
    if getattr(shell, "kernel", None) is None:
        return None
    return sys.modules.get("IPython.display")
