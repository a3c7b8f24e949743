"""What a proof is, and those of a run's files: each looks at one thing and says what it found."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from regard.data.batches import collate
from regard.data.corpus import Corpus, digest_of
from regard.errors import UserError
from regard.models.seq2seq import TENSORS
from regard.runs import storage
from regard.runs.run import Parts, Run
from regard.runs.weights import get_weights
from regard.text.vocabulary import FIRST
from regard.training.checkpoint import load_checkpoint, save_checkpoint
from regard.training.optimizer import optimizer_tensors
from regard.training.parallel import World
from regard.training.start import make_trainer
from regard.training.trainer import Trainer, Trouble

PAIRS = 100_000  # by which the vocabulary is judged
CLOCK = ("seconds", "tokens_per_second", "examples_per_second")


@dataclass(frozen=True)
class Row:
    """What was looked at, whether it holds (None: not looked at), what was found, and what to do
    about it, if anything.
    """

    name: str
    passed: bool | None
    found: str
    advice: str = ""

    @property
    def mark(self) -> str:
        return (
            "–" if self.passed is None else "✗" if not self.passed else "!" if self.advice else "✓"
        )


@dataclass
class Case:
    """What is examined. The proofs that open the run and load its model leave them here."""

    path: Path
    parts: Parts = None
    run: Any = None
    model: Any = None
    batch: Any = None
    """Pairs to try the model on."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Where the model is examined. What must repeat bit for bit is computed on the CPU, wherever
    this is.
    """


class Remark(UserError):
    """No fault: something worth knowing, or (passed=None) nothing to look at."""

    def __init__(self, found: str, passed: bool | None = True) -> None:
        super().__init__(found)
        self.passed = passed


Find = Callable[[Case], str]  # gives what it found, or raises UserError with what is wrong
Proof = tuple[str, Find, str, tuple[str, ...]]
PROOFS: dict[str, Proof] = {}


def proof(name: str, advice: str, *needs: str) -> Callable[[Find], Find]:
    """Makes a function one of the proofs; `needs` are names of functions above it: it is tried only
    if all of them held.
    """

    def keep(find: Find) -> Find:
        PROOFS[find.__name__] = name, find, advice, needs
        return find

    return keep


def held(holds: bool, found: str) -> str:
    if not holds:
        raise UserError(found)
    return found


def prove(case: Case, proofs: Mapping[str, Proof]) -> list[Row]:
    """Every proof, in order."""
    rows: dict[str, Row] = {}
    for key, (name, find, advice, needs) in proofs.items():
        if lacking := [rows[need].name for need in needs if need in rows and not rows[need].passed]:
            rows[key] = Row(name, None, f"not looked at: it needs “{lacking[0]}”")
            continue
        try:
            rows[key] = Row(name, True, find(case))
        except Exception as error:  # whatever went wrong is what was found
            kind, passed = (
                "" if isinstance(error, UserError) else f"{type(error).__name__}: ",
                getattr(error, "passed", False),
            )
            rows[key] = Row(name, passed, f"{kind}{error}", "" if passed is None else advice)
    return list(rows.values())


@proof(
    "nobody is training it", "wait until it is done, or stop it; what follows may change meanwhile"
)
def free(case: Case) -> str:
    lock = case.path / "lock"
    if not lock.exists():
        return "never locked"
    before = lock.stat()
    try:
        held = storage.lock(lock)
    except OSError as error:  # a copy to look at, on a disk that is read-only here
        return f"the lock may not be written here ({error.strerror})"
    if held is None:
        raise UserError(f"{case.path}: another process is training this run")
    held.release()
    with suppress(OSError):  # some versions of filelock write to the file they lock
        os.utime(lock, ns=(before.st_atime_ns, before.st_mtime_ns))
    return "the lock is free"


@proof(
    "settings, tokenizer as written",
    "undo the change, or copy the run again; only --resume may change settings",
)
def opens(case: Case) -> str:
    case.run = Run.open(case.path)
    return f"sha256 of {len(case.run.manifest['files'])} files"


@proof(
    "checkpoints as written",
    "copy it again from where it is whole; --resume goes on from the newest that is whole",
)
def checkpoints(case: Case) -> str:
    folders = sorted(p for p in (case.path / "checkpoints").glob("[!.]*") if p.is_dir())
    files, wrong = 0, []
    for folder in folders:
        try:
            files += len(storage.read_directory(folder))
        except storage.Corrupt as error:
            wrong.append(str(error))
    if wrong:
        raise UserError("\n".join(wrong))
    return f"sha256 of {files} files" if folders else "none yet"


@proof(
    "data is what config.toml says",
    "copy data/ again from where it is whole, or train again",
    "opens",
)
def data(case: Case) -> str:
    digest, corpus = case.run.config.data.digest, Corpus.open(case.path / "data" / "train")
    if digest_of(corpus.path, corpus.about["dtype"]) != digest:
        raise UserError(
            f"{corpus.path}: its sha256 is not data.digest of config.toml; a file was changed or "
            f"damaged"
        )
    return f"{len(corpus):,} pairs, sha256 {digest[:8]}…"


@proof(
    "vocabulary in use",
    "ids without use cost memory and learn nothing: try a smaller text.size",
    "data",
)
def vocabulary(case: Case) -> str:
    run, corpus = case.run, Corpus.open(case.path / "data" / "train")
    rows = [corpus[i] for i in range(min(len(corpus), PAIRS))]
    seen = [np.unique(np.concatenate(ids)) for ids in zip(*rows)]
    seen = [np.union1d(*seen)] * 2 if run.config.text.share else seen
    idle = [
        1 - (ids >= FIRST).sum() / max(1, side.size - FIRST)
        for ids, side in zip(seen, (run.source, run.target))
    ]
    found = (
        f"{100 * idle[0]:.1f} % of the source's ids and {100 * idle[1]:.1f} % of the target's are "
        f"not in {len(rows):,} pairs"
    )
    if max(idle) > 0.2:
        raise Remark(found)
    return found


@proof("the model can be built", "", "opens")
def builds(case: Case) -> str:
    try:
        return f"{sum(w.numel() for w in case.run.new_model(case.parts).parameters()):,} numbers"
    except UserError as error:
        raise Remark(f"{error} to regard.inspection.doctor.doctor, in Python", None) from None


@proof(
    "every weight is finite",
    "point `best` at a checkpoint before it, delete this one and --resume; or train again",
    "builds",
)
def finite(case: Case) -> str:
    run, wrong = case.run, list[str]()
    with suppress(UserError):  # what cannot be read is told in other rows
        for name, w in tensors_from_bytes(run.checkpoint(run.best)["model.safetensors"]).items():
            kind, columns = (
                name.split(".")[-2],
                name.endswith(".output.weight"),
            )  # where a head has columns, not rows
            bad, kind = (~w.isfinite().T, "query") if columns else (~w.isfinite(), kind)
            wrong += (
                [where(name, kind, bad, getattr(run.config.model, "heads", 1))] if bad.any() else []
            )
    return held(not wrong, "\n".join(wrong[:4]) or "no NaN and no infinity")


def where(name: str, kind: str, bad: Tensor, heads: int) -> str:
    """How much of a tensor is bad, and of which heads: its rows belong to them, if it is of this
    kind.
    """
    found = f"{100 * bad.float().mean():.3g} % of {name} is NaN or infinite"
    if not (cuts := {"qkv": 3, "keyvalue": 2, "query": 1, "score": 1}.get(kind)):
        return found
    by_head = bad.reshape(cuts, heads, -1).any(-1).any(0).nonzero().flatten() + 1
    return f"{plain(name)}, head {', '.join(map(str, by_head.tolist()))}: {found}"


def plain(name: str) -> str:
    """encoder.blocks.1.attention → encoder layer 2: layers and heads count from 1, as in the
    pictures.
    """
    parts = name.split(".")
    return (
        parts[0]
        + "".join(f" layer {int(p) + 1}" for p in parts if p.isdecimal())
        + (", cross" if "cross" in parts else "")
    )


@proof("best weights load", "point the file `best` at another checkpoint, or train again", "finite")
def weights(case: Case) -> str:
    if not case.run.checkpoints():
        raise Remark("none yet", None)
    case.model = case.run.model(parts=case.parts).to(case.device)
    corpus = Corpus.open(
        next(p for name in ("dev", "train") if (p := case.path / "data" / name).exists())
    )
    case.batch = collate(
        [corpus[i] for i in np.random.default_rng(0).permutation(len(corpus))[:24].tolist()]
    ).to(case.device)
    return f"those of {case.run.best}"


@proof("batch(step) repeats", "tell us: this is a mistake of Regard's", "data", "builds")
def repeats(case: Case) -> str:
    one, two = _batches(case), _batches(case)
    last = one.per_epoch
    steps = sorted({0, 1, last // 2, last - 1, last, 3 * last + last // 3, 1000 * last})
    forth = {step: one(step) for step in steps}
    back = {step: two(step) for step in reversed(steps)}
    for step in steps:
        if not all(
            torch.equal(getattr(forth[step], side), getattr(back[step], side)) for side in TENSORS
        ):
            raise UserError(f"the batch of step {step:,} depends on what was asked before it")
    return f"{len(steps)} steps of {last:,} an epoch, asked in two orders"


@proof("every pair comes once an epoch", "tell us: this is a mistake of Regard's", "data", "builds")
def once(case: Case) -> str:
    batches = _batches(case)
    for epoch in (0, 1):
        steps = range(epoch * batches.per_epoch, (epoch + 1) * batches.per_epoch)
        times = np.bincount(
            np.concatenate([batches.indices(step) for step in steps]), minlength=len(batches.corpus)
        )
        if wrong := int((times != 1).sum()):
            raise UserError(f"epoch {epoch}: {wrong:,} of {len(times):,} pairs come not once")
    return f"{len(times):,} pairs in {batches.per_epoch:,} batches, two epochs"


@proof(
    "resume is exact",
    "tell us, with config.toml: a mistake of Regard's, or of the machine's memory",
    "data",
    "finite",
)
def resumes(case: Case) -> str:
    with tempfile.TemporaryDirectory() as folder:
        run = _copy(case.path, Path(folder) / "run")
        at = _trainer(run, case.parts).progress.step
        half = 3 + at % 2  # so that the log's window of two steps is open when training stops
        run.config = replace(run.config, train=replace(run.config.train, steps=at + 2 * half))
        straight = _train(run, case.parts, at + 2 * half, save=False)
        first = _train(run, case.parts, at + half, save=True)
        second = _train(run, case.parts, at + 2 * half, save=False)
    resumed = {**second, "log": first["log"] + second["log"]}
    if wrong := [name for name in straight if straight[name] != resumed[name]]:
        raise UserError(
            f"from step {at:,}: {', '.join(wrong)} after {2 * half} steps are others than with a "
            f"stop after {half}"
        )
    return (
        f"from step {at:,}: {half} steps, a stop, {half} more = {2 * half} steps: "
        f"{', '.join(straight)}, bit for bit"
    )


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
    forever = replace(
        run.config.train, start_from="", epochs=0, minutes=0, log_every=2, save_every=10**9
    )
    train = replace(forever, path="plain", precision="fp32", strategy="ddp")
    torch.set_num_threads(train.threads)
    run.config = replace(run.config, train=train)
    return run


def _batches(case: Case) -> Any:
    """The run's own Batches, as its trainer has them."""
    return make_trainer(_on_cpu(Run.open(case.path)), case.parts, World()).batches


def _trainer(run: Run, parts: Parts) -> Trainer:
    """Where the newest checkpoint stands. (This writes into the run's folder.)"""
    trainer = make_trainer(run, parts, World())
    load_checkpoint(run, trainer, lambda text: None)
    trainer.progress.finished = False
    return trainer


def _train(run: Run, parts: Parts, until: int, *, save: bool) -> dict[str, Any]:
    """Go on from the newest checkpoint, and tell what came of it."""
    trainer, log = _trainer(run, parts), list[Any]()
    try:
        trainer.fit(
            validate=None,
            save=lambda: save_checkpoint(run, trainer) if save else None,
            log=lambda kind, **values: log.append(
                {k: v for k, v in values.items() if k not in CLOCK}
            ),
            tick=lambda progress: None,
            stop=lambda: trainer.progress.step >= until,
        )
    except Trouble:
        raise UserError(
            f"step {trainer.progress.step:,}: too many steps are not finite or far out"
        ) from None
    tensors = {
        "weights": get_weights(trainer.model),
        "optimiser": optimizer_tensors(trainer.model, trainer.optimizer),
    }
    return {
        **{
            name: hashlib.sha256(tensors_to_bytes(found)).hexdigest()
            for name, found in tensors.items()
        },
        "log": log,
    }
