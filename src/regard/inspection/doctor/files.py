"""What a proof is, and the proofs on a run's files.

A proof is a function that looks at one thing and returns a sentence about what it found.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from regard.data.batches import Batch, Indices, collate
from regard.data.corpus import Corpus
from regard.data.objectives import objective_of
from regard.errors import UserError, counted
from regard.files import write_bytes
from regard.files.holder import holder
from regard.files.lock import lock as lock_file
from regard.models.parts import Parts
from regard.runs import storage
from regard.runs.run import Run
from regard.runs.weights import get_weights
from regard.text.tokenizer import Tokenizer, least_tokens
from regard.training.checkpoint import load_checkpoint, save_checkpoint
from regard.training.optimizer import optimizer_tensors
from regard.training.parallel import World
from regard.training.start import make_trainer
from regard.training.trainer import Trainer, Trouble

REPORT = "please report it: this is a bug in Regard"
PAIRS = 100_000  # how many pairs the vocabulary is judged by
CLOCK = ("seconds", "tokens_per_second", "examples_per_second")
"""What a log says about time: the only values that differ when training is repeated."""


@dataclass(frozen=True)
class Row:
    """The outcome of one proof, as printed."""

    name: str
    passed: bool | None
    """None: not looked at."""
    found: str
    advice: str = ""
    """What to do about it, if anything."""

    @property
    def mark(self) -> str:
        if self.passed is None:
            return "–"
        if not self.passed:
            return "✗"
        return "!" if self.advice else "✓"


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
    """Where the model is examined.

    What must repeat bit for bit is computed on the CPU, wherever this is.
    """


class Remark(UserError):
    """No fault: something worth knowing, or (passed=None) nothing to look at."""

    def __init__(self, found: str, passed: bool | None = True) -> None:
        super().__init__(found)
        self.passed = passed


class DoesNotApply(UserError):
    """This model has nothing of the kind. Proofs that need this one are tried all the same."""


Find = Callable[[Case], str]  # returns what it found, or raises UserError with what is wrong


class Proof(NamedTuple):
    """A function that proves one thing, and what the table says about it."""

    name: str
    find: Find
    advice: str
    needs: tuple[str, ...]


PROOFS: dict[str, Proof] = {}


def proof(name: str, advice: str, *needs: str) -> Callable[[Find], Find]:
    """Makes a function one of the proofs.

    needs: names of functions above it; it is tried only if all of them held.
    """

    def register(find: Find) -> Find:
        PROOFS[find.__name__] = Proof(name, find, advice, needs)
        return find

    return register


def require(holds: bool, text: str) -> str:
    """The text, as what was found if it holds, as an error if not."""
    if not holds:
        raise UserError(text)
    return text


def prove(case: Case, proofs: Mapping[str, Proof]) -> list[Row]:
    """Every proof, in order."""
    rows: dict[str, Row] = {}
    failed: dict[str, str] = {}  # the names of those that failed, or could not be tried
    for key, proof in proofs.items():
        missing = [failed[need] for need in proof.needs if need in failed]
        if missing:
            rows[key] = Row(proof.name, None, f"skipped: it needs “{missing[0]}”")
            failed[key] = proof.name
            continue
        try:
            rows[key] = _try(proof, case)
            if not rows[key].passed:
                failed[key] = proof.name
        except DoesNotApply as reason:
            rows[key] = Row(proof.name, None, f"does not apply: {reason}")
    return list(rows.values())


def _try(proof: Proof, case: Case) -> Row:
    try:
        return Row(proof.name, True, proof.find(case))
    except Remark as remark:
        advice = "" if remark.passed is None else proof.advice
        return Row(proof.name, remark.passed, str(remark), advice)
    except DoesNotApply:
        raise
    except UserError as error:
        return Row(proof.name, False, str(error), proof.advice)
    except Exception as error:  # whatever went wrong is what was found
        return Row(proof.name, False, f"{type(error).__name__}: {error}", proof.advice)


# The files as they were written


@proof("no training in progress", "wait until it is done, or stop it; the results below may change")
def free(case: Case) -> str:
    """No process holds the run's lock."""
    lock = case.path / "lock"
    if not lock.exists():
        return "no lock file"
    before = lock.stat()
    try:
        handle = lock_file(lock)
    except OSError as error:
        if lock.is_symlink():
            raise UserError(f"{lock}: {error.strerror}") from error
        # A copy to look at, on a disk that is read-only here.
        return f"the lock file cannot be written here ({error.strerror})"
    if handle is None:
        raise UserError(f"{case.path}: another process is training this run{holder(lock)}")

    handle.release()
    with suppress(OSError):  # some versions of filelock write to the file they lock
        os.utime(lock, ns=(before.st_atime_ns, before.st_mtime_ns))
    return "not locked"


@proof(
    "config and tokenizer intact",
    "undo the change, or copy the run again; only --resume may change settings",
)
def opens(case: Case) -> str:
    """The run opens: its files have the sha256 of its manifest."""
    case.run = Run.open(case.path)
    return _matching(len(case.run.manifest["files"]))


@proof(
    "checkpoints intact",
    "copy the run again; --resume continues from the newest intact checkpoint",
)
def checkpoints(case: Case) -> str:
    """The files of every checkpoint have the sha256 of its manifest."""
    entries = (case.path / "checkpoints").glob("[!.]*")
    folders = sorted(entry for entry in entries if entry.is_dir())
    files = 0
    faults = []
    for folder in folders:
        try:
            files += len(_read_checkpoint(case, folder))
        except UserError as error:
            faults.append(str(error))

    if faults:
        raise UserError("\n".join(faults))
    return _matching(files) if folders else "no checkpoint yet"


def _read_checkpoint(case: Case, folder: Path) -> dict[str, bytes]:
    """The files of a checkpoint, of the sizes that the config asks for where it could be read."""
    if case.run is None:
        return storage.read_directory(folder)
    return case.run.checkpoint(folder.name)


def _matching(files: int) -> str:
    """How many files are as their manifest says."""
    match = "matches its" if files == 1 else "match their"
    return f"{counted(files, 'file')} {match} SHA-256"


@proof(
    "training data intact",
    "copy data/ again, or train again",
    "opens",
)
def data(case: Case) -> str:
    """The training data has the sha256 of the settings."""
    corpus = case.run.corpus("train")
    if (case.path / "data" / "dev").exists():
        case.run.corpus("dev")
    return f"{counted(len(corpus), _row_name(case.run))}, SHA-256 {corpus.digest[:8]}…"


def _row_name(run: Run) -> str:
    """What a row of the training data is."""
    return "pair" if run.config.train.objective == "translate" else "text"


@proof(
    "vocabulary used",
    "unused tokens cost memory and learn nothing: try a smaller text.size",
    "data",
)
def vocabulary(case: Case) -> str:
    """Nearly all ids of the vocabularies occur in the training data."""
    corpus = Corpus.open(case.path / "data" / "train")
    pairs = [corpus[number] for number in range(min(len(corpus), PAIRS))]
    source_ids = np.unique(np.concatenate([source for source, _ in pairs]))
    target_ids = np.unique(np.concatenate([target for _, target in pairs]))
    if case.run.config.text.share:
        source_ids = target_ids = np.union1d(source_ids, target_ids)

    if _row_name(case.run) == "text":
        return _text_vocabulary(case, target_ids, counted(len(pairs), "text"))
    source_idle = _unused(source_ids, case.run.source)
    target_idle = _unused(target_ids, case.run.target)
    text = (
        f"{100 * source_idle:.1f} % of the source tokens and {100 * target_idle:.1f} % of the "
        f"target tokens do not occur in {counted(len(pairs), 'pair')}"
    )
    text_settings = case.run.config.text
    target_kind = text_settings.target_tokenizer
    kinds = [text_settings.tokenizer, target_kind]
    if target_kind == "same":
        kinds[1] = kinds[0]
    source_spare = _spare(case.run.source, kinds[0])
    target_spare = _spare(case.run.target, kinds[1])
    if max(min(source_idle, source_spare), min(target_idle, target_spare)) > 0.2:
        raise Remark(text)
    return text


def _text_vocabulary(case: Case, ids: Indices, texts: str) -> str:
    """Nearly all ids occur in the texts that a language model learns from."""
    idle = _unused(ids, case.run.source)
    text = f"{100 * idle:.1f} % of the tokens do not occur in {texts}"
    if min(idle, _spare(case.run.source, case.run.config.text.tokenizer)) > 0.2:
        raise Remark(text)
    return text


def _spare(tokenizer: Tokenizer, kind: str) -> float:
    """Which part of the vocabulary a smaller text.size could leave out."""
    ordinary = tokenizer.size - tokenizer.first
    return max(0, ordinary - least_tokens(kind)) / max(1, ordinary)


def _unused(ids: Indices, tokenizer: Tokenizer) -> float:
    """Which part of the vocabulary is not among these ids; reserved ids do not count."""
    ordinary = tokenizer.size - tokenizer.first
    return float(1 - (ids >= tokenizer.first).sum() / max(1, ordinary))


# Weights


@proof("model can be built", "", "opens")
def builds(case: Case) -> str:
    """The settings describe a model. Without the user's own parts, there is nothing to look at."""
    try:
        model = case.run.new_model(case.parts)
    except UserError as error:
        raise Remark(str(error), None) from None
    return f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters"


@proof(
    "weights are finite",
    "point `best` at an earlier checkpoint, delete this one and --resume; or train again",
    "builds",
)
def finite(case: Case) -> str:
    """The best checkpoint has no NaN and no infinity."""
    run = case.run
    heads = getattr(run.config.model, "heads", 1)
    faults: list[str] = []
    with suppress(UserError):  # what cannot be read is reported in other rows
        tensors = tensors_from_bytes(run.checkpoint(run.best)["model.safetensors"])
        for name, tensor in tensors.items():
            bad = ~tensor.isfinite()
            kind = name.split(".")[-2]
            if name.endswith(".output.weight"):  # a head owns columns of it, not rows
                bad = bad.T
                kind = "query"
            if bad.any():
                faults.append(locate_bad_values(name, kind, bad, heads))
    return require(not faults, "\n".join(faults[:4]) or "no NaN or infinity")


def locate_bad_values(name: str, kind: str, bad: Tensor, heads: int) -> str:
    """How much of a tensor is NaN or infinite, and in which heads.

    bad: one row or more for each feature. kind: the last part of the module's name, which tells
    whether the rows belong to heads.
    """
    text = f"{100 * bad.float().mean():.3g} % of {name} is NaN or infinite"
    projections = {"qkv": 3, "keyvalue": 2, "query": 1, "score": 1}.get(kind)
    if projections is None:
        return text
    by_head = bad.reshape(projections, heads, -1).any(-1).any(0)  # (H,)
    numbers = ", ".join(str(head + 1) for head in by_head.nonzero().flatten().tolist())
    return f"{layer_name(name)}, head {numbers}: {text}"


def layer_name(module: str) -> str:
    """encoder.blocks.1.attention → encoder layer 2: counted from 1, as in the pictures."""
    parts = module.split(".")
    layers = [f" layer {int(part) + 1}" for part in parts if part.isdecimal()]
    level = " segment" if "level" in parts else ""
    cross = ", cross" if "cross" in parts else ""
    return parts[0] + level + "".join(layers) + cross


@proof(
    "best checkpoint loads", "point the file `best` at another checkpoint, or train again", "finite"
)
def weights(case: Case) -> str:
    """The best checkpoint loads. Its model, and pairs to try it on, are what later proofs need."""
    if not case.run.checkpoints():
        raise Remark("no checkpoint yet", None)
    case.model = case.run.model(parts=case.parts).to(case.device)
    case.batch = _some_rows(case).to(case.device)
    return str(case.run.best)


def _some_rows(case: Case) -> Batch:
    """24 random rows of dev, or of train where there is no dev; the same every time."""
    folder = case.path / "data" / "dev"
    if not folder.exists():
        folder = case.path / "data" / "train"
    corpus = Corpus.open(folder)
    objective = objective_of(case.run.config.train, case.run.source)
    order = np.random.default_rng(0).permutation(len(corpus))
    return collate([objective.row(corpus.row(number), number) for number in order[:24].tolist()])


# Batches


@proof("batches are reproducible", REPORT, "data", "builds")
def repeats(case: Case) -> str:
    """A batch depends on its step only, not on what was asked before."""
    forward = _batches(case)
    backward = _batches(case)
    epoch = forward.per_epoch
    steps = sorted({0, 1, epoch // 2, epoch - 1, epoch, 3 * epoch + epoch // 3, 1000 * epoch})

    expected = {step: forward(step) for step in steps}
    batches = {step: backward(step) for step in reversed(steps)}
    for step in steps:
        if not _equal(expected[step], batches[step]):
            raise UserError(
                f"the batch of step {step:,} depends on which batches were read before it"
            )
    return f"{counted(len(steps), 'batch', 'batches')} read in two orders ({epoch:,} per epoch)"


def _equal(batch: Batch, other: Batch) -> bool:
    others = other.tensors()
    return all(torch.equal(x, others[name]) for name, x in batch.tensors().items())


@proof("each pair once per epoch", REPORT, "data", "builds")
def once(case: Case) -> str:
    """The batches of an epoch hold every pair exactly once."""
    batches = _batches(case)
    pairs = len(batches.corpus)
    rows = counted(pairs, _row_name(Run.open(case.path)))
    for epoch in (0, 1):
        first = epoch * batches.per_epoch
        indices = [batches.indices(step) for step in range(first, first + batches.per_epoch)]
        times = np.bincount(np.concatenate(indices), minlength=pairs)
        wrong = int((times != 1).sum())
        if wrong:
            raise UserError(f"epoch {epoch}: {wrong:,} of {rows} not seen exactly once")
    return f"{rows} in {counted(batches.per_epoch, 'batch', 'batches')}, two epochs"


# Resuming


@proof(
    "resuming is exact",
    "please report it with config.toml: a bug in Regard, or faulty memory in this machine",
    "data",
    "finite",
)
def resumes(case: Case) -> str:
    """Training with a stop in the middle gives the same bits as training straight through."""
    with tempfile.TemporaryDirectory() as folder:
        run = _copy(case.path, Path(folder) / "run")
        start = _trainer(run, case.parts).progress.step
        half = 3 + start % 2  # so that the log's window of two steps is open when training stops
        middle = start + half
        end = middle + half
        run.config = replace(run.config, train=replace(run.config.train, steps=end))

        straight = _train(run, case.parts, end, save=False)
        first = _train(run, case.parts, middle, save=True)
        second = _train(run, case.parts, end, save=False)

    resumed = {**second, "log": first["log"] + second["log"]}
    different = [name for name in straight if straight[name] != resumed[name]]
    if different:
        raise UserError(
            f"from step {start:,}: {', '.join(different)} after {2 * half} steps differ if "
            f"training is stopped and resumed after {half}"
        )
    return (
        f"from step {start:,}: {half} steps, a stop and {half} more give the same "
        f"weights, optimizer state and log as {2 * half} steps, bit for bit"
    )


def _copy(path: Path, copy: Path) -> Run:
    """A folder in which the run can go on, with its newest whole checkpoint and a link to the data.

    The run itself is only read.
    """
    (copy / "checkpoints").mkdir(parents=True)
    for name in (storage.MANIFEST, "config.toml", "tokenizer.json"):
        write_bytes(copy / name, (path / name).read_bytes())
    (copy / "data").symlink_to((path / "data").resolve())

    run = Run.open(path)
    names = run.checkpoints()
    if names:
        name, files = _newest_whole(run, names)
        storage.write_directory(copy / "checkpoints" / name, files)
    return _on_cpu(Run.open(copy))


def _newest_whole(run: Run, names: Sequence[str]) -> tuple[str, dict[str, bytes]]:
    """The newest checkpoint that is not damaged: its name and files. names: oldest first."""
    *older, newest = names
    try:
        return newest, run.checkpoint(newest)
    except storage.Corrupt:
        if not older:
            raise
    return _newest_whole(run, older)


def _on_cpu(run: Run) -> Run:
    """The run with settings to train it on this CPU, for as many steps as we like."""
    train = replace(
        run.config.train,
        start_from="",
        epochs=0,
        minutes=0,
        log_every=2,
        save_every=10**9,
        path="plain",
        precision="fp32",
        strategy="ddp",
    )
    if train.threads:
        torch.set_num_threads(train.threads)
    run.config = replace(run.config, train=train)
    return run


def _batches(case: Case) -> Any:
    """The batches that the run's trainer would use."""
    return make_trainer(_on_cpu(Run.open(case.path)), case.parts, World()).batches


def _trainer(run: Run, parts: Parts) -> Trainer:
    """A trainer at the newest checkpoint. (This writes into the run's folder.)"""
    trainer = make_trainer(run, parts, World())
    load_checkpoint(run, trainer, lambda text: None)
    trainer.progress.finished = False
    return trainer


def _train(run: Run, parts: Parts, until: int, *, save: bool) -> dict[str, Any]:
    """Train from the newest checkpoint on: digests of weights and optimiser, and the log."""
    trainer = _trainer(run, parts)
    records: list[dict[str, Any]] = []

    def log(kind: str, **values: Any) -> None:
        records.append({name: value for name, value in values.items() if name not in CLOCK})

    try:
        trainer.fit(
            validate=None,
            save=lambda: save_checkpoint(run, trainer) if save else None,
            log=log,
            tick=lambda progress: None,
            stop=lambda: trainer.progress.step >= until,
        )
    except Trouble:
        raise UserError(
            f"step {trainer.progress.step:,}: in too many steps the loss or its gradient is not "
            f"finite, or spikes"
        ) from None
    return {
        "weights": _digest(get_weights(trainer.model)),
        "optimizer state": _digest(optimizer_tensors(trainer.model, trainer.optimizer)),
        "log": records,
    }


def _digest(tensors: dict[str, Tensor]) -> str:
    return hashlib.sha256(tensors_to_bytes(tensors)).hexdigest()
