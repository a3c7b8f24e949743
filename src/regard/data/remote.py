"""Corpora that are fetched from the network, when asked for by name."""

import hashlib
import json
import os
import shutil
import time
import tomllib
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from regard.data.download import LARGEST, download
from regard.errors import Failed, UserError, nearest
from regard.files import disk_faults_told, remove, write_text, writing
from regard.files.lock import lock
from regard.files.reading import open_regular, parse_json, read_bytes

RECORD = "fetched.json"
"""What was fetched into a folder: for each file its URL, its SHA-256 and the date."""
RECORD_BYTES = 1 << 16

Say = Callable[[str], None]


@dataclass(frozen=True)
class RemoteFile:
    """A file of the network."""

    name: str  # that it gets here
    url: str
    sha1: str = ""  # empty: not known
    member: str = ""  # of a zip file: what is unpacked


@dataclass(frozen=True)
class RemoteCorpus:
    """Files that belong together."""

    summary: str
    files: tuple[RemoteFile, ...]
    train: str  # what to write after `regard train FOLDER`


def remote_corpora() -> dict[str, RemoteCorpus]:
    """All corpora that can be fetched, by name."""
    table = files("regard.data").joinpath("remote.toml").read_text(encoding="utf-8")
    return {
        name: RemoteCorpus(
            about["summary"], tuple(RemoteFile(**file) for file in about["files"]), about["train"]
        )
        for name, about in tomllib.loads(table).items()
    }


def fetch(
    name: str,
    folder: Path | None = None,
    *,
    say: Say = lambda line: None,
    tell: Callable[[float], None] = lambda share: None,
) -> Path:
    """Fetch a corpus and return its folder: $REGARD_DATA/NAME, or data/NAME, if not given.

    say: told what was fetched and how it was checked. tell: the share of a file that is there.
    """
    known = remote_corpora()
    if name not in known:
        raise UserError(f"no corpus {name!r} to fetch{nearest(name, known)}")
    if folder is None:
        folder = Path(os.environ.get("REGARD_DATA") or "data") / name

    with disk_faults_told(folder), _held(folder):
        record = _read_record(folder)
        for file in known[name].files:
            if (folder / file.name).exists():
                _say_there(folder / file.name, record, say)
                continue
            record[file.name] = _fetch_file(file, folder, record.get(file.name), say, tell)
            write_text(folder / RECORD, json.dumps(record, indent=1))
    return folder


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Make the folder and hold it: one process fetches at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ".fetch.lock"
    held = lock(path)
    if held is None:
        raise UserError(f"{folder}: another process is fetching into this folder")
    try:
        yield
    finally:
        remove(path)
        held.release()
        with suppress(OSError):  # nothing was fetched: leave no empty folder
            folder.rmdir()


def _read_record(folder: Path) -> dict[str, dict[str, str]]:
    """What was fetched into a folder before. A folder with anything else is refused."""
    path = folder / RECORD
    if not path.exists():
        others = [entry.name for entry in folder.iterdir() if not entry.name.startswith(".")]
        if others:
            raise UserError(
                f"{folder} holds {others[0]}, which was not fetched; choose another folder with "
                f"--out"
            )
        return {}
    try:
        record = parse_json(read_bytes(path, RECORD_BYTES))
        return {
            name: {key: str(entry[key]) for key in ("url", "sha256", "date")}
            for name, entry in record.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path}: not a record of what was fetched; delete it") from None


def _say_there(path: Path, record: dict[str, dict[str, str]], say: Say) -> None:
    """Say that a file need not be fetched."""
    if path.name not in record:
        raise UserError(f"{path} was not fetched; move it away, or choose another folder (--out)")
    say(f"{path} is there already (fetched on {record[path.name]['date']})")


def _fetch_file(
    file: RemoteFile,
    folder: Path,
    before: dict[str, str] | None,
    say: Say,
    tell: Callable[[float], None],
) -> dict[str, str]:
    """Fetch one file, check it and put it in its place; returns its entry of the record."""
    part = folder / f".{file.name}.part"
    say(f"fetching {file.url}")
    download(file.url, part, tell)
    sha1 = _sum_of(part, hashlib.sha1(usedforsecurity=False))
    sha256 = _sum_of(part, hashlib.sha256())

    try:
        say(_checked(file, sha1, sha256, before, folder / RECORD))
        _put(part, folder / file.name, file)
    finally:
        remove(part)
    return before or {"url": file.url, "sha256": sha256, "date": time.strftime("%Y-%m-%d")}


def _sum_of(path: Path, digest: "hashlib._Hash") -> str:
    with open_regular(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _checked(
    file: RemoteFile, sha1: str, sha256: str, before: dict[str, str] | None, record: Path
) -> str:
    """How the file was checked, in one line; a wrong one is refused."""
    if file.sha1 and sha1 != file.sha1:
        raise Failed(
            f"{file.url}: not the file that was expected (sha1 {sha1}, not {file.sha1}); nothing "
            f"was kept"
        )
    if before is not None and before["sha256"] != sha256:
        raise Failed(
            f"{file.url}: not the file that was fetched on {before['date']} (sha256 {sha256}, not "
            f"{before['sha256']}); nothing was kept. To accept it, delete {record}"
        )
    if file.sha1:
        return f"{file.name}: sha1 {sha1}, as expected"
    if before is not None:
        return f"{file.name}: sha256 {sha256}, as on {before['date']}"
    return f"{file.name}: sha256 {sha256}, recorded to compare later fetches with: no sum is known"


def _put(part: Path, place: Path, file: RemoteFile) -> None:
    """Put what was fetched, or the member of a zip file, into its place."""
    with open_regular(part) as content, writing(place) as copy:
        if not file.member:
            shutil.copyfileobj(content, copy)
            return
        try:
            with ZipFile(content) as archive:
                size = archive.getinfo(file.member).file_size
                if size > LARGEST:
                    raise BadZipFile(f"a file of {size:,} bytes")
                with archive.open(file.member) as member:
                    shutil.copyfileobj(member, copy)
        except (BadZipFile, KeyError, EOFError, zlib.error) as error:
            raise Failed(f"{file.url}: {file.member} cannot be unpacked ({error})") from error
