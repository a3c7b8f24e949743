"""Standard output and standard error that fail in one line: full, closed, or left by the reader.

Whatever fails at a write, and not at the end of the program, can still be told.
"""

import io
import os
import sys
from typing import Any


class ReaderLeft(Exception):
    """Who read standard output, such as `head`, needs no more of it. That is no error."""


class OutputFault(Exception):
    """Standard output cannot be written. The command line exits with `code`."""

    code = 1


class StandardOutput(io.TextIOWrapper):
    """Standard output, whose faults are not those of some file."""

    def write(self, text: str) -> int:
        """Write a text."""
        try:
            return super().write(text)
        except OSError as error:
            raise _fault(error) from error

    def flush(self) -> None:
        """Write what is still in the buffer."""
        try:
            super().flush()
        except OSError as error:
            raise _fault(error) from error


class StandardError(io.TextIOWrapper):
    """Standard error. Where it cannot be written, nobody is there to be told: work goes on."""

    def write(self, text: str) -> int:
        """Write a text."""
        try:
            return super().write(text)
        except OSError:
            discard(self.fileno())
            return len(text)

    def flush(self) -> None:
        """Write what is still in the buffer."""
        try:
            super().flush()
        except OSError:
            discard(self.fileno())


def say_bytes(content: bytes) -> None:
    """Write bytes, such as those of an array, on standard output."""
    sys.stdout.flush()
    try:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except OSError as error:
        raise _fault(error) from error


def _fault(error: OSError) -> Exception:
    """The error, and from now on nothing is written: not even when the program ends."""
    discard(1)
    if isinstance(error, BrokenPipeError):
        return ReaderLeft()
    return OutputFault(f"standard output cannot be written ({error.strerror})")


def discard(number: int) -> None:
    """Send what is written to this stream nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)


def open_streams() -> None:
    """Make standard output and error tell their faults in one line, and write UTF-8.

    A stream that the caller has closed is opened again, so that no file takes its number; nothing
    can be read from it, or written to it.
    """
    _reopen(0, os.O_WRONLY)
    _reopen(1, os.O_RDONLY)
    _reopen(2, os.O_WRONLY)  # what is said there goes nowhere
    # Who has put another stream in their place, such as a test, keeps it.
    if sys.stdout is sys.__stdout__:
        sys.stdout = StandardOutput(**_options(sys.stdout, 1))
    if sys.stderr is sys.__stderr__:
        sys.stderr = StandardError(**_options(sys.stderr, 2))


def _reopen(number: int, mode: int) -> None:
    """Open a standard stream that is closed."""
    try:
        os.fstat(number)
    except OSError:
        nowhere = os.open(os.devnull, mode)
        if nowhere != number:
            os.dup2(nowhere, number)
            os.close(nowhere)


def _options(stream: Any, number: int) -> dict[str, Any]:
    """How to open a stream like this one; None: it was closed.

    UTF-8 also for pipes and files: Windows has an encoding of its own there, without "→".
    """
    buffer = io.FileIO(number, "wb", closefd=False) if stream is None else stream.buffer
    return {
        "buffer": buffer,
        "encoding": "utf-8",
        "errors": "backslashreplace",
        "line_buffering": number == 2 or (stream is not None and stream.line_buffering),
        "write_through": stream is not None and stream.write_through,
    }
