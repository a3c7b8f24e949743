"""The same settings give the same weights: stopped wherever, in whatever surroundings."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

import regard
from regard.errors import Interrupted
from regard.nn.devices import pick_device
from regard.recipes import preparing
from regard.training.parallel import World
from regard.training.start import make_trainer
from regard.training.trainer import Trainer

MATRIX = [(accumulate, precision) for accumulate in (1, 4) for precision in ("fp32", "bf16")]


@pytest.fixture(scope="module", params=MATRIX, ids=str)
def straight(request, tmp_path_factory, train):
    """A run that nobody stopped."""
    accumulate, precision = request.param
    if precision == "bf16" and not preparing.cpu_has_bf16():
        pytest.skip("this CPU does not run bfloat16")
    changes = {"steps": 12, "save_every": 5, "accumulate": accumulate, "precision": precision}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparing, "cpu_has_bf16", lambda: True)  # asked once is enough
        yield train(tmp_path_factory.mktemp("straight") / "run", **changes), changes


@pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(),
    reason="signals come to the main thread",
)
@pytest.mark.parametrize("stop", ["first", "mid-epoch", "epoch", "last but one", "last"])
def test_stopped_and_gone_on(straight, tmp_path, train, log, digests, monkeypatch, stop):
    run, changes = straight
    trainer = make_trainer(run, None, World(device=pick_device("cpu")))
    per_epoch = trainer.batches.per_epoch
    ends = [n for n in range(1, 12) if n * changes["accumulate"] % per_epoch == 0]
    inner = [n for n in range(2, 11) if n * changes["accumulate"] % per_epoch]
    at = {"first": 1, "mid-epoch": inner[0], "epoch": ends[0], "last but one": 11, "last": 12}[stop]
    update, stopped = Trainer.update, []

    def updated(made, parts):
        update(made, parts)
        if made.progress.step == at and not stopped:
            stopped.append(at)
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Trainer, "update", updated)
    if stop == "last":  # nothing is left to stop
        train(tmp_path / "run", **changes)
    else:
        with pytest.raises(Interrupted):
            train(tmp_path / "run", **changes)
    other = train(tmp_path / "run")
    assert stopped == [at]
    assert log(other.path) == log(run.path)
    assert digests(other.path) == digests(run.path)


@pytest.mark.parametrize("times", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_other_surroundings(tmp_path, times):
    """Hash seed, locale, folder, name of the run, time zone: none of it is data."""
    (tmp_path / "pairs.tsv").write_text(
        "".join(f"ÉTÉ Iı {i}\tété ıI {i * 7 % 11}\n" for i in range(60)), encoding="utf-8"
    )
    words = [
        "train.steps=6",
        "train.epochs=0",
        "train.save_every=6",
        "train.threads=1",
        "train.device=cpu",
        "model.width=16",
    ]
    words += [
        "model.heads=2",
        "model.ffn=16",
        "train.tensorboard=off",
        "model.encoder_layers=1",
        "model.decoder_layers=1",
    ]
    chance, found = random.Random(11), set()
    locales = [
        {"LC_ALL": "C.UTF-8"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"LC_ALL": "tr_TR.UTF-8"},
    ]
    for number in range(times):
        here = tmp_path / f"folder {number}"
        here.mkdir()
        env = {
            **os.environ,
            **locales[number % 3],
            "PYTHONHASHSEED": str(chance.randrange(2**32)),
            "OMP_NUM_THREADS": "1",
        }
        env["TZ"] = chance.choice(["UTC", "Asia/Tokyo", "America/Lima"])
        command = [
            sys.executable,
            "-m",
            "regard",
            "train",
            "../pairs.tsv",
            "--out",
            f"run{number}",
            *words,
        ]
        done = subprocess.run(
            command, cwd=here, env=env, capture_output=True, text=True, timeout=180, check=False
        )
        assert done.returncode == 0, done.stderr
        content = (
            here / f"run{number}" / "checkpoints" / "step-00000006" / "model.safetensors"
        ).read_bytes()
        found.add(hashlib.sha256(content).hexdigest())
    assert len(found) == 1


def test_a_clock_that_jumps(tmp_path, train, log, monkeypatch):
    """A day back, a year on: only the clock that cannot be set is asked."""
    expected, chance = train(tmp_path / "run"), random.Random(14)
    real = time.time
    monkeypatch.setattr(
        time, "time", lambda: real() + chance.choice([-86_400, 365 * 86_400, -3600, 3600])
    )
    run = train(tmp_path / "other", minutes=5)
    assert log(run.path) == log(expected.path)
    assert all(0 <= r["seconds"] < 60 for r in run.records() if r["kind"] == "train")


def test_without_shared_memory_and_with_few_open_files(tmp_path):
    """No /dev/shm to write to, 64 files at most, imports included."""
    hidden = "mount -t tmpfs -o ro none /dev/shm"
    if subprocess.run(
        ["unshare", "-m", "sh", "-c", hidden], capture_output=True, check=False
    ).returncode:
        pytest.skip("this process may not mount a file system")
    words = (
        f"train copy --out {tmp_path}/run train.steps=3 train.epochs=0 model.width=16 "
        f"train.device=cpu data.limit=60"
    )
    script = (
        f"{hidden} && ! touch /dev/shm/x && ulimit -n 64 && exec {sys.executable} -m regard {words}"
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert regard.Run.open(tmp_path / "run").checkpoints() == ["step-00000003"]
