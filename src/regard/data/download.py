"""A file of the network -> a file here; a download that was broken off goes on where it stopped."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import regard
from regard.errors import Failed
from regard.files import remove, write_text
from regard.files.log import open_own
from regard.files.reading import read_bytes

SECONDS = 30
"""How long a server may be silent."""
LARGEST = 1 << 32
"""Bytes of a file that is fetched."""
BLOCK = 1 << 16
LONGEST_TAG = 1000  # bytes by which a server tells versions of a file apart


def download(url: str, path: Path, tell: Callable[[float], None]) -> None:
    """Get a file of the network into the file `path`.

    If a part of it is there, from the same version, only the rest is asked for. tell: called with
    the share that is there. If the network fails, what has come stays.
    """
    tag_path = path.with_name(f"{path.name}.tag")
    done = _part_there(path, tag_path)
    response = _ask(url, done, tag_path)
    with response:
        if response.status != HTTPStatus.PARTIAL_CONTENT:  # the whole, from its beginning
            done = 0
            remove(path)
            _keep_tag(response, tag_path)

        length = response.headers.get("Content-Length", "")
        total = done + int(length) if length.isdigit() else None
        with open_own(path) as file:
            for block in _blocks(response, url):
                file.write(block)
                done += len(block)
                if done > LARGEST:
                    raise Failed(f"{url}: more than {LARGEST:,} bytes; not fetched")
                if total:
                    tell(done / total)
            file.sync()

    if total is not None and done < total:
        raise Failed(
            f"{url}: the connection ended after {done:,} of {total:,} bytes; repeat the command to "
            f"resume"
        )
    remove(tag_path)


def _part_there(path: Path, tag_path: Path) -> int:
    """Bytes of a file that are here already and can be gone on with; what cannot is deleted."""
    if path.exists() and tag_path.exists():
        return os.path.getsize(path)
    remove(path)
    return 0


def _keep_tag(response: Any, tag_path: Path) -> None:
    """Note which version of the file this is; without a strong tag nobody can tell."""
    tag = response.headers.get("ETag", "")
    if tag.startswith('"') and len(tag) < LONGEST_TAG:
        write_text(tag_path, tag)
    else:
        remove(tag_path)


def _ask(url: str, done: int, tag_path: Path) -> Any:
    """The server's answer: the rest of a file, or the whole if it has changed since."""
    headers = {"User-Agent": f"regard/{regard.__version__}"}
    if done:
        headers["Range"] = f"bytes={done}-"
        headers["If-Range"] = read_bytes(tag_path, LONGEST_TAG).decode("ascii", "replace")
    with _network_faults_told(url):
        try:
            return urlopen(Request(url, headers=headers), timeout=SECONDS)
        except HTTPError as error:
            nothing_left = error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
            if not done or not nothing_left:
                raise
            error.close()
    return _ask(url, 0, tag_path)  # all of it is here, or of another version: once more


def _blocks(response: Any, url: str) -> Iterator[bytes]:
    """What the server sends, as it comes."""
    while True:
        with _network_faults_told(url):
            block = response.read(BLOCK)
        if not block:
            return
        yield block


@contextmanager
def _network_faults_told(url: str) -> Iterator[None]:
    """Say in one line what the network refuses."""
    try:
        yield
    except HTTPError as error:
        error.close()
        raise Failed(f"{url}: the server answers {error.code} {error.reason}") from error
    except (URLError, HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        words = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        raise Failed(
            f"{url} cannot be reached ({words}); check the network, then repeat the command to "
            f"resume"
        ) from error
