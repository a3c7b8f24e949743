"""A run is a folder: config, tokenizers, checkpoints, log. This file reads and writes it."""

import base64
import json
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

import regard
from regard import config as settings
from regard.config import Config, CustomConfig
from regard.data.corpus import Corpus, digest_of
from regard.data.held_out import read_held_out
from regard.data.pairs import Pair
from regard.display import html
from regard.errors import Failed, UserError, counted
from regard.files import ASIDE, append, disk_faults_told, remove, sync, write_text
from regard.files.holder import clear, holder, sign
from regard.files.lock import is_at
from regard.files.lock import lock as lock_file
from regard.files.reading import parse_json, read_bytes
from regard.models import Parts, Predictor, build_model
from regard.models.size import count_parameters, has_own_parts
from regard.runs import storage
from regard.runs.claim import Claim
from regard.runs.facts import check_facts
from regard.runs.header import Header, numbers_in, read_header
from regard.runs.log import read_entries, read_lines, some_entries
from regard.runs.pointer import NAME, pointer_text, read_pointer
from regard.runs.storage import Corrupt
from regard.runs.weights import Undrawn, adopt_weights, get_weights, set_weights
from regard.text import tokenizer as tokenizers
from regard.text.tokenizer import Tokenizer

RUN_FILES = {"config.toml", "tokenizer.json"}
WEIGHTS = {"model.safetensors", "raw.safetensors", "optimizer.safetensors"}
CHECKPOINT_FILES = {*WEIGHTS, "progress.json"}
START = "start"  # a folder of a fine-tuned run: the weights it starts from
FILES = re.compile(
    r"manifest\.json|config\.toml|best|log\.jsonl|curves\.png|samples\.txt|README\.md|"
    r"attention\.html"
)
"""The files of a run that are written again and again, or at its end."""
SHORTER = "shorter"
"""The best weights of a training that was then made longer: to use, not to go on from."""
CHECKPOINTS = re.compile(rf"step-\d+|averaged|{SHORTER}")
ATTEMPTS = 100  # at reading the best checkpoint while a training replaces it again and again


def _metric_words(metric: str) -> str:
    """The name of a metric for a person."""
    return metric.removeprefix("custom:").replace("_", " ")


class Run:
    """A training run: a folder with config, tokenizers, checkpoints and log.

    Open one with `Run.open(path)`.
    """

    def __init__(
        self,
        path: Path,
        config: Config,
        source: Tokenizer,
        target: Tokenizer,
        manifest: dict[str, Any],
    ) -> None:
        self.path = path
        self.config = config
        self.source = source
        self.target = target
        self.manifest = manifest
        self._locked: tuple[os.stat_result, os.stat_result] | None = None
        """Folder and lock file as they were when this process locked the run; None: it has not."""

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def _repr_html_(self) -> str:
        """For a notebook: what it is, its best on dev, its curve."""
        model = self.config.model
        data = self.config.data.path or "pairs from Python"
        width = f", width {model.width}" if hasattr(model, "width") else ""
        facts = f"{model.kind}{width}, on {data}"
        best = self.best_look()
        if best is None:
            facts += "; not evaluated yet"
        else:
            metric = self.config.train.metric
            facts += f"; dev {_metric_words(metric)} {best[metric]:.4f} at step {best['step']:,}"

        picture = ""
        with suppress(OSError):  # none has been drawn yet
            curves = read_bytes(self.path / "curves.png", storage.SMALL)
            content = base64.b64encode(curves).decode()
            picture = (
                f'<img alt="learning curves" style="max-width: 100%" '
                f'src="data:image/png;base64,{content}">'
            )
        return f"<p><b>{html(str(self.path))}</b>: {html(facts)}</p>{picture}"

    @classmethod
    def create(
        cls,
        claim: Claim,
        config: Config,
        source: Tokenizer,
        target: Tokenizer,
        facts: dict[str, Any],
    ) -> Self:
        """Turn the claim's folder aside into the run, in one rename.

        That folder may already hold the encoded data. facts: what the manifest tells besides.
        """
        aside = claim.aside
        files = {
            "config.toml": settings.to_toml(settings.to_settings(config)).encode(),
            "tokenizer.json": tokenizers.both_as_json(source, target).encode(),
        }
        versions = {"regard": regard.__version__, "torch": str(torch.__version__)}
        pairs = sorted((aside / "data").glob("*.jsonl"))
        held_out = {file.name: storage.sum_of(file) for file in pairs}
        more = {"held_out": held_out} if held_out else {}
        storage.write_files(aside, files, {**versions, **facts, **more})
        (aside / "checkpoints").mkdir()

        for path in [*aside.rglob("*"), aside]:
            sync(path)
        claim.fill()
        return cls.open(claim.folder)

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open the run in a folder.

        Raises UserError if the folder is not a run, or is damaged.
        """
        path = Path(path)
        if not path.exists():
            raise UserError(f"{path}: no such run (a run is a folder written by `regard train`)")
        if not (path / storage.MANIFEST).exists():
            raise UserError(f"{path}: not a run: it has no {storage.MANIFEST}")
        missing = RUN_FILES - set(storage.read_directory(path, RUN_FILES))
        if missing:
            raise Corrupt(f"{path}: not a run: it has no {' and no '.join(sorted(missing))}")

        source, target = tokenizers.load_tokenizers(path / "tokenizer.json")
        config = settings.load_config(path / "config.toml")
        manifest = storage.read_manifest(path)
        check_facts(manifest, path / storage.MANIFEST)
        return cls(path, config, source, target, manifest)

    def change(self, config: Config) -> None:
        """Give the run another config.

        The manifest first allows both, so that no crash leaves a file it does not know.
        """
        content = settings.to_toml(settings.to_settings(config)).encode()
        for also_old in (True, False):
            storage.write_manifest(
                self.path, self.manifest, "config.toml", content, also_old=also_old
            )
            write_text(self.path / "config.toml", content.decode())
        self.config = config

    def corpus(self, split: str) -> Corpus:
        """The encoded pairs of train or dev, if they are still what training encoded.

        This reads all of them once: 10 million pairs of 50 tokens, a gigabyte, take two seconds.
        """
        corpus = Corpus.open(self.path / "data" / split)
        expected = self.config.data.digest if split == "train" else corpus.digest
        if digest_of(corpus.path, corpus.dtype) != expected:
            raise Corrupt(
                f"{corpus.path}: changed or damaged (its SHA-256 is not the one that training "
                f"noted): copy it from a sound copy of the run, or train a new run"
            )
        corpus.check_ids(self.source.size, self.target.size)
        return corpus

    def held_out(self, split: str) -> list[Pair] | None:
        """The pairs of dev or test that a run on pairs from Python keeps; None: it has none."""
        path = self.path / "data" / f"{split}.jsonl"
        noted = self.manifest.get("held_out", {}).get(path.name)
        with disk_faults_told(path):
            if noted is not None and storage.sum_of(path) != noted:
                raise Corrupt(
                    f"{path}: changed or damaged (its SHA-256 is not the one in "
                    f"{storage.MANIFEST}): copy it from a sound copy of the run"
                )
            return read_held_out(path.parent, split, self.config.data.features)

    # weights

    def checkpoints(self) -> list[str]:
        """Names of the checkpoints, oldest first."""
        folders = (self.path / "checkpoints").glob("step-*")
        return sorted(
            folder.name
            for folder in folders
            if folder.name.removeprefix("step-").isdigit() and folder.is_dir()
        )

    @property
    def best(self) -> str:
        """Name of the best checkpoint."""
        try:
            return read_pointer(self.path / "best")
        except FileNotFoundError:
            raise UserError(
                f"{self.path}: no checkpoint yet; train it first (regard train … --resume)"
            ) from None
        except OSError as error:
            raise Corrupt(f"{self.path / 'best'}: {error.strerror}") from error
        except ValueError:
            names = ", ".join(self.checkpoints()) or "none"
            raise Corrupt(
                f"{self.path / 'best'}: damaged; write the name of a checkpoint alone into it "
                f"(available: {names}), or let `regard train … --resume` choose"
            ) from None

    @best.setter
    def best(self, name: str) -> None:
        write_text(self.path / "best", pointer_text(name))

    def checkpoint(self, name: str) -> dict[str, bytes]:
        """The files of a checkpoint, verified against its manifest."""
        path = self.path / "checkpoints" / name
        if NAME.fullmatch(name) is None or not path.is_dir():
            raise UserError(
                f"{self.path}: no checkpoint {name!r} (available: "
                f"{', '.join(self.checkpoints()) or 'none'})"
            )
        return self._read_weights(path)

    def _read_weights(self, path: Path) -> dict[str, bytes]:
        """The files of a folder with weights, if these are of the size that the config asks for."""
        for name in WEIGHTS & set(storage.read_manifest(path)["files"]):
            self._check_size(path / name, read_header(path / name))
        files = storage.read_directory(path, CHECKPOINT_FILES)
        if "model.safetensors" not in files:
            raise Corrupt(f"{path}: no model.safetensors in {storage.MANIFEST}")
        return files

    def _check_size(self, where: Path, header: Header) -> None:
        """Refuse weights that are fewer or more than the config's model has.

        So neither a config nor a file can ask for more memory than the other one accounts for.
        """
        count = self._parameters()
        if count is None:
            return
        stored = numbers_in(header)
        if where.name == "optimizer.safetensors":  # up to three numbers a parameter, and counters
            fits = stored <= 4 * count
        else:
            model = self.config.model
            assert not isinstance(model, CustomConfig)
            objective = self.config.train.objective
            encoder_layers = model.encoder_layers if objective != "causal" else 0
            decoder_layers = model.decoder_layers if objective != "masked" else 0
            fits = stored == count and len(header) >= encoder_layers + decoder_layers
        if not fits:
            raise Corrupt(
                f"{where}: the weights do not match the config: {counted(stored, 'number')} in "
                f"{counted(len(header), 'tensor')}, for a model of {counted(count, 'parameter')}"
            )

    def _parameters(self) -> int | None:
        """How many parameters the model has, by its config; None: parts are the user's own."""
        if has_own_parts(self.config.model):
            return None
        config = self.config
        sizes = (self.source.size, self.target.size)
        return count_parameters(config.model, *sizes, config.train.objective)

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

    def new_model(self, parts: Parts = None) -> Predictor:
        """A model with this run's config and new random weights."""
        self._check_new_size()
        return self._build(parts)

    def _build(self, parts: Parts) -> Predictor:
        config = self.config
        sizes = (self.source.size, self.target.size)
        return build_model(config.model, *sizes, parts, config.train.objective)

    def _check_new_size(self) -> None:
        """Refuse to build a larger model than the run's weights are of, or its manifest says."""
        for name in reversed(["averaged", *self.checkpoints()]):
            file = self.path / "checkpoints" / name / "model.safetensors"
            try:
                header = read_header(file)
            except Corrupt:
                continue  # whoever reads the weights will tell
            self._check_size(file, header)
            return

        count = self._parameters()
        noted = self.manifest.get("parameters")
        if count is not None and noted is not None and count > noted:
            raise Corrupt(
                f"{self.path / 'config.toml'}: a model of {count:,} parameters, but "
                f"{storage.MANIFEST} says {counted(noted, 'parameter')}"
            )

    def model(self, name: str = "best", parts: Parts = None) -> Predictor:
        """The trained model of a checkpoint, in eval mode."""
        if name == "best":
            name, files = self._read_best()
        else:
            files = self.checkpoint(name)
        with Undrawn():
            model = self._build(parts)
        set_weights(model, tensors_from_bytes(files["model.safetensors"]), f"{self.path}, {name}")
        return model.eval()

    def keep_start(self, folder: Path) -> None:
        """Write this run's best weights into the folder of a new run, which will start from them.

        So the new run needs this one no longer, even if it is killed before its first checkpoint.
        """
        weights = self.best_checkpoint()["model.safetensors"]
        storage.write_directory(folder / START, {"model.safetensors": weights})

    def hand_on(self, model: Predictor, folder: Path) -> float:
        """The same for a run with another objective, whose model has only some of the weights.

        model: that of the new run, with random weights. Returns how much of it this run gives.
        """
        weights = tensors_from_bytes(self.best_checkpoint()["model.safetensors"])
        share = adopt_weights(model, weights)
        content = tensors_to_bytes(get_weights(model))
        storage.write_directory(folder / START, {"model.safetensors": content})
        return share

    def start_weights(self) -> dict[str, Tensor]:
        """The weights that fine-tuning starts from."""
        start = self.path / START
        if start.exists():
            return tensors_from_bytes(self._read_weights(start)["model.safetensors"])
        base = Run.open(self.config.train.start_from)  # a run that an older version prepared
        return tensors_from_bytes(base.best_checkpoint()["model.safetensors"])

    # log

    def log(self, kind: str, **values: Any) -> None:
        """Append one entry to log.jsonl."""
        append(self.path / "log.jsonl", json.dumps({"kind": kind, **values}) + "\n")

    def records(self, *kinds: str) -> list[dict[str, Any]]:
        """The entries of the log, or those of these kinds, but for what a crash cut short.

        Of more than 100,000 entries, evenly some.
        """
        return some_entries(self.path / "log.jsonl", kinds)

    def looks(self) -> Iterator[dict[str, Any]]:
        """The log entries of all evaluations on dev."""
        return read_entries(self.path / "log.jsonl", ("dev", "average"))

    def best_look(self) -> dict[str, Any] | None:
        """The log entry of the best evaluation on dev, by train.metric; the first of equals."""
        metric = self.config.train.metric
        if self._points_at(SHORTER):
            look = self.shorter().get("look")
            needed = ("step", "loss", metric)
            is_sound = isinstance(look, dict) and all(
                type(look.get(name)) in (int, float) for name in needed
            )
            return look if is_sound else None
        sign = 1 if metric == "loss" else -1  # of a loss the smallest is the best
        judged = (entry for entry in self.looks() if math.isfinite(entry.get(metric, math.nan)))
        return min(judged, key=lambda look: sign * look[metric], default=None)

    def shorter(self) -> dict[str, Any]:
        """What is noted of a training that was made longer: its best dev scores; {}: nothing."""
        try:
            files = storage.read_directory(self.path / "checkpoints" / SHORTER, {"progress.json"})
            notes = parse_json(files["progress.json"])
        except (OSError, UserError, KeyError, ValueError):
            return {}
        return notes if isinstance(notes, dict) else {}

    def _points_at(self, name: str) -> bool:
        """Whether this is the best checkpoint."""
        try:
            return self.best == name
        except UserError:
            return False

    def rewind_log(self, step: int) -> None:
        """Forget records of steps after this one: training will write them again."""
        log = self.path / "log.jsonl"
        is_changed = log.is_symlink() or not log.exists()
        kept = bytearray()
        for line, entry in read_lines(log):
            if entry is None or entry.get("step", 0) > step or entry["kind"] == "average":
                is_changed = True
                continue
            kept += line
            if not line.endswith(b"\n"):
                is_changed = True
                kept += b"\n"
        if is_changed:
            write_text(log, kept.decode())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let only this process train the run. Readers need no lock.

        The system frees the lock when the process ends, however it ends. Who holds it may ask
        again.
        """
        if self._locked is not None:
            yield
            return
        with disk_faults_told(self.path):
            lock = lock_file(self._lock_file)
        if lock is None:
            raise UserError(
                f"{self.path}: another process is training this run{holder(self._lock_file)}"
            )
        sign(self._lock_file)
        lock_status = self._lock_file.stat()
        self._locked = (self.path.stat(), lock_status)
        try:
            if storage.read_manifest(self.path) != self.manifest:
                raise UserError(
                    f"{self.path}: another process has just changed this run; try again"
                )
            yield
        finally:
            self._locked = None
            if is_at(lock_status, self._lock_file):  # not that of another run
                clear(self._lock_file)
            lock.release()

    @property
    def _lock_file(self) -> Path:
        return self.path / "lock"

    def check_place(self) -> None:
        """Raise Failed if the folder is not the one any more that this process has locked.

        It may have been moved or deleted, and another run may stand in its place.
        """
        if self._locked is None:
            return
        for path, before in zip((self.path, self._lock_file), self._locked, strict=True):
            if not is_at(before, path):
                raise Failed(
                    f"{path}: moved, deleted or replaced while the run was being trained, so "
                    f"training stopped; if the run still exists, resume it where it is now"
                )

    def sweep(self) -> None:
        """Remove what a killed process left half written.

        Only files and checkpoints of this run: another run may just be prepared inside its folder.
        """
        for folder, names in ((self.path, FILES), (self.path / "checkpoints", CHECKPOINTS)):
            for path in folder.glob(".*.tmp"):
                aside = ASIDE.fullmatch(path.name)
                if aside is not None and names.fullmatch(aside["name"]):
                    remove(path)
