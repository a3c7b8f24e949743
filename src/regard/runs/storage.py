"""Directories that are whole or absent.

They are written aside, every file fsynced, a manifest of SHA-256 sums last, and then renamed.
"""

import errno
import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from regard.errors import Failed
from regard.files import MANIFEST as MANIFEST
from regard.files import create, new_folder, sync, write_bytes
from regard.files.reading import open_regular, parse_json, read_bytes

FORMAT = 1
SIZES = {"config.toml": 1 << 20, "progress.json": 16 << 20}
"""How many bytes a file may have at most. Weights are compared with the config before."""
SMALL = 64 << 20  # bytes of other files
WEIGHTS = 1 << 40
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
    with new_folder(path) as aside:
        write_files(aside, files, facts)


def write_files(
    folder: Path, files: Mapping[str, bytes], facts: Mapping[str, Any] | None = None
) -> None:
    """Write files and, last, their manifest into a folder that has none of them."""
    sums = {name: [_sum(content)] for name, content in files.items()}
    manifest = _signed({"format": FORMAT, **(facts or {}), "files": sums})
    for name, content in [*files.items(), (MANIFEST, manifest)]:
        with create(folder / name) as file:
            file.write(content)
    sync(folder)


def write_manifest(
    folder: Path, manifest: dict[str, Any], name: str, content: bytes, *, also_old: bool
) -> None:
    """Let the file `name` become `content`; also_old: what it was so far is still right."""
    old_sums = manifest["files"][name] if also_old else []
    manifest["files"][name] = [_sum(content), *old_sums]
    write_bytes(folder / MANIFEST, _signed(manifest))


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
            raise unreadable(path / name, error) from error
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
        raise unreadable(path / MANIFEST, error) from error
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


def unreadable(path: Path, error: OSError) -> Failed:
    """A file that cannot be read: damaged, or whole and only out of reach for now."""
    if error.errno in OUT_OF_REACH:
        return Failed(f"{path}: {error.strerror}")
    return Corrupt(f"{path}: {error.strerror}")
