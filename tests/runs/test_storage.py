"""Directories that are whole or absent, and damage that is always noticed."""

import json
import os
import random

import pytest

from regard.files import write_text
from regard.runs import storage
from regard.runs.storage import Corrupt, read_directory, write_directory

FILES = {
    "model.bin": random.Random(1).randbytes(3000),
    "progress.json": b'{"step": 3}',
    "empty": b"",
}


@pytest.fixture
def folder(tmp_path):
    write_directory(tmp_path / "step", FILES)
    return tmp_path / "step"


def test_round_trip(folder):
    assert read_directory(folder) == FILES
    assert sorted(p.name for p in folder.iterdir()) == sorted([*FILES, storage.MANIFEST])
    assert [p.name for p in folder.parent.iterdir()] == ["step"]


def test_every_flipped_bit_is_noticed(folder):
    chance = random.Random(2)
    names = [p.name for p in folder.iterdir() if p.stat().st_size]
    for _ in range(200):
        path = folder / chance.choice(names)
        content = path.read_bytes()
        damaged = bytearray(content)
        damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(Corrupt):
            read_directory(folder)
        path.write_bytes(content)
    assert read_directory(folder) == FILES


def test_every_flipped_bit_of_the_facts_is_noticed(tmp_path):
    """The counts that a manifest carries are shown to people: they deserve a sum of their own."""
    write_directory(tmp_path / "run", FILES, {"pairs": 1234, "languages": {"source": "en"}})
    path, chance = tmp_path / "run" / storage.MANIFEST, random.Random(3)
    content = path.read_bytes()
    start, end = content.index(b"1234"), content.index(b'"files"')
    for _ in range(50):
        damaged = bytearray(content)
        damaged[chance.randrange(start, end)] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(Corrupt):
            read_directory(tmp_path / "run")


@pytest.mark.parametrize("name", ["model.bin", "progress.json", storage.MANIFEST])
def test_every_truncation_is_noticed(folder, name):
    content = (folder / name).read_bytes()
    for length in {0, 1, len(content) // 2, len(content) - 1}:
        (folder / name).write_bytes(content[:length])
        with pytest.raises(Corrupt, match="step"):
            read_directory(folder)


def test_more_bytes_are_noticed(folder):
    (folder / "model.bin").write_bytes(FILES["model.bin"] + b"\0")
    with pytest.raises(Corrupt, match=r"model\.bin"):
        read_directory(folder)


def test_swapped_files_are_noticed(folder):
    one, other = folder / "model.bin", folder / "progress.json"
    one.rename(folder / "aside")
    other.rename(one)
    (folder / "aside").rename(other)
    with pytest.raises(Corrupt, match="SHA-256"):
        read_directory(folder)


@pytest.mark.parametrize("name", [*FILES, storage.MANIFEST])
def test_missing_files_are_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(Corrupt, match=name):
        read_directory(folder)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "a/b", ".."])
def test_a_manifest_does_not_lead_elsewhere(folder, name):
    (folder.parent / "secret").write_bytes(b"secret")
    manifest = json.loads((folder / storage.MANIFEST).read_text())
    manifest["files"][name] = "0" * 64
    (folder / storage.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(Corrupt):
        read_directory(folder)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "3",
        "null",
        '"text"',
        "{}",
        '{"format": 1}',
        '{"format": 1, "files": []}',
        '{"format": 2, "files": {}}',
    ],
)
def test_other_json_is_no_manifest(folder, text):
    (folder / storage.MANIFEST).write_text(text)
    with pytest.raises(Corrupt):
        read_directory(folder)


def test_writing_again_replaces(folder):
    write_directory(folder, {"only": b"this"})
    assert read_directory(folder) == {"only": b"this"}
    assert sorted(p.name for p in folder.iterdir()) == ["manifest.json", "only"]


@pytest.mark.parametrize("fails", ["fsync", "rename"])
def test_a_failure_leaves_nothing(tmp_path, monkeypatch, fails):
    def full(*args, **kwargs):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, fails, full)
    with pytest.raises(OSError, match="no space"):
        write_directory(tmp_path / "step", FILES)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_old_text(tmp_path, monkeypatch):
    path = tmp_path / "best"
    write_text(path, "old\n")
    write_text(path, "new\n")
    assert path.read_text() == "new\n"

    def full(*args, **kwargs):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        write_text(path, "third\n")
    assert path.read_text() == "new\n"
