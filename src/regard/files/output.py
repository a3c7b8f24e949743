"""What the user named to be written: a file, a link to one, a pipe or a device."""

import errno
import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from signal import SIGINT
from typing import BinaryIO, TextIO

from regard.errors import Failed, Interrupted, UserError
from regard.files.disk import NamedFile, faults_named, remove
from regard.files.whole import LONGEST_NAME, keep_permissions, replace, shortened, writing

MANIFEST = "manifest.json"
"""The file that every run has."""
_BLOCK = 1 << 16  # bytes that are searched at a time for the end of a line


def write_output(path: Path, content: bytes) -> None:
    """Write a whole file where the user said; folders on the way are made."""
    with whole_output(path) as file:
        file.write(content)


@contextmanager
def whole_output(path: Path) -> Iterator[BinaryIO]:
    """A file to write to where the user said, which is whole or as it was; folders are made.

    What cannot be written is refused at once, before an hour is spent on its content.
    """
    with faults_named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    if _takes_a_stream(path):
        with io.BufferedWriter(_opened_stream(path)) as file:
            yield file
        return

    place = _place(path)
    _refuse_if_protected(place, path)
    with writing(place) as file:
        yield file


@contextmanager
def output(path: Path) -> Iterator[TextIO]:
    """A text file to write to line by line, where the user said.

    A pipe or a device gets every line as it comes. A regular file is written beside its place, as
    NAME.partial, and takes its name at the end, so that it may even be the file that is being read.
    After a fault or Ctrl-C the finished lines stay in NAME.partial, and the error says so.
    """
    if _takes_a_stream(path):
        with _text(_opened_stream(path)) as stream:
            yield stream
        return

    place = _place(path)
    _refuse_if_protected(place, path)
    raw = _new_partial(place, path)
    partial = Path(raw.name)
    try:
        with _text(raw) as file:
            keep_permissions(place, partial)
            yield file
            file.flush()
            raw.sync()
        with faults_named(path):
            replace(partial, place)
    except KeyboardInterrupt:
        raise Interrupted(f"stopped{_kept(partial, path)}", SIGINT) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise Failed(f"{where}{error.strerror or error}{_kept(partial, path)}") from error
    except UserError as error:
        error.args = (f"{error}{_kept(partial, path)}",)
        raise
    except BaseException as error:
        error.add_note(f"{path}{_kept(partial, path)}")
        raise


def _text(raw: NamedFile) -> TextIO:
    """The file as UTF-8 text with "\\n" at the end of lines, on every system."""
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", newline="\n")


def _takes_a_stream(path: Path) -> bool:
    """Whether what is there cannot be replaced: a pipe, a device, our own standard output."""
    try:
        about = os.stat(path)
    except OSError:  # nothing there yet; whatever else is wrong shows when it is written
        return False
    if not stat.S_ISREG(about.st_mode):
        return True
    is_kernels = os.path.realpath(path).startswith("/proc/")
    return is_kernels or _is_standard_output(about)


def _is_standard_output(about: os.stat_result) -> bool:
    """Whether this is the file that standard output goes to, such as /dev/stdout."""
    for stream in (sys.__stdout__, sys.__stderr__):
        with suppress(OSError, ValueError, AttributeError):  # closed, or there is none
            if os.path.samestat(about, os.fstat(stream.fileno())):  # type: ignore[union-attr]
                return True
    return False


def _opened_stream(path: Path) -> NamedFile:
    """A pipe or a device, opened to write after what it has got already."""
    return NamedFile(path, "ab", path)


def _place(path: Path) -> Path:
    """The file that is replaced: where a link leads, or the link itself if it is inside a run.

    Nobody knows where the links of a run that was copied from elsewhere lead.
    """
    if not path.is_symlink():
        return path
    folders = Path(os.path.abspath(path)).parents
    if any((folder / MANIFEST).exists() for folder in folders):
        return path
    return Path(os.path.realpath(path))


def _refuse_if_protected(place: Path, path: Path) -> None:
    """Refuse to replace a file that may not be written, though its folder may."""
    effective = os.access in os.supports_effective_ids
    if place.exists() and not os.access(place, os.W_OK, effective_ids=effective):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def _new_partial(place: Path, path: Path) -> NamedFile:
    """A new file beside a place: NAME.partial, or NAME.partial-2 … if there is one already."""
    for number in count(1):
        end = ".partial" if number == 1 else f".partial-{number}"
        name = shortened(place.name, LONGEST_NAME - len(end)) + end
        with suppress(FileExistsError):
            return NamedFile(place.with_name(name), "xb", path)
    raise AssertionError("numbers have no end")


def _kept(partial: Path, path: Path) -> str:
    """The end of a message: where the finished lines are. Nothing is kept if there are none."""
    with suppress(OSError):
        _cut_unfinished_line(partial)
    if not partial.exists() or not partial.stat().st_size:
        with suppress(OSError):
            remove(partial)
        return ""
    unchanged = f", {path} is unchanged" if path.exists() else ""
    return f"; finished lines are in {partial}{unchanged}"


def _cut_unfinished_line(path: Path) -> None:
    """Cut a file after its last "\\n"."""
    with io.FileIO(path, "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - _BLOCK)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                file.truncate(start + found + 1)
                return
            end = start
        file.truncate(0)
