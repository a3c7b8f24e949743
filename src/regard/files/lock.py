"""A file that one process holds at a time."""

import os
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

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
        with open_own(path) as pin:
            held = _try_lock(path)
            if held is None or _is_at(pin.fileno(), path):
                return held
        held.release()  # a file that its holder deleted just before: it guards nothing


def _try_lock(path: Path) -> BaseFileLock | None:
    """Lock a file at once; None if another holder has it."""
    file_lock = FileLock(path)
    try:
        file_lock.acquire(timeout=0)
    except Timeout:
        return None
    return file_lock


def _is_at(handle: int, path: Path) -> bool:
    """Whether an open file is still the one that is called `path`."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
