"""Reading what may be anything."""

import os
import sys

import pytest

from regard.files.reading import open_regular, parse_json, read_bytes


def test_a_file(tmp_path):
    (tmp_path / "a").write_bytes(b"hello")
    (tmp_path / "link").symlink_to("a")
    assert read_bytes(tmp_path / "a", 5) == b"hello"
    assert read_bytes(tmp_path / "link", 5) == b"hello"


def test_a_file_too_large(tmp_path):
    (tmp_path / "a").write_bytes(b"hello")
    with pytest.raises(OSError, match="is too large") as error:
        read_bytes(tmp_path / "a", 4)
    assert error.value.filename == str(tmp_path / "a")


@pytest.mark.skipif(sys.platform == "win32", reason="Unix has these files")
def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to("loop")
    for name, reason in (
        ("pipe", "is a pipe, not a file"),
        ("zero", "is a device, not a file"),
        ("loop", "symbolic links"),
        (".", "Is a directory"),
        ("nothing", "No such file"),
    ):
        with pytest.raises(OSError, match=reason):
            open_regular(tmp_path / name)


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b"\xff", b"9" * 5000, b"{", "[]".encode("utf-16")]
)
def test_what_is_no_json(content):
    with pytest.raises(ValueError):
        parse_json(content)


def test_too_many_values():
    with pytest.raises(ValueError, match="more than 10 values"):
        parse_json(b"[" + b"1," * 20 + b"1]", 10)
    assert parse_json(b"[1,2]", 10) == [1, 2]
