"""A process that trains and is watched: run by its path in a child of a warm server, which has
imported everything.

Given as globals: words (of the command line), tell (a pipe: the number of each finished step,
"held"), errors (a file for standard error), hold (stop for ever at the so-manieth operation inside
saves; 0: never), limits (of resource.setrlimit), gate (a path: with the new run written, but not
yet in its place, say "ready" and wait until it is there; "": do not), events (tell also what is
claimed, created, locked and saved, and when, as tuples).
"""
# ruff: noqa: F821

import os
import resource
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import regard.cli
import regard.recipes.fitting
from regard.files.disk import NamedFile
from regard.runs.claim import Claim
from regard.runs.run import Run
from regard.runs.storage import read_directory
from regard.training.trainer import Trainer

state = {"inside": False, "count": 0}


def reached() -> bool:
    state["count"] += state["inside"]
    return state["inside"] and state["count"] == hold


def wait() -> None:
    tell.send("held")
    time.sleep(600)


def slow(name: str) -> None:
    """os.name() that stops before or after it is done."""
    real = getattr(os, name)

    def call(*args, **more):
        here = reached()
        if here and hold % 2:
            wait()
        done = real(*args, **more)
        if here:
            wait()
        return done

    setattr(os, name, call)


def write(file, content, real=NamedFile.write) -> int:
    if reached():
        real(file, bytes(content)[: len(content) // 2])
        wait()
    return real(file, content)


def save(run, trainer, real=regard.recipes.fitting.save_checkpoint):
    state["inside"] = True
    name = real(run, trainer)
    state["inside"] = False
    event("saved", run.path, name)


def change(run, config, real=Run.change) -> None:
    """A change of the settings counts as part of a save."""
    state["inside"] = True
    real(run, config)
    state["inside"] = False


def update(trainer, parts, real=Trainer.update) -> None:
    real(trainer, parts)
    tell.send(trainer.progress.step)


def create(cls, *args, real=Run.create.__func__):
    tell.send("ready")
    while not Path(gate).exists():
        time.sleep(0.01)
    return real(cls, *args)


def event(kind: str, path: Path, what: str = "") -> None:
    """Tell what happened to which run, and when."""
    if events:
        tell.send((kind, str(path.absolute()), what, time.monotonic()))


def sound_checkpoints(run) -> list[str]:
    """The checkpoints on disk, each of them read."""
    names = run.checkpoints()
    for name in names:
        read_directory(run.path / "checkpoints" / name)
    return names


def tell_events() -> None:
    """Tell of every claim and lock just after it is got and just before it is given back."""
    take = Claim.take.__func__
    give_back = Claim.give_back
    create = Run.create.__func__
    locked = Run.locked

    def taken(cls, folder, **more):
        claim = take(cls, folder, **more)
        event("claimed", folder)
        return claim

    def given_back(claim):
        event("given back", claim.folder)
        give_back(claim)

    def created(cls, claim, *args):
        event("creating", claim.folder)
        run = create(cls, claim, *args)
        event("created", claim.folder)
        return run

    @contextmanager
    def held(run):
        with locked(run):
            event("locked", run.path)
            try:
                yield
            finally:
                # Listed under the lock: once it is released, another process may replace the run.
                event("unlocked", run.path, " ".join(sound_checkpoints(run)))

    Claim.take = classmethod(taken)  # type: ignore[method-assign]
    Claim.give_back = given_back  # type: ignore[method-assign]
    Run.create = classmethod(created)  # type: ignore[method-assign]
    Run.locked = held  # type: ignore[method-assign]


os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
for kind, limit in limits.items():
    resource.setrlimit(kind, (limit, limit))
if hold:
    for name in ("mkdir", "fsync", "rename", "replace", "unlink", "rmdir"):
        slow(name)
    NamedFile.write = write  # type: ignore[method-assign]
if gate:
    Run.create = classmethod(create)  # type: ignore[method-assign]
regard.recipes.fitting.save_checkpoint = save
Run.change = change  # type: ignore[method-assign]
Trainer.update = update  # type: ignore[method-assign]
if events:
    tell_events()
sys.argv = ["regard", *words]
try:
    regard.cli.main()
finally:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what comes now meets the harness, not Regard
