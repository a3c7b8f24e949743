"""A process that trains and is watched: run by its path in a child of a warm server, which has
imported everything.

Given as globals: words (of the command line), tell (a pipe: the number of each finished step,
"held"), errors (a file for standard error), hold (stop for ever at the so-manieth operation inside
saves; 0: never), limits (of resource.setrlimit), gate (a path: with the new run written, but not
yet in its place, say "ready" and wait until it is there; "": do not).
"""
# ruff: noqa: F821

import os
import resource
import sys
import time
from pathlib import Path

import regard.cli
import regard.recipes.fitting
from regard.files.disk import NamedFile
from regard.runs.run import Run
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


def save(*args, real=regard.recipes.fitting.save_checkpoint):
    state["inside"] = True
    real(*args)
    state["inside"] = False


def update(trainer, parts, real=Trainer.update) -> None:
    real(trainer, parts)
    tell.send(trainer.progress.step)


def create(cls, *args, real=Run.create.__func__):
    tell.send("ready")
    while not Path(gate).exists():
        time.sleep(0.01)
    return real(cls, *args)


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
Trainer.update = update  # type: ignore[method-assign]
sys.argv = ["regard", *words]
regard.cli.main()
