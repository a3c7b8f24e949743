"""A run is a folder: config, tokenizers, checkpoints, log. This file reads and writes it."""

import base64
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from html import escape
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from filelock import BaseFileLock
from safetensors.torch import load as tensors_from_bytes
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import regard
from regard import config as settings
from regard import storage
from regard.config import Config
from regard.errors import UserError
from regard.models import Seq2Seq, build_model
from regard.storage import Corrupt
from regard.text import tokenizer as tokenizers
from regard.text.tokenizer import Tokenizer

START = "start"  # a folder of a fine-tuned run: the weights it starts from
ATTEMPTS = 100  # at reading the best checkpoint while a training replaces it again and again
Parts = Mapping[str, type[nn.Module]] | None  # the user's own classes for `score` or `position`


class Taken(UserError):
    """The name of a new run is not free."""


class Claim:
    """The name of a new run, held by one process from before it reads its data until the run is there.

        with Claim.take(folder) as claim:
            ...  # write into claim.aside, an empty folder beside the run's place
            Run.create(claim, ...)

    `.NAME.lock` is locked meanwhile, and `.NAME.tmp` belongs to whoever holds that lock: what is found there belongs
    to a process that was killed, and is swept. No other name is ever touched.
    """

    def __init__(self, folder: Path, lock: BaseFileLock, *, new_parent: bool) -> None:
        self.folder = folder
        self.aside = folder.with_name(f".{folder.name}.tmp")
        self._lock = lock
        self._lock_file = self.file_of(folder)
        self._new_parent = new_parent

    @staticmethod
    def file_of(folder: Path) -> Path:
        """The lock file of a name."""
        return folder.with_name(f".{folder.name}.lock")

    @classmethod
    def take(cls, folder: Path) -> Self:
        """Claim exactly this name; Taken if a run stands there, or another process is preparing one."""
        with storage.disk_faults_told(folder):
            new_parent = not folder.parent.exists()
            while True:
                folder.parent.mkdir(parents=True, exist_ok=True)
                try:
                    lock = storage.lock(cls.file_of(folder))
                    break
                except FileNotFoundError:
                    if folder.parent.exists():
                        raise
                    # Else another process gave up and took its empty parent folder away: make it again.
        if lock is None:
            raise Taken(f"{folder}: another process is preparing this run")

        claim = cls(folder, lock, new_parent=new_parent)
        try:
            if folder.exists():
                raise Taken(f"{folder} exists: --resume goes on with it, --out names another folder")
            with storage.disk_faults_told(folder):
                if claim.aside.exists():
                    shutil.rmtree(claim.aside)
                claim.aside.mkdir()
        except BaseException:
            claim.give_back()
            raise
        return claim

    @classmethod
    def take_next(cls, first: Path) -> Self:
        """Claim the first free name of NAME, NAME-2, NAME-3 …"""
        for folder in numbered(first):
            if folder.exists():
                continue
            try:
                return cls.take(folder)
            except Taken:
                continue
        raise AssertionError("numbers have no end")

    def give_back(self) -> None:
        """Remove what is left beside the run's place, and let others claim the name."""
        shutil.rmtree(self.aside, ignore_errors=True)
        with suppress(OSError):  # Windows deletes no open file; it means nothing where it stays
            self._lock_file.unlink(missing_ok=True)
        self._lock.release()
        if self._new_parent:
            with suppress(OSError):  # not empty: it is in use
                self.folder.parent.rmdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.give_back()


def numbered(first: Path) -> Iterator[Path]:
    """NAME, NAME-2, NAME-3 …"""
    yield first
    for number in count(2):
        yield first.with_name(f"{first.name}-{number}")


def newest_numbered(first: Path) -> Path:
    """Of NAME, NAME-2, NAME-3 … the one with the highest number that exists; NAME if none does."""
    numbers = [1]
    for path in first.parent.glob("*"):
        name, _, number = path.name.rpartition("-")
        if name == first.name and number.isdecimal() and number.isascii():
            numbers.append(int(number))
    highest = max(numbers)
    return first if highest == 1 else first.with_name(f"{first.name}-{highest}")


class Run:
    """Open with `Run.open(path)`; made by training."""

    def __init__(self, path: Path, config: Config, source: Tokenizer, target: Tokenizer, manifest: dict[str, Any]) -> None:
        self.path, self.config, self.source, self.target, self.manifest = path, config, source, target, manifest

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def _repr_html_(self) -> str:
        """For a notebook: what it is, its best on dev, its curve."""
        model = self.config.model
        facts = f"{model.kind}, width {model.width}, on {self.config.data.path}"
        best = self.best_look()
        if best is None:
            facts += "; not judged yet"
        else:
            metric = self.config.train.metric
            facts += f"; dev {metric.replace('_', ' ')} {best[metric]:.4f} at step {best['step']:,}"

        picture = ""
        curves = self.path / "curves.png"
        if curves.exists():
            content = base64.b64encode(curves.read_bytes()).decode()
            picture = f'<img alt="learning curves" style="max-width: 100%" src="data:image/png;base64,{content}">'
        return f"<p><b>{escape(str(self.path))}</b>: {escape(facts)}</p>{picture}"

    @classmethod
    def create(cls, claim: Claim, config: Config, source: Tokenizer, target: Tokenizer, facts: dict[str, Any]) -> Self:
        """Turn the claim's folder aside (which may hold the encoded data) into the run, in one rename."""
        aside, path = claim.aside, claim.folder
        tokenizers.save(aside / "tokenizer.json", source, target)
        content = settings.to_toml(settings.to_settings(config)).encode()
        files = {"config.toml": content, "tokenizer.json": (aside / "tokenizer.json").read_bytes()}
        storage.write_files(aside, files, {"regard": regard.__version__, "torch": str(torch.__version__), **facts})
        (aside / "checkpoints").mkdir()
        for made in [*aside.rglob("*"), aside]:
            storage.sync(made)
        os.rename(aside, path)
        storage.sync(path.parent)
        return cls.open(path)

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Read a run; a folder that is none, or was damaged, is told in one line."""
        path = Path(path)
        if not path.exists():
            raise UserError(f"{path}: no such run (a run is the folder that `regard train` writes)")
        if not (path / storage.MANIFEST).exists():
            raise UserError(f"{path}: not a run: it has no {storage.MANIFEST}")
        if missing := {"config.toml", "tokenizer.json"} - set(storage.read_directory(path)):
            raise Corrupt(f"{path}: not a run: {', '.join(sorted(missing))} is missing")
        source, target = tokenizers.load(path / "tokenizer.json")
        return cls(path, settings.load(path / "config.toml"), source, target, storage.read_manifest(path))

    def change(self, config: Config) -> None:
        """Give the run another config. The manifest first allows both, so that no crash leaves a file it does not know."""
        content = settings.to_toml(settings.to_settings(config)).encode()
        for allowed in (True, False):
            storage.write_manifest(self.path, self.manifest, "config.toml", content, also_old=allowed)
            storage.write_text(self.path / "config.toml", content.decode())
        self.config = config

    # weights

    def checkpoints(self) -> list[str]:
        """Names of the checkpoints, oldest first."""
        return sorted(p.name for p in (self.path / "checkpoints").glob("step-*") if p.name[5:].isdigit() and p.is_dir())

    @property
    def best(self) -> str:
        """Name of the best checkpoint."""
        try:
            return (self.path / "best").read_text().strip()
        except FileNotFoundError:
            raise UserError(f"{self.path}: no checkpoint yet; train it first (regard train … --resume)") from None

    def checkpoint(self, name: str) -> dict[str, bytes]:
        """The files of a checkpoint, proved against its manifest."""
        path = self.path / "checkpoints" / name
        if Path(name).name != name or not path.is_dir():
            raise UserError(f"{self.path}: no checkpoint {name!r} (there are: {', '.join(self.checkpoints()) or 'none'})")
        return storage.read_directory(path)

    def best_checkpoint(self) -> dict[str, bytes]:
        """The files of the best checkpoint.

        A training beside us may delete a checkpoint while we read it, but not before `best` names
        another. So what cannot be read is damaged only if `best` still names it.
        """
        return self._read_best()[1]

    def _read_best(self) -> tuple[str, dict[str, bytes]]:
        """The name of the best checkpoint, and its files."""
        name = self.best
        for _ in range(ATTEMPTS):
            try:
                return name, self.checkpoint(name)
            except UserError:
                newer = self.best
                if newer == name:
                    raise
                name = newer
        return name, self.checkpoint(name)

    def new_model(self, parts: Parts = None) -> Seq2Seq:
        """A model of this run's config, with fresh weights."""
        return build_model(self.config.model, self.source.size, self.target.size, parts)

    def model(self, name: str = "best", parts: Parts = None) -> Seq2Seq:
        """The trained model, ready to decode."""
        with Undrawn():
            model = self.new_model(parts)
        if name == "best":
            name, files = self._read_best()
        else:
            files = self.checkpoint(name)
        set_weights(model, tensors_from_bytes(files["model.safetensors"]), f"{self.path}, {name}")
        return model.eval()

    def keep_start(self, folder: Path) -> None:
        """Write this run's best weights into the folder of a new run, which will start from them.

        So the new run needs this one no longer, even if it is killed before its first checkpoint.
        """
        weights = self.best_checkpoint()["model.safetensors"]
        storage.write_directory(folder / START, {"model.safetensors": weights})

    def start_weights(self) -> dict[str, Tensor]:
        """The weights that fine-tuning starts from. (Runs of older versions read them from their base.)"""
        start = self.path / START
        if start.exists():
            return tensors_from_bytes(storage.read_directory(start)["model.safetensors"])
        base = Run.open(self.config.train.start_from)
        return tensors_from_bytes(base.best_checkpoint()["model.safetensors"])

    # log

    def log(self, kind: str, **values: Any) -> None:
        """Append one record to log.jsonl."""
        with (self.path / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, **values}) + "\n")

    def records(self) -> list[dict[str, Any]]:
        """Every whole record of the log; what a crash or a full disk cut short is left out."""
        path, found = self.path / "log.jsonl", []
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else ():
            with suppress(ValueError):
                found.append(json.loads(line))
        return [record for record in found if isinstance(record, dict) and "kind" in record]

    def best_look(self) -> dict[str, Any] | None:
        """The record of the best look at dev so far, by train.metric; the first of equals."""
        metric = self.config.train.metric
        sign = 1 if metric == "loss" else -1  # of a loss the smallest is the best
        looks = [record for record in self.records() if record["kind"] in ("dev", "average")]
        judged = [look for look in looks if metric in look]
        return min(judged, key=lambda look: sign * look[metric], default=None)

    def rewind_log(self, step: int) -> None:
        """Forget records of steps after this one: training will write them again."""
        kept = [r for r in self.records() if r.get("step", 0) <= step and r["kind"] != "average"]
        storage.write_text(self.path / "log.jsonl", "".join(json.dumps(r) + "\n" for r in kept))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process may train a run; the system frees the lock when that process ends, however it ends.

        Readers need no lock.
        """
        with storage.disk_faults_told(self.path):
            lock = storage.lock(self.path / "lock")
        if lock is None:
            raise UserError(f"{self.path}: another process is training this run")
        try:
            yield
        finally:
            lock.release()

    def sweep(self) -> None:
        """Remove what a killed process left half written."""
        for left in [*self.path.glob(".*.tmp"), *(self.path / "checkpoints").glob(".*.tmp")]:
            shutil.rmtree(left) if left.is_dir() else left.unlink()


def whole(x: Tensor) -> Tensor:
    """x as one tensor, however it is spread over processes."""
    full: Any = getattr(x, "full_tensor", None)
    return x if full is None else full()


def spread(x: Tensor, like: Tensor) -> Tensor:
    """The reverse: x where and as `like` is."""
    mesh: Any = getattr(like, "device_mesh", None)
    if mesh is None:
        return x.to(like.device)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(x.to(like.device), mesh, getattr(like, "placements", None))


def get_weights(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter once, on the CPU; tied ones under their first name."""
    return {name: whole(p.detach()).cpu().contiguous() for name, p in model.named_parameters()}


class Undrawn(TorchFunctionMode):
    """Build a model without drawing its weights, for weights that will be read from a file.

    Drawing them takes a third of the time that opening a run does. Only parameters are left as they
    are, which `set_weights` then fills, every one of them; buffers are computed as always.
    """

    DRAWS = (
        nn.init.kaiming_uniform_,
        nn.init.xavier_uniform_,
        nn.init.orthogonal_,
        nn.init.uniform_,
        nn.init.normal_,
        Tensor.uniform_,
        Tensor.normal_,
    )

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in self.DRAWS:
            tensor = args[0] if args else kwargs["tensor"]
            if isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter):
                return tensor
        return function(*args, **kwargs)


def set_weights(model: nn.Module, weights: Mapping[str, Tensor], where: str) -> None:
    """Copy weights in; names and shapes must be exactly the model's, and every number finite."""
    own = dict(model.named_parameters())
    if wrong := sorted(set(own) ^ set(weights)):
        raise Corrupt(f"{where}: the weights do not fit the config: {wrong[0]} is on one side only ({len(wrong)} such)")
    with torch.no_grad():
        for name, parameter in own.items():
            if parameter.shape != weights[name].shape:
                raise Corrupt(f"{where}: {name} is {tuple(weights[name].shape)}, the config says {tuple(parameter.shape)}")
            if not weights[name].isfinite().all():
                raise Corrupt(f"{where}: {name} holds numbers that are not finite")
            parameter.copy_(spread(weights[name], parameter))
