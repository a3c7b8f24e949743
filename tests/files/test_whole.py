"""Files and folders that are whole or absent, and never written through a link."""

import errno
import os
import stat
import threading

import pytest

from regard import files
from regard.files.disk import NamedFile
from regard.files.lock import lock


@pytest.fixture
def decoy(tmp_path):
    """A file elsewhere, which nobody may touch."""
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / "elsewhere" / "decoy"
    path.write_text("decoy")
    yield path
    assert path.read_text() == "decoy"
    assert os.listdir(path.parent) == ["decoy"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


def full(write):
    """A write that puts half on the disk, and then there is no room."""

    def written(file, content):
        write(file, bytes(content)[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file.known_as))

    return written


def test_a_link_is_replaced(folder, decoy):
    path = folder / "best"
    for target in (decoy, decoy.with_name("new")):
        path.unlink(missing_ok=True)
        path.symlink_to(target)
        files.write_text(path, "new")
        assert not path.is_symlink()
        assert path.read_text() == "new"
    assert os.listdir(folder) == ["best"]


def test_a_link_where_the_file_is_written_aside(folder, decoy):
    """Somebody who guesses the name aside gains nothing."""
    ours = os.getpid()
    for name in (f".best.{ours}.tmp", *(f".best.{ours}-{n}.tmp" for n in range(3000))):
        (folder / name).symlink_to(decoy)
    files.write_text(folder / "best", "new")
    assert (folder / "best").read_text() == "new"


def test_a_log_is_not_written_through_a_link(folder, decoy):
    path = folder / "log.jsonl"
    for target in (decoy, decoy.with_name("new")):
        path.unlink(missing_ok=True)
        path.symlink_to(target)
        with pytest.raises(OSError, match="this is a link") as caught:
            files.append(path, "line\n")
        assert caught.value.filename == str(path)


def test_a_log_is_not_written_into_a_pipe(folder):
    os.mkfifo(folder / "log.jsonl")
    with pytest.raises(OSError, match="not a regular file"):
        files.append(folder / "log.jsonl", "line\n")
    reader = os.open(folder / "log.jsonl", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(OSError, match="not a regular file"):
        files.append(folder / "log.jsonl", "line\n")
    assert os.read(reader, 10) == b""
    os.close(reader)


def test_a_log_grows(folder):
    files.append(folder / "log.jsonl", "one\n")
    files.append(folder / "log.jsonl", "zwölf\n")
    assert (folder / "log.jsonl").read_bytes() == "one\nzwölf\n".encode()


def test_a_lock_is_not_a_link(folder, decoy):
    for target in (decoy, decoy.with_name("new")):
        (folder / "lock").unlink(missing_ok=True)
        (folder / "lock").symlink_to(target)
        with pytest.raises(OSError, match="this is a link"):
            lock(folder / "lock")


def test_a_folder_replaces_a_link(folder, decoy):
    path = folder / "step"
    for target in (decoy.parent, decoy.with_name("new")):
        files.remove(path)
        path.symlink_to(target)
        with files.new_folder(path) as aside:
            files.write_text(aside / "file", "new")
        assert not path.is_symlink()
        assert (path / "file").read_text() == "new"


def test_removing_a_link_leaves_what_it_points_to(folder, decoy):
    (folder / "link").symlink_to(decoy.parent)
    files.remove(folder / "link")
    files.remove(folder / "nothing")
    assert os.listdir(folder) == []


def test_a_full_disk_leaves_the_old_file(folder, monkeypatch):
    path = folder / "best"
    files.write_text(path, "old")
    monkeypatch.setattr(NamedFile, "write", full(NamedFile.write))
    with pytest.raises(OSError, match="No space left on device") as caught:
        files.write_text(path, "a longer text")
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    assert os.listdir(folder) == ["best"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS])
def test_a_fault_without_a_name_gets_one(folder, monkeypatch, call, number):
    def refused(*args):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, refused)
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        files.write_text(folder / "best", "text")
    assert caught.value.filename == str(folder / "best")
    assert os.listdir(folder) == []


def test_the_permissions_stay(folder):
    path = folder / "private.txt"
    files.write_text(path, "old")
    path.chmod(0o600)
    files.write_text(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_name_as_long_as_a_name_may_be(folder):
    path = folder / ("ü" * 127 + "x")
    files.write_text(path, "text")
    assert path.read_text() == "text"
    with pytest.raises(OSError, match="too long") as caught:
        files.write_text(folder / ("x" * 256), "text")
    assert caught.value.filename == str(folder / ("x" * 256))
    assert os.listdir(folder) == [path.name]


def test_threads_do_not_disturb_each_other(folder):
    """All write one file: it is one of theirs, whole."""
    texts = [letter * 100_000 for letter in "abcd"]
    threads = [
        threading.Thread(
            target=lambda text=text: [files.write_text(folder / "file", text) for _ in range(10)]
        )
        for text in texts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (folder / "file").read_text() in texts
    assert os.listdir(folder) == ["file"]
