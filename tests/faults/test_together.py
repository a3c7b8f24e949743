"""Several trainings at once: each has a name of its own, and nobody's work is deleted."""

import signal
import socket

import pytest

import regard
from regard.errors import UserError
from regard.runs import claim as claims
from regard.runs.storage import read_directory


def complete(path):
    """A run that came to its end, and can be used."""
    run = regard.Run.open(path)
    assert run.checkpoints()[-1] == "step-00000012"
    assert read_directory(path / "checkpoints" / run.checkpoints()[-1])
    return run.model()


def hidden(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def start_and_wait(child, out, **more):
    """A process that has written its run aside, and waits before it puts it in its place."""
    first = child(out, gate=out.with_name("gate"), **more)
    assert first.hear() == "ready", first.errors.read_text()
    return first


def test_two_without_a_name_get_two(tmp_path, child, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = start_and_wait(child, tmp_path / "one", named=False)
    second = child(tmp_path / "two", named=False)
    assert second.end() == 0, second.errors.read_text()
    (tmp_path / "gate").touch()
    assert first.end() == 0, first.errors.read_text()
    assert complete(tmp_path / "runs" / "copy")
    assert complete(tmp_path / "runs" / "copy-2")
    assert hidden(tmp_path / "runs") == []


def test_many_at_the_same_moment(tmp_path, child, monkeypatch):
    monkeypatch.chdir(tmp_path)
    together = [child(tmp_path / f"{n}", named=False) for n in range(4)]
    for one in together:
        assert one.end() == 0, one.errors.read_text()
    names = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert names == ["copy", "copy-2", "copy-3", "copy-4"]
    for name in names:
        assert complete(tmp_path / "runs" / name)


def test_two_with_one_name(tmp_path, child):
    """The second is told, and the first goes on undisturbed."""
    first = start_and_wait(child, tmp_path / "run")
    second = child(tmp_path / "run")
    assert second.end() == 2
    told = second.errors.read_text().splitlines()
    who = f"process {first.process.pid} on {socket.gethostname()}"
    assert told[-1] == f"error: {tmp_path / 'run'}: another process is preparing this run ({who})"
    (tmp_path / "gate").touch()
    assert first.end() == 0, first.errors.read_text()
    assert complete(tmp_path / "run")
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("neighbour", ["run.2", "run.2.tmp", "run.tmp", "run-2", "run.old"])
def test_a_neighbour_is_left_alone(tmp_path, child, train, neighbour):
    first = start_and_wait(child, tmp_path / neighbour)
    train(tmp_path / "run")
    (tmp_path / "gate").touch()
    assert first.end() == 0, first.errors.read_text()
    assert complete(tmp_path / neighbour)
    assert complete(tmp_path / "run")


def test_what_a_killed_process_left_is_swept(tmp_path, child, train):
    first = start_and_wait(child, tmp_path / "run")
    first.process.kill()
    assert first.end() == -signal.SIGKILL
    assert hidden(tmp_path) == [".run.lock", ".run.tmp"]
    train(tmp_path / "run")
    assert complete(tmp_path / "run")
    assert hidden(tmp_path) == []


def test_a_claim_that_is_given_back_leaves_nothing(tmp_path):
    with claims.Claim.take(tmp_path / "runs" / "a") as claim:
        (claim.aside / "data").mkdir()
        with pytest.raises(UserError, match="another process is preparing this run"):
            claims.Claim.take(tmp_path / "runs" / "a")
        with claims.Claim.take(tmp_path / "runs" / "b"):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_exists_is_not_claimed(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(UserError, match="already exists: pass resume=True"):
        claims.Claim.take(tmp_path / "a")
    with claims.Claim.take_next(tmp_path / "a") as claim:
        assert claim.folder == tmp_path / "a-2"
    assert hidden(tmp_path) == []


def test_the_newest_of_a_name(tmp_path):
    assert claims.newest_numbered(tmp_path / "a") == tmp_path / "a"
    for name in ("a", "a-3", "a-x", "b-7", "a-b-9"):
        (tmp_path / name).mkdir()
    assert claims.newest_numbered(tmp_path / "a") == tmp_path / "a-3"
    assert claims.newest_numbered(tmp_path / "none" / "a") == tmp_path / "none" / "a"


def test_a_parent_that_may_not_be_written_is_told(tmp_path, monkeypatch):
    def refused(*args, **more):
        raise PermissionError(13, "Permission denied", str(tmp_path / ".a.lock"))

    monkeypatch.setattr("regard.runs.claim.lock_file", refused)
    with pytest.raises(UserError, match=r"\.a\.lock: Permission denied$"):
        claims.Claim.take(tmp_path / "a")
