"""What the user named: a file, a link, a pipe, a device, and the file that is being read."""

import errno
import os
import stat
import subprocess
import sys
import threading

import pytest

from regard import files
from regard.errors import Failed, Interrupted, UserError
from regard.files.disk import NamedFile


def fill(path, *lines):
    with files.output(path) as file:
        for line in lines:
            print(line, file=file)


def fill_and_raise(path, error):
    with files.output(path) as file:
        print("finished", file=file)
        print("half", end="", file=file)
        raise error


def test_the_file_that_is_read_may_be_written(tmp_path):
    path = tmp_path / "f.txt"
    path.write_text("".join(f"line {n}\n" for n in range(50_000)))
    os.link(path, tmp_path / "hard.txt")
    (tmp_path / "link.txt").symlink_to(path)
    for name in ("f.txt", "hard.txt", "link.txt", "../" + tmp_path.name + "/f.txt"):
        with path.open() as source, files.output(tmp_path / name) as file:
            for line in source:
                print(line.strip().upper(), file=file, flush=True)
        lines = (tmp_path / name).read_text().splitlines()
        assert lines == [f"LINE {n}" for n in range(50_000)]
    assert sorted(os.listdir(tmp_path)) == ["f.txt", "hard.txt", "link.txt"]
    assert (tmp_path / "link.txt").is_symlink()


def test_the_old_file_is_there_until_the_end(tmp_path):
    path = tmp_path / "out.txt"
    path.write_text("old\n")
    path.chmod(0o640)
    with files.output(path) as file:
        print("new", file=file, flush=True)
        assert path.read_text() == "old\n"
        assert (tmp_path / "out.txt.partial").read_text() == "new\n"
    assert path.read_text() == "new\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["out.txt"]


@pytest.mark.parametrize("exists", [False, True])
def test_a_full_disk(tmp_path, monkeypatch, exists):
    """What was finished is in a file that the error names, without the half line at its end."""
    path, write = tmp_path / "out.txt", NamedFile.write
    if exists:
        path.write_text("old\n")

    def written(file, content):
        room = 1000 - os.fstat(file.fileno()).st_size
        if room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file.known_as))
        return write(file, bytes(content)[:room])

    monkeypatch.setattr(NamedFile, "write", written)
    with pytest.raises(Failed) as caught:
        fill(path, *(f"answer {n}" for n in range(20_000)))
    words = f"{path}: No space left on device; finished lines are in {path}.partial"
    assert str(caught.value) == words + (f", {path} is unchanged" if exists else "")
    lines = (tmp_path / "out.txt.partial").read_text().splitlines()
    assert lines == [f"answer {n}" for n in range(len(lines))]
    assert len(lines) > 50
    assert path.exists() == exists
    assert not exists or path.read_text() == "old\n"


def test_every_failing_write(tmp_path, monkeypatch):
    """At the k-th write, for every k: the old file stays, and every line that is kept is whole."""
    path, write, state = tmp_path / "out.txt", NamedFile.write, {"left": 10**9, "count": 0}

    def written(file, content):
        state["left"] -= 1
        state["count"] += 1
        if state["left"] < 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(file.known_as))
        return write(file, content)

    monkeypatch.setattr(NamedFile, "write", written)
    answers = [f"answer {n}" for n in range(5000)]
    fill(path, *answers)
    count = state["count"]
    assert count > 3
    path.write_text("old\n")
    for k in range(count):
        state["left"] = k
        with pytest.raises(Failed, match="Input/output error"):
            fill(path, *answers)
        assert path.read_text() == "old\n"
        partial = tmp_path / "out.txt.partial"
        assert partial.exists() == (k > 0)
        if k:
            lines = partial.read_text().splitlines()
            assert lines == answers[: len(lines)]
            partial.unlink()


def test_ctrl_c(tmp_path):
    path = tmp_path / "out.txt"
    words = r"^stopped; finished lines are in .*out\.txt\.partial$"
    with pytest.raises(Interrupted, match=words):
        fill_and_raise(path, KeyboardInterrupt())
    assert (tmp_path / "out.txt.partial").read_text() == "finished\n"
    assert os.listdir(tmp_path) == ["out.txt.partial"]


def test_a_mistake_of_the_user(tmp_path):
    with pytest.raises(UserError, match=r"^wrong; finished lines are in .*\.partial$"):
        fill_and_raise(tmp_path / "out.txt", UserError("wrong"))


def test_nothing_stays_of_nothing(tmp_path):
    with pytest.raises(UserError, match=r"^wrong$"), files.output(tmp_path / "out.txt"):
        raise UserError("wrong")
    assert os.listdir(tmp_path) == []


def test_what_was_kept_before_is_not_lost(tmp_path):
    path = tmp_path / "out.txt"
    (tmp_path / "out.txt.partial").write_text("kept\n")
    with pytest.raises(Interrupted, match=r"\.partial-2$"):
        fill_and_raise(path, KeyboardInterrupt())
    fill(path, "new")
    assert path.read_text() == "new\n"
    assert (tmp_path / "out.txt.partial").read_text() == "kept\n"
    assert sorted(os.listdir(tmp_path)) == ["out.txt", "out.txt.partial", "out.txt.partial-2"]


def test_a_link_outside_a_run_is_followed(tmp_path):
    """People let latest.txt point to a larger disk; the content changes there, whole."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "target.txt").write_text("old\n")
    (tmp_path / "link.txt").symlink_to("disk/target.txt")
    fill(tmp_path / "link.txt", "new")
    files.write_output(tmp_path / "link.txt", b"newer\n")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "disk" / "target.txt").read_text() == "newer\n"
    assert os.listdir(tmp_path / "disk") == ["target.txt"]


@pytest.mark.parametrize("name", ["curves.png", "pictures/curves.png"])
def test_a_link_inside_a_run_is_replaced(tmp_path, name):
    decoy, path = tmp_path / "decoy", tmp_path / "run" / name
    decoy.write_text("decoy")
    path.parent.mkdir(parents=True)
    (tmp_path / "run" / "manifest.json").touch()
    for write in (lambda: fill(path, "new"), lambda: files.write_output(path, b"new\n")):
        path.unlink(missing_ok=True)
        path.symlink_to(decoy)
        write()
        assert not path.is_symlink()
        assert path.read_text() == "new\n"
    assert decoy.read_text() == "decoy"


def test_a_pipe_gets_lines_as_they_come(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    heard = []
    reader = threading.Thread(target=lambda: heard.append((tmp_path / "pipe").read_text()))
    reader.start()
    fill(tmp_path / "pipe", "one", "two")
    reader.join()
    assert heard == ["one\ntwo\n"]
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_device_that_is_full_is_named():
    with pytest.raises(OSError, match="No space left on device") as caught:
        fill("/dev/full", "one")
    assert caught.value.filename == "/dev/full"


def test_standard_output_by_its_name(tmp_path):
    """/dev/stdout may be a file to which something is appended: nothing there is lost."""
    out = tmp_path / "out.txt"
    out.write_text("before\n")
    code = (
        "from pathlib import Path\nfrom regard import files\n"
        "with files.output(Path('/dev/stdout')) as file: print('new', file=file)"
    )
    with out.open("a") as sink:
        subprocess.run([sys.executable, "-c", code], stdout=sink, check=True)
    assert out.read_text() == "before\nnew\n"
    assert os.listdir(tmp_path) == ["out.txt"]


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    long = tmp_path / ("x" * 300)
    cases = {
        tmp_path: "Is a directory",
        tmp_path / "no" / "out": "No such file",
        tmp_path / "file" / "out": "Not a directory",
        long: "File name too long",
    }
    for path, reason in cases.items():
        with pytest.raises(OSError, match=reason) as caught:
            fill(path, "text")
        assert caught.value.filename == str(path)
    assert os.listdir(tmp_path) == ["file"]


@pytest.fixture
def nobody(tmp_path):
    """As a user without rights, to whom this folder belongs."""
    if os.geteuid() != 0:
        yield
        return
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & stat.S_IXOTH:
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH)
    os.chown(tmp_path, 65534, 65534)
    os.setegid(65534)
    os.seteuid(65534)
    yield
    os.seteuid(0)
    os.setegid(0)


@pytest.mark.parametrize("protected", ["file", "folder"])
@pytest.mark.usefixtures("nobody")
def test_what_may_not_be_written_is_told(tmp_path, protected):
    path = tmp_path / "out.txt"
    path.write_text("old\n")
    (path if protected == "file" else tmp_path).chmod(0o555)
    for write in (lambda: fill(path, "new"), lambda: files.write_output(path, b"new")):
        with pytest.raises(PermissionError) as caught:
            write()
        assert caught.value.filename == str(path)
    tmp_path.chmod(0o755)
    assert path.read_text() == "old\n"
    assert os.listdir(tmp_path) == ["out.txt"]
