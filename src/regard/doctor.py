"""Proofs on somebody's own run: each looks at one thing and says what it found. Nothing in the run's folder is changed."""

import fcntl
import hashlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as tensors_to_bytes

from regard import storage
from regard.data.corpus import Corpus, digest_of
from regard.errors import UserError
from regard.fitting import make_trainer
from regard.models.seq2seq import TENSORS
from regard.run import Run, get_weights
from regard.training.checkpoint import load_checkpoint, save_checkpoint
from regard.training.optimizer import optimizer_tensors
from regard.training.parallel import World
from regard.training.trainer import Trainer, Trouble

CLOCK = ("seconds", "tokens_per_second", "examples_per_second")


@dataclass(frozen=True)
class Row:
    """What was looked at, whether it holds (None: not looked at), what was found, and what to do if it does not hold."""

    name: str
    passed: bool | None
    found: str
    advice: str = ""


Find = Callable[[Path], str]  # gives what it found, or raises UserError with what is wrong
PROOFS: dict[str, tuple[str, Find, str, tuple[str, ...]]] = {}


def proof(name: str, advice: str, *needs: str) -> Callable[[Find], Find]:
    """Makes a function one of the proofs; `needs` are names of functions above it: it is tried only if all of them held."""

    def keep(find: Find) -> Find:
        PROOFS[find.__name__] = name, find, advice, needs
        return find

    return keep


def doctor(path: str | Path) -> list[Row]:
    """Every proof, in order."""
    path = Path(path)
    if not (path / storage.MANIFEST).exists():
        Run.open(path)  # says why it is no run
    rows: dict[str, Row] = {}
    for key, (name, find, advice, needs) in PROOFS.items():
        if lacking := [rows[need].name for need in needs if not rows[need].passed]:
            rows[key] = Row(name, None, f"not looked at: it needs “{lacking[0]}”")
            continue
        try:
            rows[key] = Row(name, True, find(path))
        except Exception as error:  # whatever went wrong is what was found
            kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
            rows[key] = Row(name, False, f"{kind}{error}", advice)
    return list(rows.values())


@proof("nobody is training it", "wait until it is done, or stop it; what follows may change meanwhile")
def free(path: Path) -> str:
    lock = path / "lock"
    if not lock.exists():
        return "never locked"
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{path}: another process is training this run") from None
    return "the lock is free"


@proof("settings, tokenizer as written", "undo the change, or copy the run again; only --resume may change settings")
def opens(path: Path) -> str:
    return f"sha256 of {len(Run.open(path).manifest['files'])} files"


@proof("checkpoints as written", "copy it again from where it is whole; --resume goes on from the newest that is whole")
def checkpoints(path: Path) -> str:
    folders = sorted(p for p in (path / "checkpoints").glob("[!.]*") if p.is_dir())
    files, wrong = 0, []
    for folder in folders:
        try:
            files += len(storage.read_directory(folder))
        except storage.Corrupt as error:
            wrong.append(str(error))
    if wrong:
        raise UserError("\n".join(wrong))
    return f"sha256 of {files} files" if folders else "none yet"


@proof("data is what config.toml says", "copy data/ again from where it is whole, or train again", "opens")
def data(path: Path) -> str:
    digest, corpus = Run.open(path).config.data.digest, Corpus.open(path / "data" / "train")
    if digest_of(corpus.path, corpus.about["dtype"]) != digest:
        raise UserError(f"{corpus.path}: its sha256 is not data.digest of config.toml; a file was changed or damaged")
    return f"{len(corpus):,} pairs, sha256 {digest[:8]}…"


@proof("best weights load, all finite", "point the file `best` at another checkpoint, or train again", "opens")
def weights(path: Path) -> str:
    run = Run.open(path)
    if not run.checkpoints():
        return "none yet"
    return f"{sum(w.numel() for w in run.model().parameters()):,} numbers of {run.best}"


@proof("batch(step) repeats", "tell us: this is a mistake of Regard's", "data")
def repeats(path: Path) -> str:
    one, two = _batches(path), _batches(path)
    last = one.per_epoch
    steps = sorted({0, 1, last // 2, last - 1, last, 3 * last + last // 3, 1000 * last})
    forth = {step: one(step) for step in steps}
    back = {step: two(step) for step in reversed(steps)}
    for step in steps:
        if not all(torch.equal(getattr(forth[step], side), getattr(back[step], side)) for side in TENSORS):
            raise UserError(f"the batch of step {step:,} depends on what was asked before it")
    return f"{len(steps)} steps of {last:,} an epoch, asked in two orders"


@proof("every pair comes once an epoch", "tell us: this is a mistake of Regard's", "data")
def once(path: Path) -> str:
    batches = _batches(path)
    for epoch in (0, 1):
        steps = range(epoch * batches.per_epoch, (epoch + 1) * batches.per_epoch)
        times = np.bincount(np.concatenate([batches.indices(step) for step in steps]), minlength=len(batches.corpus))
        if wrong := int((times != 1).sum()):
            raise UserError(f"epoch {epoch}: {wrong:,} of {len(times):,} pairs come not once")
    return f"{len(times):,} pairs in {batches.per_epoch:,} batches, two epochs"


@proof("resume is exact", "tell us, with config.toml: this is a mistake of Regard's, or of the machine's memory", "data")
def resumes(path: Path) -> str:
    with tempfile.TemporaryDirectory() as folder:
        run = _copy(path, Path(folder) / "run")
        at = _trainer(run).progress.step
        half = 3 + at % 2  # so that the log's window of two steps is open when training stops
        run.config = replace(run.config, train=replace(run.config.train, steps=at + 2 * half))
        straight = _train(run, at + 2 * half, save=False)
        first = _train(run, at + half, save=True)
        second = _train(run, at + 2 * half, save=False)
    resumed = {**second, "log": first["log"] + second["log"]}
    if wrong := [name for name in straight if straight[name] != resumed[name]]:
        raise UserError(f"from step {at:,}: {', '.join(wrong)} after {2 * half} steps are others than with a stop after {half}")
    return f"from step {at:,}: {half} steps, a stop, {half} more = {2 * half} steps: {', '.join(straight)}, bit for bit"


def _copy(path: Path, there: Path) -> Run:
    """What going on needs, elsewhere: the newest whole checkpoint, and a link to the data."""
    (there / "checkpoints").mkdir(parents=True)
    for name in (storage.MANIFEST, "config.toml", "tokenizer.json"):
        shutil.copy(path / name, there / name)
    (there / "data").symlink_to((path / "data").resolve())
    old = Run.open(path)
    for number, name in enumerate(names := old.checkpoints()[::-1], 1):
        try:
            storage.write_directory(there / "checkpoints" / name, old.checkpoint(name))
            break
        except storage.Corrupt:
            if number == len(names):
                raise
    return _on_cpu(Run.open(there))


def _on_cpu(run: Run) -> Run:
    """It trains as it was told to, but here, plainly, and for as many steps as we like."""
    here = {"path": "plain", "precision": "fp32", "strategy": "ddp", "start_from": ""}
    train = replace(run.config.train, **here, epochs=0, minutes=0, log_every=2, save_every=10**9)  # type: ignore[arg-type]
    torch.set_num_threads(train.threads)
    run.config = replace(run.config, train=train)
    return run


def _batches(path: Path) -> Any:
    """The run's own Batches, as its trainer has them."""
    return make_trainer(_on_cpu(Run.open(path)), None, World()).batches


def _trainer(run: Run) -> Trainer:
    """Where the newest checkpoint stands. (This writes into the run's folder.)"""
    trainer = make_trainer(run, None, World())
    load_checkpoint(run, trainer, lambda text: None)
    trainer.progress.finished = False
    return trainer


def _train(run: Run, until: int, *, save: bool) -> dict[str, Any]:
    """Go on from the newest checkpoint, and tell what came of it."""
    trainer, log = _trainer(run), list[Any]()
    try:
        trainer.fit(
            validate=None,
            save=lambda: save_checkpoint(run, trainer) if save else None,
            log=lambda kind, **values: log.append({k: v for k, v in values.items() if k not in CLOCK}),
            tick=lambda progress: None,
            stop=lambda: trainer.progress.step >= until,
        )
    except Trouble:
        raise UserError(f"step {trainer.progress.step:,}: too many steps are not finite or far out") from None
    tensors = {"weights": get_weights(trainer.model), "optimiser": optimizer_tensors(trainer.model, trainer.optimizer)}
    return {**{name: hashlib.sha256(tensors_to_bytes(found)).hexdigest() for name, found in tensors.items()}, "log": log}
