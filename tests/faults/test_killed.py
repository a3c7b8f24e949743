"""Processes that end badly: kill -9 anywhere, SIGTERM, two at once. Nothing is lost but the steps
since the last checkpoint.
"""

import random
import resource
import signal
import time

import pytest

import regard
from regard.errors import UserError
from regard.runs.storage import read_directory

EVERY = 3
MOMENTS = 36
"""More operations than one save has: some are met in the save after it."""


def newest(out):
    """The step of the newest checkpoint, which must be whole; -1: there is no run yet."""
    if not out.exists():
        return -1
    names = regard.Run.open(out).checkpoints()
    return (
        int(names[-1].removeprefix("step-"))
        if names and read_directory(out / "checkpoints" / names[-1])
        else 0
    )


@pytest.mark.parametrize("kills", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_kill_9(tmp_path, child, train, digests, log, kills):
    """Half of them at random moments, half inside a save."""
    chance, out, held, steps = random.Random(kills), tmp_path / "killed", 0, 8 * kills
    changes = {"steps": steps, "save_every": EVERY, "evaluate_every": 20, "log_every": 2}
    for number in range(kills):
        inside = number % 2
        one = child(out, hold=chance.randint(1, MOMENTS) if inside else 0, **changes)
        while (word := one.hear()) != "held" and word is not None and inside:
            pass
        time.sleep(0 if inside else chance.uniform(0, 0.06))
        one.process.kill()
        assert one.end() == -signal.SIGKILL, one.errors.read_text()
        held += word == "held"
        assert one.step - newest(out) <= EVERY
    assert held == kills // 2
    assert 0 < newest(out) < steps
    run, whole = train(out), train(tmp_path / "whole", **changes)
    assert digests(run.path) == digests(whole.path)
    assert log(run.path) == log(whole.path)
    assert not list(out.glob("**/*.tmp"))


@pytest.mark.parametrize(
    "moments",
    [
        pytest.param((2, 15, 18, 21, 24), id="some"),
        pytest.param(range(1, 40), id="all", marks=pytest.mark.slow),
    ],
)
def test_killed_while_the_decay_is_decided(tmp_path, child, train, digests, log, moments):
    """The first save is that of the decision; the change of the settings comes after it."""
    changes = {"schedule": "wsd", "steps": 10, "save_every": 1000, "evaluate_every": 1000}
    whole = train(tmp_path / "whole", **changes)
    assert (whole.config.train.decay_start, whole.config.train.decay_end) == (8, 10)
    decided = set()
    for moment in moments:
        out = tmp_path / f"killed-{moment}"
        one = child(out, hold=moment, **changes)
        while (word := one.hear()) != "held" and word is not None:
            pass
        one.process.kill()
        assert one.end() == -signal.SIGKILL, one.errors.read_text()
        decided.add(regard.Run.open(out).config.train.decay_end)

        run = train(out)
        assert run.config.train == whole.config.train
        assert digests(run.path) == digests(whole.path)
        assert log(run.path) == log(whole.path)
        assert not list(out.glob("**/*.tmp"))
    assert decided == {0, 10}  # some were killed before it, some after it


@pytest.mark.parametrize("times", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_sigterm(tmp_path, child, train, digests, log, times):
    chance, out, longest = random.Random(times), tmp_path / "stopped", 0.0
    changes = {"steps": 20 * times, "save_every": 1000}
    for _ in range(times):
        one = child(out, **changes)
        for _ in range(chance.randint(1, 6)):
            one.hear()
        time.sleep(chance.uniform(0, 0.02))
        began = time.monotonic()
        one.process.terminate()
        assert one.end() == 128 + signal.SIGTERM, one.errors.read_text()
        longest = max(longest, time.monotonic() - began)
        assert newest(out) == one.step > 0
    assert longest < 60
    run, whole = train(out), train(tmp_path / "whole", **changes)
    assert log(run.path) == log(whole.path)
    last = f"checkpoints/step-{20 * times:08d}/model.safetensors"
    assert digests(run.path)[last] == digests(whole.path)[last]


def test_made_longer_and_killed(tmp_path, train, child):
    """Before the longer run has saved anything, its checkpoint still is one of a run that came to
    its end.
    """
    train(tmp_path / "run")
    one = child(tmp_path / "run", words=["train.steps=40", "train.log_every=1"])
    one.hear()
    one.process.kill()
    one.end()
    assert newest(tmp_path / "run") == 12
    assert train(tmp_path / "run").checkpoints()[-1] == "step-00000040"


def test_two_processes_on_one_run(tmp_path, child, train):
    first = child(tmp_path / "run", hold=2)
    while first.hear() != "held":
        pass
    second = child(tmp_path / "run")
    assert second.end() == 2
    assert "another process is training this run" in second.errors.read_text()
    with pytest.raises(UserError, match="another process"):
        train(tmp_path / "run")
    first.process.kill()
    first.end()
    assert train(tmp_path / "run").checkpoints()[-1] == "step-00000012"


def test_few_open_files(tmp_path, child):
    one = child(tmp_path / "run", limits={resource.RLIMIT_NOFILE: 64})
    assert one.end() == 0, one.errors.read_text()
    assert newest(tmp_path / "run") == 12
