"""Files and folders that are whole or absent: written aside, put on disk, renamed."""

import os
import re
import shutil
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import BinaryIO

from regard.files.disk import create, faults_named, move, remove, sync

ASIDE = re.compile(r"\.(?P<name>.+)\.\d+(-\d+)?\.tmp", re.DOTALL)
"""The name of what is being written: of which file or folder, and by which process."""
LONGEST_NAME = 255
"""Bytes of a file's name, on nearly every file system."""

_numbers = count(1)


def write_text(path: Path, text: str) -> None:
    """Replace one file by this text, in UTF-8. A link is replaced, never followed."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Replace one file by these bytes. A link is replaced, never followed."""
    with writing(path) as file:
        file.write(content)


@contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which replaces the file `path` at the end, or not at all.

    It keeps the permissions of the file that it replaces.
    """
    aside = aside_of(path)
    try:
        with create(aside, path) as file:
            keep_permissions(path, aside)
            yield file
        replace(aside, path)
    except BaseException:
        with suppress(OSError):
            remove(aside)
        raise


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """An empty folder to write to, which becomes the folder `path` at the end, or not at all.

    What stood there before is deleted; a link is replaced, never followed.
    """
    aside = aside_of(path)
    with faults_named(path):
        aside.mkdir(parents=True)
    try:
        yield aside
        sync(aside)
        remove(path)
        move(aside, path)
    except BaseException:
        with suppress(OSError):
            remove(aside)
        raise


def copy_folder(old: Path, new: Path, *, without: Collection[str] = ()) -> None:
    """Copy what is in a folder into an empty one, but nothing whose name begins with a dot.

    A link to a file becomes a file; of links to folders only those of the folder itself are
    followed, for deeper ones may lead in circles. without: names that are left out.
    """
    for path in sorted(old.iterdir()):
        if path.name.startswith(".") or path.name in without:
            continue
        copy = new / path.name
        if path.is_dir():
            copy.mkdir()
            copy_folder(path, copy, without=_links_to_folders(path))
            sync(copy)
        elif path.is_file():
            with path.open("rb") as source, create(copy) as file:
                shutil.copyfileobj(source, file)
    sync(new)


def _links_to_folders(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.is_symlink() and path.is_dir()]


def remove_whole(path: Path) -> None:
    """Delete a folder so that nobody sees a part of it: it gets another name first."""
    aside = aside_of(path)
    try:
        move(path, aside)
    except FileNotFoundError:
        return
    remove(aside)


def aside_of(path: Path) -> Path:
    """A name beside this one that nobody else has: `.NAME.PROCESS-NUMBER.tmp`."""
    while True:
        end = f".{os.getpid()}-{next(_numbers)}.tmp"
        aside = path.with_name("." + shortened(path.name, LONGEST_NAME - 1 - len(end)) + end)
        if not os.path.lexists(aside):  # a process that had our number was killed
            return aside


def shortened(name: str, size: int) -> str:
    """The beginning of a name, as long as it has no more than `size` bytes."""
    return os.fsencode(name)[:size].decode("utf-8", "ignore")


def keep_permissions(old: Path, new: Path) -> None:
    """Give a new file the permissions of the regular file that it will replace."""
    try:
        mode = old.lstat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISREG(mode):
        with faults_named(old):
            new.chmod(stat.S_IMODE(mode))


def replace(aside: Path, path: Path) -> None:
    """Put a file that is on disk into its place."""
    with faults_named(path):
        os.replace(aside, path)
    sync(path.parent)
