"""Systems that lack what Linux has: no fcntl, no resource, folders that cannot be opened, no
fsync.
"""

import errno
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path, PureWindowsPath

import pytest

from regard import files
from regard.config import build, parse_overrides, to_settings, to_toml
from regard.display import shell_word
from regard.files import disk
from regard.files import lock as locks
from regard.recipes import training
from regard.runs.card import write_card
from regard.runs.run import Run

TRAIN = """
import sys

sys.modules["fcntl"] = None  # as on Windows: importing it is an ImportError
sys.modules["resource"] = None

import regard

pairs = [(f"a {n}", f"b {n}") for n in range(12)]
model = {"width": 16, "ffn": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
train = {"steps": 30, "save_every": 10, "evaluate_every": 10, "threads": 1, "tensorboard": "off", "device": "cpu"}
settings = {"model": model, "train": train, "text": {"tokenizer": "words"}, "data": {"batch_sentences": 4}}
run = regard.train(pairs, out="run", **settings)
assert run.checkpoints()[-1] == "step-00000030"

from regard.errors import UserError
from regard.files.lock import lock
from regard.training import forecast

held = lock(run.path / "lock")
try:
    regard.train(pairs, out="run", resume=True, train={"steps": 40})
except UserError as error:
    assert "another process is training this run" in str(error), error
else:
    raise AssertionError("two held the lock")
held.release()
run = regard.train(pairs, out="run", resume=True, train={"steps": 40})
assert run.checkpoints()[-1] == "step-00000040"
assert regard.load(run)("a 3").text is not None
assert forecast._peak_of_process() == 0
"""


def test_trains_without_fcntl_and_resource(tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", TRAIN]
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "resuming from step 30 of 40" in done.stderr


def test_a_folder_that_cannot_be_opened_is_not_put_on_disk(tmp_path, monkeypatch):
    """Windows: os.open of a folder is refused, and fsync wants a file that may be written."""
    real, flags = os.open, []

    def windows_open(path, how, *more, **options):
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        flags.append(how)
        return real(path, how, *more, **options)

    monkeypatch.setattr(disk, "FOLDERS_CAN_BE_OPENED", False)
    monkeypatch.setattr(os, "open", windows_open)
    files.write_text(tmp_path / "file", "text")
    files.sync(tmp_path)
    files.sync(tmp_path / "file")
    assert flags[-1] & os.O_RDWR
    assert (tmp_path / "file").read_text() == "text"


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_without_fsync(tmp_path, monkeypatch, number):
    def refused(handle):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refused)
    files.sync(tmp_path)


def test_a_disk_that_fails_is_told(tmp_path, monkeypatch):
    def broken(handle):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="error"):
        files.sync(tmp_path)


def test_windows_paths_in_settings_and_commands(monkeypatch):
    path = r"C:\Users\Zoë\My data\new\pairs.en.tsv"
    settings = parse_overrides([f"data.path={path}", r"data.source=\\server\share"])
    written = to_toml(to_settings(build(settings)))
    assert tomllib.loads(written)["data"]["path"] == path
    assert tomllib.loads(written)["data"]["source"] == r"\\server\share"

    monkeypatch.setattr(training, "Path", PureWindowsPath)
    request = training._Request(path, None, {}, {}, True)
    assert str(request.first_folder) == r"runs\pairs"

    assert shell_word(PureWindowsPath(r"C:\runs\demo-2")) == r"C:\runs\demo-2"
    assert shell_word(PureWindowsPath(r"C:\My runs\demo")) == r'"C:\My runs\demo"'


def test_windows_can_write_every_file_of_a_run(run):
    """Reserved characters and names, and paths of 260 characters, are refused there."""
    for path in run.path.rglob("*"):
        assert not re.search(r'[<>:"|?*\\]|[. ]$', path.name), path
        assert not PureWindowsPath(path.name).is_reserved(), path
        assert len(str(path.relative_to(run.path))) < 100, path


def test_a_run_in_a_folder_with_spaces(run, here, command):
    folder = here / "Meine Läufe (neu)" / "demo"
    shutil.copytree(run.path, folder)
    write_card(Run.open(Path("Meine Läufe (neu)") / "demo"))
    card = (folder / "README.md").read_text(encoding="utf-8")
    commands = re.findall("^regard (.*)$", card, re.MULTILINE)
    assert len(commands) == 2
    for line in commands:
        done = command(*shlex.split(line), cwd=here)
        assert done.returncode == 0, done.stderr


def test_output_is_utf8_where_the_system_has_another_encoding():
    """Windows: what goes to a file or a pipe is cp1252 there, which has no arrow."""
    done = subprocess.run(
        [sys.executable, "-m", "regard", "data", "list"],
        env={**os.environ, "PYTHONIOENCODING": "cp1252"},
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    assert "→" in done.stdout


def test_a_lock_has_one_holder(tmp_path):
    first = locks.lock(tmp_path / "lock")
    assert first is not None
    assert locks.lock(tmp_path / "lock") is None
    first.release()
    second = locks.lock(tmp_path / "lock")
    assert second is not None
    second.release()


def test_a_lock_whose_file_was_deleted_guards_nothing(tmp_path, monkeypatch):
    """Between opening the file and locking it, its holder deletes it and somebody else makes a new
    one.
    """
    path, real, calls = tmp_path / "lock", locks._try_lock, []
    path.touch()

    def late(place):
        calls.append(place)
        if len(calls) > 1:
            return real(place)
        stale = real(place)
        place.unlink()
        place.touch()
        return stale

    monkeypatch.setattr(locks, "_try_lock", late)
    held = locks.lock(path)
    assert len(calls) == 2
    assert locks.lock(path) is None
    held.release()
