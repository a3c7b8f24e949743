"""Directories that are whole or absent.

They are written aside, every file fsynced, a manifest of SHA-256 sums last, and then renamed.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from regard.errors import Failed, UserError

FORMAT = 1
MANIFEST = "manifest.json"
FOLDERS_CAN_BE_OPENED = os.name != "nt"  # Windows cannot, and so cannot put them on disk by hand
NO_SYNC_HERE = (errno.EINVAL, errno.ENOTSUP)  # what file systems answer that do not know fsync
OUT_OF_REACH = (
    errno.EACCES,
    errno.EPERM,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.ESTALE,
    errno.ETIMEDOUT,
)
"""Why a file cannot be read that may be whole: training must not go on without it, and drop it."""


class Corrupt(Failed):
    """A file is not what its manifest says it is."""


def write_directory(
    path: Path, files: Mapping[str, bytes], facts: Mapping[str, Any] | None = None
) -> None:
    """Make directory `path` with these files and their manifest.

    Nobody ever sees it half written.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        write_files(aside, files, facts)
        if path.exists():  # left by a run that was killed after this very step: replace it
            shutil.rmtree(path)
        os.rename(aside, path)
        sync(path.parent)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def write_files(
    folder: Path, files: Mapping[str, bytes], facts: Mapping[str, Any] | None = None
) -> None:
    """Write files and, last, their manifest into an existing folder."""
    for name, content in files.items():
        _write(folder / name, content)
    sums = {name: [_sum(content)] for name, content in files.items()}
    _write(folder / MANIFEST, _signed({"format": FORMAT, **(facts or {}), "files": sums}))
    sync(folder)


def write_manifest(
    folder: Path, manifest: dict[str, Any], name: str, content: bytes, *, also_old: bool
) -> None:
    """Let the file `name` become `content`; also_old: what it was so far is still right."""
    old_sums = manifest["files"][name] if also_old else []
    manifest["files"][name] = [_sum(content), *old_sums]
    write_text(folder / MANIFEST, _signed(manifest).decode())


def _sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _signed(manifest: Mapping[str, Any]) -> bytes:
    """The manifest as JSON, with the sum of its own content."""
    content = {key: value for key, value in manifest.items() if key != "sum"}
    content_sum = _sum(json.dumps(content, sort_keys=True).encode())
    return json.dumps({**content, "sum": content_sum}, indent=1, ensure_ascii=False).encode()


def read_directory(path: Path) -> dict[str, bytes]:
    """The files of a directory, each checked against its manifest."""
    manifest = read_manifest(path)
    files = {}
    for name, sums in manifest["files"].items():
        try:
            content = (path / name).read_bytes()
        except FileNotFoundError:
            raise Corrupt(f"{path / name}: missing, but listed in {MANIFEST}") from None
        except OSError as error:
            raise _unreadable(path / name, error) from error
        if _sum(content) not in sums:
            raise Corrupt(
                f"{path / name}: its SHA-256 does not match {MANIFEST}; the file was changed or "
                f"damaged"
            )
        files[name] = content
    return files


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest itself; its format must be one this version knows."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        version = manifest["format"]
        files = manifest["files"]
        is_whole = json.loads(_signed(manifest)) == manifest
    except FileNotFoundError:
        raise Corrupt(f"{path}: no {MANIFEST}") from None
    except OSError as error:
        raise _unreadable(path / MANIFEST, error) from error
    except (ValueError, KeyError, TypeError):
        raise Corrupt(f"{path / MANIFEST}: damaged") from None
    if version != FORMAT:
        raise Corrupt(
            f"{path / MANIFEST}: unknown format {version} (this version of Regard reads format "
            f"{FORMAT})"
        )
    if not is_whole or any("/" in name or name in ("", ".", "..") for name in files):
        raise Corrupt(f"{path / MANIFEST}: damaged")
    return manifest


def _unreadable(path: Path, error: OSError) -> Failed:
    """A file that cannot be read: damaged, or whole and only out of reach for now."""
    if error.errno in OUT_OF_REACH:
        return Failed(f"{path}: {error.strerror}")
    return Corrupt(f"{path}: {error.strerror}")


def write_text(path: Path, text: str) -> None:
    """Replace one file, whole or not at all."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        _write(aside, text.encode())
        os.replace(aside, path)
        sync(path.parent)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def _write(path: Path, content: bytes) -> None:
    """Write a file and put it on disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Put a file or a folder on disk: a rename lasts only once its folder is there.

    Skipped where the system does not offer it; nothing more can be done there.
    """
    flags = os.O_RDONLY
    if not FOLDERS_CAN_BE_OPENED:
        if path.is_dir():
            return
        flags = os.O_RDWR  # Windows puts only what it may write on disk

    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in NO_SYNC_HERE:
            raise
    finally:
        os.close(handle)


def lock(path: Path) -> BaseFileLock | None:
    """Lock the file `path`, which may be new; None if another holder has it. Call release() on it.

    The system frees the lock when the process ends, however it ends. The file itself means nothing.
    Only whoever holds the lock may delete the file.
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


def _opened(path: Path) -> AbstractContextManager[BinaryIO | None]:
    """The file, open; None if there is none. Not made: it may itself be the lock (SoftFileLock)."""
    try:
        return path.open("r+b")
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


@contextmanager
def disk_faults_told(path: Path) -> Iterator[None]:
    """Say in one line what the disk refuses. For our own files only, never around a user's code."""
    try:
        yield
    except BrokenPipeError:  # not the disk: nobody reads what we say
        raise
    except OSError as error:
        raise UserError(f"{error.filename or path}: {error.strerror or error}") from error
