"""Lines at the end of a file that grows."""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from regard.files.disk import NamedFile

LINK = "this is a link, and Regard writes through no link inside a run; delete it"
NO_FILE = "this is not a regular file; delete it"

# Windows has neither; links are rare there, and pipes are no files.
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_WAITING = getattr(os, "O_NONBLOCK", 0)


def append(path: Path, text: str) -> None:
    """Write a text at the end of a file, which may be new, but not a link and no pipe.

    All of it or nothing, so that the next text does not continue half a line. It is not put on disk
    at once: a log is written often, and resuming rewinds it to a checkpoint.
    """
    with open_own(path) as raw:
        size = os.fstat(raw.fileno()).st_size
        rest = memoryview(text.encode())
        try:
            while rest:
                rest = rest[raw.write(rest) :]
        except OSError:
            with suppress(OSError):
                raw.truncate(size)
            raise


def open_own(path: Path, *, new: bool = True) -> NamedFile:
    """Open a file of Regard's own to append to it; a link, a pipe or a device is refused.

    new: whether to make it if it is not there.
    """
    if path.is_symlink():
        raise OSError(errno.ELOOP, LINK, str(path))
    try:
        file = NamedFile(path, "ab", path, opener=_opener if new else _opener_of_old)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a pipe that nobody reads, or a socket
            raise OSError(errno.EINVAL, NO_FILE, str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, NO_FILE, str(path))
    return file


def _opener(path: str, flags: int) -> int:
    """Open a file, but no link, and without waiting for the reader of a pipe."""
    return os.open(path, flags | _NO_LINK | _NO_WAITING, 0o666)


def _opener_of_old(path: str, flags: int) -> int:
    """The same for a file that is there."""
    return os.open(path, (flags & ~os.O_CREAT) | _NO_LINK | _NO_WAITING)
