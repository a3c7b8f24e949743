"""The exceptions raised for mistakes of the caller, and words for their messages."""

import difflib
import traceback
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).parent


class UserError(Exception):
    """An error that the caller can fix.

    Its message says what went wrong, where, and what to do. The command line prints it and exits
    with `code`.
    """

    code = 2

    def _render_traceback_(self) -> list[str]:
        """For a notebook: the lines of the caller and the message, without Regard's own lines."""
        lines = []
        for frame in traceback.extract_tb(self.__traceback__):
            file = Path(frame.filename)
            if HERE in file.parents or "IPython" in file.parts or not frame.line:
                continue
            lines.append(f"line {frame.lineno}: {frame.line}")
        return [*lines, f"{type(self).__name__}: {self}"]


class Failed(UserError):
    """The request was valid, but could not be carried out."""

    code = 1


class Interrupted(Exception):
    """Work was interrupted (Ctrl-C, SIGTERM) after saving what was done."""

    def __init__(self, text: str, signal_number: int) -> None:
        super().__init__(text)
        self.code = 128 + signal_number


MOST_NAMED = 10
"""Names that a message lists; of the others only how many there are."""


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """The end of a message about an unknown name: the most similar one, or all that are known."""
    names = list(known)
    if near := difflib.get_close_matches(name, names, n=1, cutoff=0.5):
        return f"; did you mean {prefix}{near[0]}?"
    listed = [prefix + one for one in names[:MOST_NAMED]]
    more = len(names) - len(listed)
    if more:
        listed.append(f"and {more} more")
    return f" (available: {', '.join(listed) or 'none'})"


def counted(count: int, noun: str, plural: str = "") -> str:
    """The number with its noun: 1 pair, 2,000 pairs. plural: where it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def only_fast_is_missing(error: ModuleNotFoundError) -> None:
    """Raise the error again, unless it is a `fast/` folder of ours that was taken out."""
    parts = (error.name or "").split(".")
    if parts[0] != "regard" or "fast" not in parts:
        raise error
