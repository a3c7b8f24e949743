"""What happens to a run's folder while it is trained: it is moved, deleted, replaced, or its disk
becomes read-only; and the clock jumps.
"""

import errno
import os
import shutil
import time
from pathlib import Path

import pytest

import regard
from regard.errors import Failed, UserError
from regard.training.trainer import Trainer


@pytest.fixture
def at_step(monkeypatch):
    """at_step(4, act): after that step of a training of ours, act, once."""
    really = Trainer.update

    def plan(step, act):
        def update(trainer, parts):
            really(trainer, parts)
            if trainer.progress.step == step:
                monkeypatch.setattr(Trainer, "update", really)
                act()

        monkeypatch.setattr(Trainer, "update", update)

    return plan


@pytest.fixture(scope="module")
def whole(tmp_path_factory, train, digests):
    """What a run has learned that nobody disturbed."""
    return digests(train(tmp_path_factory.mktemp("whole") / "run").path)


def contents(folder):
    """Every file of a folder, and what is in it."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder): path.read_bytes() for path in files}


def stopped(train, out):
    """Train, and give the one line it stops with."""
    with pytest.raises(Failed) as caught:
        train(out)
    message = str(caught.value)
    assert "\n" not in message
    assert "moved, deleted or replaced while the run was being trained" in message
    assert caught.value.said == ""
    return message


def test_deleted(tmp_path, train, at_step):
    """Training stops at the next save, and no half of a run appears in its place."""
    out = tmp_path / "run"
    at_step(4, lambda: shutil.rmtree(out))
    assert stopped(train, out).startswith(f"{out}: ")
    assert not out.exists()


def test_deleted_with_all_around_it(tmp_path, train, at_step):
    out = tmp_path / "runs" / "run"
    out.parent.mkdir()
    at_step(4, lambda: shutil.rmtree(out.parent))
    assert stopped(train, out).startswith(f"{out}: ")
    assert not out.parent.exists()


def test_moved(tmp_path, train, at_step, digests, whole):
    """Where it is now, it goes on as if nothing had happened."""
    out, place = tmp_path / "run", tmp_path / "elsewhere"
    at_step(4, lambda: out.rename(place))
    stopped(train, out)
    assert not out.exists()
    train(place)
    assert digests(place) == whole


def test_moved_and_another_run_in_its_place(tmp_path, train, at_step, digests, whole):
    """Nothing of the first gets into the second."""
    out, place = tmp_path / "run", tmp_path / "elsewhere"

    def replace():
        out.rename(place)
        train(out, steps=6, seed=7)
        before.update(contents(out))

    before = {}
    at_step(4, replace)
    stopped(train, out)
    assert before
    assert contents(out) == before
    train(place)
    assert digests(place) == whole


def test_its_lock_deleted(tmp_path, train, at_step, digests, whole):
    """Another process may have locked the run since, so this one writes nothing more."""
    out = tmp_path / "run"
    at_step(4, lambda: (out / "lock").unlink())
    assert stopped(train, out).startswith(f"{out / 'lock'}: ")
    assert regard.Run.open(out).checkpoints() == ["step-00000003"]
    train(out)
    assert digests(out) == whole


@pytest.fixture
def read_only(monkeypatch):
    """read_only(): from now on the disk takes nothing."""
    really = {name: getattr(os, name) for name in ("mkdir", "rename", "replace", "unlink")}
    really_open, really_path_open = os.open, Path.open

    def refuse(path):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    def os_open(path, flags, *args, **more):
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            refuse(path)
        return really_open(path, flags, *args, **more)

    def path_open(path, mode="r", *args, **more):
        if set(mode) & set("wax+"):
            refuse(path)
        return really_path_open(path, mode, *args, **more)

    def begin():
        for name in really:
            monkeypatch.setattr(os, name, lambda path, *args, **more: refuse(path))
        monkeypatch.setattr(os, "open", os_open)
        monkeypatch.setattr(Path, "open", path_open)

    def end():
        for name, call in really.items():
            monkeypatch.setattr(os, name, call)
        monkeypatch.setattr(os, "open", really_open)
        monkeypatch.setattr(Path, "open", really_path_open)

    begin.end = end
    return begin


def test_a_disk_that_becomes_read_only(tmp_path, train, at_step, digests, whole, read_only):
    """Training goes on, tells of every checkpoint it could not save, and ends in one line."""
    out = tmp_path / "run"
    at_step(4, read_only)
    try:
        with pytest.raises(UserError, match="Read-only file system") as caught:
            train(out)
    finally:
        read_only.end()
    assert "the last checkpoint could not be saved; the previous one is intact" in str(caught.value)
    assert "\n" not in str(caught.value)
    warnings = caught.value.said.splitlines()
    assert [line for line in warnings if not line.startswith(f"warning: {out}")] == []
    assert sum("no checkpoint at step" in line for line in warnings) == 2
    assert sum("the log will have gaps" in line for line in warnings) == 1
    assert regard.Run.open(out).checkpoints() == ["step-00000003"]
    train(out)
    assert digests(out) == whole


@pytest.mark.parametrize("jump", [-86_400, 366 * 86_400])
def test_the_clock_jumps(tmp_path, train, digests, whole, monkeypatch, jump):
    """Back by a day and on by a year: neither a time limit nor a lock looks at it."""
    real, calls = time.time, []

    def jumping():
        calls.append(jump)
        return real() + len(calls) * jump

    monkeypatch.setattr(time, "time", jumping)
    out = tmp_path / "run"
    assert train(out, minutes=10).checkpoints()[-1] == "step-00000012"
    assert digests(out) == whole
    regard.train("copy", out=out, resume=True, train={"steps": 15, "minutes": 10})
    assert regard.Run.open(out).checkpoints()[-1] == "step-00000015"
