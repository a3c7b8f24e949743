"""Pipes that a shell has opened, such as <(zcat pairs.tsv.gz): read once, copied, read again."""

import atexit
import io
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO

from regard.errors import UserError

_DESCRIPTOR = re.compile(r"/dev/stdin|(/dev/fd|/proc/self/fd)/\d{1,6}")
_copies: dict[tuple[int, int], BinaryIO] = {}
"""The copy of each pipe. It is the process's: nobody in it can read the pipe again."""


def is_open_pipe(path: Path) -> bool:
    """Whether a path stands for a pipe that is open already, so that opening it never waits."""
    if not _DESCRIPTOR.fullmatch(str(path)):
        return False
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:
        return False


def copy_of_pipe(path: Path) -> BinaryIO:
    """What comes out of a pipe, to be read from its beginning."""
    facts = os.stat(path)
    key = facts.st_dev, facts.st_ino
    if key not in _copies:
        copy = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        try:
            with path.open("rb") as pipe:
                shutil.copyfileobj(pipe, copy, 1 << 20)
            copy.flush()
        except OSError as error:
            copy.close()
            raise UserError(
                f"{path}: cannot keep a copy in {tempfile.gettempdir()} ({error.strerror}); write "
                f"the pairs to a file instead"
            ) from None
        _copies[key] = copy
        atexit.register(copy.close)
    return io.BufferedReader(_Reading(_copies[key].fileno()))


class _Reading(io.RawIOBase):
    """One of several readings of the same open file, each at its own place."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        content = os.pread(self._descriptor, len(buffer), self._place)
        buffer[: len(content)] = content
        self._place += len(content)
        return len(content)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        starts = {
            io.SEEK_SET: 0,
            io.SEEK_CUR: self._place,
            io.SEEK_END: os.fstat(self._descriptor).st_size,
        }
        self._place = starts[whence] + offset
        return self._place
