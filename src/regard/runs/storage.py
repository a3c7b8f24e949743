"""Directories that are whole or absent.

They are written aside, every file fsynced, a manifest of SHA-256 sums last, and then renamed.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from regard.errors import Failed, UserError
from regard.files.reading import check_regular, open_regular, parse_json, read_bytes

FORMAT = 1
MANIFEST = "manifest.json"
SIZES = {"config.toml": 1 << 20, "progress.json": 16 << 20}
"""How many bytes a file may have at most. Weights are compared with the config before."""
SMALL = 64 << 20  # bytes of other files
WEIGHTS = 1 << 40
FOLDERS_CAN_BE_OPENED = os.name != "nt"  # Windows cannot, and so cannot put them on disk by hand
NO_SYNC_HERE = (errno.EINVAL, errno.ENOTSUP)  # what file systems answer that do not know fsync


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


def sum_of(path: Path) -> str:
    """The SHA-256 of a file, read piece by piece."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _signed(manifest: Mapping[str, Any]) -> bytes:
    """The manifest as JSON, with the sum of its own content."""
    content = {key: value for key, value in manifest.items() if key != "sum"}
    content_sum = _sum(json.dumps(content, sort_keys=True).encode())
    return json.dumps({**content, "sum": content_sum}, indent=1, ensure_ascii=False).encode()


def read_directory(path: Path, names: Collection[str] | None = None) -> dict[str, bytes]:
    """The files of a directory, each checked against its manifest.

    names: those to read, of those that the manifest has; None: all of them.
    """
    manifest = read_manifest(path)
    files = {}
    for name, sums in manifest["files"].items():
        if names is not None and name not in names:
            continue
        try:
            content = read_bytes(path / name, _most_bytes(name))
        except FileNotFoundError:
            raise Corrupt(f"{path / name}: missing, but listed in {MANIFEST}") from None
        except OSError as error:
            raise Corrupt(f"{path / name}: {error.strerror}") from error
        if _sum(content) not in sums:
            raise Corrupt(
                f"{path / name}: its SHA-256 does not match {MANIFEST}; the file was changed or "
                f"damaged"
            )
        files[name] = content
    return files


def _most_bytes(name: str) -> int:
    """How large a file of this name may be."""
    return WEIGHTS if name.endswith(".safetensors") else SIZES.get(name, SMALL)


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest itself; its format must be one this version knows."""
    try:
        manifest = parse_json(read_bytes(path / MANIFEST, SMALL))
        version = manifest["format"]
        files = manifest["files"]
        is_whole = json.loads(_signed(manifest)) == manifest
    except FileNotFoundError:
        raise Corrupt(f"{path}: no {MANIFEST}") from None
    except OSError as error:
        raise Corrupt(f"{path / MANIFEST}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Corrupt(f"{path / MANIFEST}: damaged") from None
    if version != FORMAT:
        raise Corrupt(
            f"{path / MANIFEST}: unknown format {version} (this version of Regard reads format "
            f"{FORMAT})"
        )
    if not is_whole or not _are_sums(files):
        raise Corrupt(f"{path / MANIFEST}: damaged")
    return manifest


def _are_sums(files: Any) -> bool:
    """Whether these are names of files inside the folder, each with a list of sums."""
    if not isinstance(files, dict) or not all(isinstance(sums, list) for sums in files.values()):
        return False
    return not any(
        name in ("", ".", "..") or any(mark in name for mark in "/\\\0") for name in files
    )


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
    with suppress(FileNotFoundError):
        check_regular(path, path.stat())  # to open a pipe would be to wait for its other end
    has_flock = not issubclass(FileLock, SoftFileLock)
    if not has_flock:  # here the file does mean something
        return _try_lock(path)

    while True:
        with path.open("ab") as pin:
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


@contextmanager
def disk_faults_told(path: Path) -> Iterator[None]:
    """Say in one line what the disk refuses. For our own files only, never around a user's code."""
    try:
        yield
    except BrokenPipeError:  # not the disk: nobody reads what we say
        raise
    except OSError as error:
        raise UserError(f"{error.filename or path}: {error.strerror or error}") from error
