"""The power fails: whatever was not fsynced is lost, cut or zeroed, and names not fsynced with
their folder are as before.
"""

import dataclasses
import os
import random
import stat
from hashlib import sha256

import pytest
import torch

from regard import Run
from regard.data.corpus import Corpus
from regard.runs import storage
from regard.training import checkpoint
from regard.training.parallel import World
from regard.training.start import make_trainer

STATES = 200
CALLS = ("mkdir", "fsync", "rename", "replace", "unlink", "rmdir")


class Disk:
    """What a folder holds and what of it would outlive a crash, at each system call.

    names[folder] is the history of its entries since they were last fsynced; bytes[file] that of
    its content.
    """

    def __init__(self, root):
        self.root, self.numbers, self.count = root, {}, 0
        self.names, self.bytes, self.crashes, self.done = {}, {}, [], 0
        self.look()
        self.names, self.bytes = (
            {k: v[-1:] for k, v in kind.items()} for kind in (self.names, self.bytes)
        )

    def look(self):
        """Note every change since the last look."""
        seen = {}
        self._look(self.root, seen)
        self.numbers = seen

    def _look(self, path, seen):
        about = path.lstat()
        if about.st_ino not in self.numbers:  # an inode may be used again; its number here is never
            self.count += 1
        number = seen[about.st_ino] = self.numbers.get(about.st_ino, self.count)
        if stat.S_ISDIR(about.st_mode):
            entries = {p.name: self._look(p, seen) for p in sorted(path.iterdir())}
            self._note(self.names.setdefault(number, [{}]), entries)
        else:
            self._note(self.bytes.setdefault(number, [b""]), path.read_bytes())
        return number

    @staticmethod
    def _note(history, now):
        if history[-1] != now:
            history.append(now)

    def fsynced(self, handle):
        number = self.numbers.get(os.fstat(handle).st_ino)
        for kind in (self.names, self.bytes):
            if number in kind:
                kind[number] = kind[number][-1:]

    def crash(self):
        """What may be on disk if the power fails now; with the last step whose save had come to its
        end.
        """
        copies = ({k: list(v) for k, v in kind.items()} for kind in (self.names, self.bytes))
        self.crashes.append((self.numbers[self.root.stat().st_ino], *copies, self.done))


def build(path, number, names, contents, chance):
    """One of the states that such a crash may leave."""
    if number in names:
        path.mkdir()
        for name, child in chance.choice(names[number]).items():
            build(path / name, child, names, contents, chance)
        return
    history = contents[number]
    content = history[-1]
    if len(history) > 1 and content:  # not fsynced
        cut = chance.randrange(len(content))
        content = chance.choice(
            [history[0], content[:cut], content[:cut] + bytes(len(content) - cut), content]
        )
    path.write_bytes(content)


def watch(disk, patch):
    """Crash before and after every system call that matters."""

    def call(name, real):
        def called(*args, **more):
            disk.look()
            disk.crash()
            done = real(*args, **more)
            if name == "fsync":
                disk.fsynced(args[0])
            disk.look()
            disk.crash()
            return done

        patch.setattr(os, name, called)

    for name in CALLS:
        call(name, getattr(os, name))


@pytest.fixture(scope="module")
def disk(tmp_path_factory, train):
    """A short training, watched."""
    root = tmp_path_factory.mktemp("power")
    watched, patch = Disk(root), pytest.MonkeyPatch()

    def saved(run, trainer, real=checkpoint.save_checkpoint):
        name = real(run, trainer)
        watched.done = trainer.progress.step
        return name

    watch(watched, patch)
    patch.setattr("regard.recipes.fitting.save_checkpoint", saved)
    train(root / "run", steps=15, evaluate_every=4, log_every=2, keep=2, average=2)
    patch.undo()
    return watched


def intact(corpus):
    """Is this the data that was encoded?"""
    found = sha256(corpus.dtype.encode())
    for name in ("ids.bin", "lengths.bin"):  # one chunk: the order in which they were written
        found.update((corpus.path / name).read_bytes())
    return found.hexdigest() == corpus.digest


def test_every_crash_leaves_a_run_that_goes_on(disk, tmp_path):
    """A checkpoint whose save had ended is never lost, and what was being written is whole or not
    there.
    """
    chance, found, trainer = random.Random(3), set(), None
    for number in range(STATES):
        place, names, contents, done = disk.crashes[number * len(disk.crashes) // STATES]
        build(tmp_path / str(number), place, names, contents, chance)
        path = tmp_path / str(number) / "run"
        if not path.exists():
            assert not done
            continue
        run, said = Run.open(path), []
        run.sweep()
        assert intact(Corpus.open(path / "data" / "train"))
        trainer = trainer or make_trainer(run, None, World(device=torch.device("cpu")))
        trainer.progress.step = 0
        checkpoint.load_checkpoint(run, trainer, said.append)
        assert done <= trainer.progress.step <= done + 3
        if done and run.best != "averaged":
            run.model()  # or it raises
        found.add(trainer.progress.step)
    assert found >= {0, 3, 6, 9, 12, 15}


@pytest.mark.parametrize("forgotten", ["file", "folder"])
def test_the_shim_notices_a_forgotten_fsync(tmp_path, monkeypatch, forgotten):
    """Storage without its fsyncs does lose what it wrote."""
    real, kind = os.fsync, stat.S_ISDIR if forgotten == "folder" else stat.S_ISREG
    (tmp_path / "disk").mkdir()
    disk = Disk(tmp_path / "disk")

    def fsync(handle):
        if not kind(os.fstat(handle).st_mode):
            real(handle)
            disk.look()
            disk.fsynced(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    storage.write_directory(disk.root / "step", {"a": bytes(range(200)), "b": b"b" * 300})
    disk.look()
    disk.crash()
    place, names, contents, _ = disk.crashes[-1]
    lost = 0
    for number in range(40):
        build(tmp_path / str(number), place, names, contents, random.Random(number))
        try:
            storage.read_directory(tmp_path / str(number) / "step")
        except storage.Corrupt:
            lost += 1
    assert lost > 5


def test_every_crash_while_settings_change_leaves_a_run(tmp_path, train, monkeypatch):
    (tmp_path / "disk").mkdir()
    run = train(tmp_path / "disk" / "run", steps=1)
    disk, chance = Disk(tmp_path / "disk"), random.Random(5)
    watch(disk, monkeypatch)
    run.change(
        dataclasses.replace(run.config, train=dataclasses.replace(run.config.train, steps=7))
    )
    monkeypatch.undo()
    steps = set()
    for number, (place, names, contents, _) in enumerate(disk.crashes * 3):
        build(tmp_path / str(number), place, names, contents, chance)
        steps.add(Run.open(tmp_path / str(number) / "run").config.train.steps)
    assert steps == {1, 7}
