"""What the disk does and refuses: new files, renames, removals, and faults that name their path."""

import errno
import io
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from regard.errors import UserError

FOLDERS_CAN_BE_OPENED = os.name != "nt"  # Windows cannot, and so cannot put them on disk by hand
NO_SYNC_HERE = (errno.EINVAL, errno.ENOTSUP)  # what file systems answer that do not know fsync


@contextmanager
def faults_named(path: Path) -> Iterator[None]:
    """Let what the disk refuses name this path, not a name aside or none at all."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


@contextmanager
def disk_faults_told(path: Path) -> Iterator[None]:
    """Say in one line what the disk refuses. For our own files only, never around a user's code."""
    try:
        yield
    except BrokenPipeError:  # not the disk: nobody reads what we say
        raise
    except OSError as error:
        raise UserError(f"{error.filename or path}: {error.strerror or error}") from error


class NamedFile(io.FileIO):
    """A file whose faults name the path that a person knows."""

    def __init__(self, path: Path, mode: str, known_as: Path, **more: Any) -> None:
        self.known_as = known_as
        with faults_named(known_as):
            super().__init__(path, mode, **more)

    def write(self, content: Any) -> int:
        with faults_named(self.known_as):
            return super().write(content)

    def sync(self) -> None:
        """Put the content on disk."""
        with faults_named(self.known_as):
            _fsync(self.fileno())


@contextmanager
def create(path: Path, known_as: Path | None = None) -> Iterator[BinaryIO]:
    """A new file to write to; at the end it is on disk. Nothing, not even a link, may be there.

    known_as: the path that an error names, if not this one.
    """
    raw = NamedFile(path, "xb", known_as or path)
    with io.BufferedWriter(raw) as file:
        yield file
        file.flush()
        raw.sync()


def sync(path: Path) -> None:
    """Put a file or a folder on disk: a rename lasts only once its folder is there.

    Skipped where the system does not offer it; nothing more can be done there.
    """
    flags = os.O_RDONLY
    if not FOLDERS_CAN_BE_OPENED:
        if path.is_dir():
            return
        flags = os.O_RDWR  # Windows puts only what it may write on disk

    with faults_named(path):
        handle = os.open(path, flags)
        try:
            _fsync(handle)
        finally:
            os.close(handle)


def _fsync(handle: int) -> None:
    """Put an open file or folder on disk, where the file system can."""
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in NO_SYNC_HERE:
            raise


def move(old: Path, new: Path) -> None:
    """Rename a folder, to a name that is free or an empty folder's."""
    with faults_named(new):
        os.rename(old, new)
    sync(new.parent)


def remove(path: Path) -> None:
    """Delete a file, a folder and what is in it, or a link, but not what a link points to."""
    try:
        is_folder = stat.S_ISDIR(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if is_folder:
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
