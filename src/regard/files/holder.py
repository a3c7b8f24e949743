"""Who holds a lock: a note in its file, for the message to those who have to wait."""

import errno
import os
import re
import socket
from contextlib import suppress
from pathlib import Path

from regard.files.reading import read_bytes

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

NOTE = re.compile(r"(?P<process>[0-9]{1,10})\n(?P<host>[\w.-]{1,255})\n")
"""Also how the file of a lock begins where filelock has to write it itself."""
LARGEST = 512  # bytes of such a file


def sign(lock_file: Path) -> None:
    """Note in the file of a lock, which this process holds, who holds it."""
    _write(lock_file, f"{os.getpid()}\n{socket.gethostname()}\n")


def clear(lock_file: Path) -> None:
    """Remove the note from the file of a lock that this process still holds."""
    _write(lock_file, "")


def _write(lock_file: Path, note: str) -> None:
    flags = os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0)
    with suppress(OSError):  # a full disk, or Windows: then nobody is named
        handle = os.open(lock_file, flags)
        try:
            if _is_flock(handle):
                os.ftruncate(handle, 0)
                os.write(handle, note.encode())
        finally:
            os.close(handle)


def is_note(file: Path) -> bool:
    """Whether a file has no more in it than the file of a lock: the note of a holder, or nothing.

    A file of somebody else may have the same name.
    """
    try:
        content = read_bytes(file, LARGEST)
    except OSError:
        return False
    return not content or NOTE.fullmatch(content.decode(errors="replace")) is not None


def holder(lock_file: Path) -> str:
    """Who holds a lock that we did not get, as the end of a message; empty if it is not known.

    The note of a process that was killed stays until the next holder has written its own, so a
    process of this host is named only if it is alive.
    """
    try:
        handle = os.open(lock_file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:  # it was given back just now, or Windows lets nobody read it
        return ""
    try:
        note = NOTE.match(os.read(handle, LARGEST).decode(errors="replace"))
        is_sure = _is_flock(handle)
    except OSError:
        return ""
    finally:
        os.close(handle)

    parts = []
    if note and (note["host"] != socket.gethostname() or _is_alive(int(note["process"]))):
        parts.append(f"process {note['process']} on {note['host']}")
    if not is_sure:  # the file itself is the lock, and a killed process leaves it behind
        parts.append(f"if it has ended, delete {lock_file}")
    return f" ({'; '.join(parts)})" if parts else ""


def _is_flock(handle: int) -> bool:
    """Whether the system keeps the locks of this file, and frees them when a process ends."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_UN)  # of what this handle never locked: only a question
    except OSError as error:
        return error.errno != errno.ENOSYS
    return True


def _is_alive(process: int) -> bool:
    """Whether a process of this host is there."""
    if os.name == "nt":  # signal 0 is Ctrl-C there
        return True
    try:
        os.kill(process, 0)
    except PermissionError:  # of another user
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True
