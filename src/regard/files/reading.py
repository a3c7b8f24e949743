"""Reading files that may be anything: a pipe, a folder, a device, or far too large.

Whatever cannot be read is an OSError that has its path and its reason, like the system's own.
"""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

VALUES = 5_000_000
"""Most values of a JSON file, some 60 bytes of memory each."""

_KINDS = {
    stat.S_IFDIR: os.strerror(errno.EISDIR),
    stat.S_IFIFO: "is a pipe, not a file",
    stat.S_IFSOCK: "is a socket, not a file",
    stat.S_IFCHR: "is a device, not a file",
    stat.S_IFBLK: "is a device, not a file",
}


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; whatever else is there is refused, and never waited for."""
    check_regular(path, os.stat(path))  # first: to open some devices does something to them
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    file = os.fdopen(os.open(path, flags), "rb")
    try:
        check_regular(path, os.fstat(file.fileno()))
    except OSError:
        file.close()
        raise
    return file


def check_regular(path: Path, found: os.stat_result) -> None:
    """Refuse what is no regular file. found: what the system says of it."""
    kind = stat.S_IFMT(found.st_mode)
    if kind != stat.S_IFREG:
        number = errno.EISDIR if kind == stat.S_IFDIR else errno.EINVAL
        raise OSError(number, _KINDS.get(kind, "is not a regular file"), str(path))


def read_bytes(path: Path, most: int) -> bytes:
    """The content of a regular file of at most so many bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            reason = f"is too large ({size:,} bytes; at most {most:,} are read)"
            raise OSError(errno.EFBIG, reason, str(path))
        return file.read(size)


def parse_json(content: bytes, values: int = VALUES) -> Any:
    """The value that a JSON text says, of bounded size and depth.

    Raises ValueError if it is none.
    """
    if len(content) > values and sum(map(content.count, (b",", b":", b"[", b"{"))) > values:
        raise ValueError(f"more than {values:,} values")
    try:
        return json.loads(content.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None
