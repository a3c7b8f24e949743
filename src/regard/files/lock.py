"""A file that one process holds at a time."""

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from regard.files.disk import NamedFile
from regard.files.log import open_own


def lock(path: Path) -> BaseFileLock | None:
    """Lock the file `path`, which may be new; None if another holder has it. Call release() on it.

    The system frees the lock when the process ends, however it ends. The file itself means nothing.
    Only whoever holds the lock may delete the file. A link is refused.
    """
    has_flock = not issubclass(FileLock, SoftFileLock)
    if not has_flock:  # here the file does mean something
        return _try_lock(path)

    while True:
        with _opened(path) as pin:
            held = _try_lock(path)
            if held is None or isinstance(held, SoftFileLock):  # soft: a disk without such locks
                return held
            if pin is not None and is_at(os.fstat(pin.fileno()), path):
                return held
        held.release()  # a new file, or one that its holder deleted just before: look again


def _opened(path: Path) -> AbstractContextManager[NamedFile | None]:
    """The file, open; None if there is none. Not made: it may itself be the lock (SoftFileLock)."""
    try:
        return open_own(path, new=False)
    except FileNotFoundError:
        return nullcontext()


def _try_lock(path: Path) -> BaseFileLock | None:
    """Lock a file at once; None if another holder has it."""
    file_lock = FileLock(path)
    try:
        file_lock.acquire(timeout=0)
    except Timeout:
        return None
    return file_lock


def is_at(known: os.stat_result, path: Path) -> bool:
    """Whether a file or folder, known by its status, is still the one that is called `path`."""
    try:
        return os.path.samestat(known, path.stat())
    except (FileNotFoundError, NotADirectoryError):
        return False
