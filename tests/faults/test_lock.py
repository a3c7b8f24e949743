"""The lock of a run: who holds it is named, and who is gone holds nothing."""

import errno
import fcntl
import os
import socket
from contextlib import suppress

import filelock
import pytest
from packaging.version import Version

import regard
import regard.recipes.training
from regard.errors import UserError
from regard.files.holder import holder
from regard.runs.claim import Claim

HOST = socket.gethostname()
GONE = 2**22 + 1
"""A process that cannot be: one more than Linux allows."""
OLD, LATE = 0, 4_000_000_000
"""The years 1970 and 2096, in seconds."""


def test_who_waits_is_told_for_whom(tmp_path, child):
    first = child(tmp_path / "run", hold=2)
    while first.hear() != "held":
        pass
    second = child(tmp_path / "run")
    assert second.end() == 2
    who = f"process {first.process.pid} on {HOST}"
    said = f"error: {tmp_path / 'run'}: another process is training this run ({who})"
    assert second.errors.read_text().splitlines()[-1] == said


def test_who_prepares_a_run_is_named(tmp_path):
    with (
        Claim.take(tmp_path / "run"),
        pytest.raises(UserError, match=rf"preparing this run \(process {os.getpid()} on {HOST}\)$"),
    ):
        Claim.take(tmp_path / "run")


@pytest.mark.parametrize(
    "note", ["", "12", f"{GONE}\n{HOST}\n", "1\n\x1b[31mred\n", "x\nhost\n", f"{'9' * 99}\nhost\n"]
)
def test_only_the_living_are_named(tmp_path, note):
    """Of a killed process the note stays, until the next holder has written its own."""
    (tmp_path / "lock").write_text(note)
    assert holder(tmp_path / "lock") == ""


def test_a_note_that_is_gone(tmp_path):
    assert holder(tmp_path / "lock") == ""


@pytest.mark.parametrize("when", [OLD, LATE])
@pytest.mark.parametrize("host", [HOST, "another-host"])
def test_the_lock_of_a_dead_process(tmp_path, train, host, when):
    """However old, or from however late: the system knows that nobody holds it."""
    train(tmp_path / "run", steps=3)
    lock = tmp_path / "run" / "lock"
    lock.write_text(f"{GONE}\n{host}\n")
    os.utime(lock, (when, when))
    regard.train("copy", out=tmp_path / "run", resume=True, train={"steps": 6})
    assert regard.Run.open(tmp_path / "run").checkpoints()[-1] == "step-00000006"
    assert lock.read_text() == ""


@pytest.fixture
def no_flock(monkeypatch):
    """A disk that knows no locks, such as Lustre without its option `flock`."""

    def refused(handle, how):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    if Version(filelock.__version__) < Version("4.1"):
        pytest.skip(
            "before version 4.1, filelock deletes the lock of another process on such a disk"
        )
    monkeypatch.setattr(fcntl, "flock", refused)


pytestmark = pytest.mark.filterwarnings("ignore:flock not supported")


def test_a_disk_without_locks(tmp_path, train, no_flock):
    """One trains, another one is refused, and nothing is left."""
    run = train(tmp_path / "run", steps=3)
    assert run.checkpoints() == ["step-00000003"]
    assert not (run.path / "lock").exists()
    with run.locked(), pytest.raises(UserError, match=f"process {os.getpid()} on {HOST}; if it"):
        train(run.path)
    assert train(run.path).checkpoints() == run.checkpoints()


@pytest.mark.parametrize("note", ["", "7\nanother-host\n"])
def test_a_stale_lock_on_a_disk_without_locks(tmp_path, train, no_flock, note):
    """Nobody can know whether its holder is alive, so the message says what to do if not."""
    run = train(tmp_path / "run", steps=3)
    lock = run.path / "lock"
    lock.write_text(note)
    with pytest.raises(UserError) as caught:
        train(run.path)
    who = "process 7 on another-host; " if note else ""
    said = f"another process is training this run ({who}if it has ended, delete {lock})"
    assert str(caught.value) == f"{run.path}: {said}"
    lock.unlink()
    assert train(run.path).checkpoints() == run.checkpoints()


def config_of(path):
    return (path / "config.toml").read_bytes()


def test_a_new_run_belongs_to_who_prepared_it(tmp_path, train, child, monkeypatch):
    """Between preparing and training, nobody else gets it, nor changes its settings."""
    out = tmp_path / "run"
    really = regard.recipes.training.fit
    seen = []

    def late(run, **more):
        before = config_of(out)
        second = child(out, words=["train.steps=30"])
        seen.append((second.end(), config_of(out) == before))
        return really(run, **more)

    monkeypatch.setattr(regard.recipes.training, "fit", late)
    train(out)
    assert seen == [(2, True)]


def test_who_is_refused_changed_nothing(tmp_path, train, child, monkeypatch):
    """--resume with other settings, and another process is faster with the lock."""
    out = tmp_path / "run"
    train(out, steps=6)
    before = config_of(out)
    really = regard.recipes.training.fit

    def late(run, **more):
        first = child(out, hold=2)
        while first.hear() not in ("held", None):
            pass
        return really(run, **more)

    monkeypatch.setattr(regard.recipes.training, "fit", late)
    refusal = ""
    try:
        regard.train("copy", out=out, resume=True, train={"steps": 30})
    except UserError as error:
        refusal = str(error)
    if refusal:
        assert "another process is training" in refusal
        assert config_of(out) == before
    else:
        assert regard.Run.open(out).config.train.steps == 30


def test_made_by_another_since_we_looked(tmp_path, train, monkeypatch):
    """With --resume a run that appears meanwhile is resumed: it does not say to pass --resume."""
    out = tmp_path / "run"
    really = regard.recipes.training._prepared

    def late(*args):
        monkeypatch.setattr(regard.recipes.training, "_prepared", really)
        train(out, steps=3)
        return really(*args)

    monkeypatch.setattr(regard.recipes.training, "_prepared", late)
    assert train(out).checkpoints() == ["step-00000003"]


def test_what_a_killed_process_left_beside_a_run(tmp_path, train, child):
    """It was preparing to replace it. Resumed, the run is alone again."""
    out = tmp_path / "run"
    train(out)
    gate = tmp_path / "gate"
    killed = replacing(child, out, gate)
    assert killed.hear() == "ready", killed.errors.read_text()
    killed.process.kill()
    killed.end()
    assert sorted(tmp_path.glob(".*")) == [tmp_path / ".run.lock", tmp_path / ".run.tmp"]
    train(out)
    assert not list(tmp_path.glob(".*"))


def test_what_a_living_process_prepares_is_left(tmp_path, train, child):
    out = tmp_path / "run"
    train(out)
    one = replacing(child, out, tmp_path / "gate")
    assert one.hear() == "ready", one.errors.read_text()
    with suppress(UserError):  # it may be told that another process has the run
        train(out)
    assert (tmp_path / ".run.tmp").is_dir()
    (tmp_path / "gate").touch()
    assert one.end() == 0, one.errors.read_text()


def replacing(child, out, gate):
    """A process that is about to replace a run, and waits."""
    return child(out, words=["--out", str(out), "--overwrite"], named=False, gate=gate)
