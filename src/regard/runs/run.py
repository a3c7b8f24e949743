"""A run is a folder: config, tokenizers, checkpoints, log. This file reads and writes it."""

import base64
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import load as tensors_from_bytes
from torch import Tensor

import regard
from regard import config as settings
from regard.config import Config
from regard.display import html
from regard.errors import UserError
from regard.models import Parts, Seq2Seq, build_model
from regard.runs import storage
from regard.runs.claim import Claim
from regard.runs.storage import Corrupt
from regard.runs.weights import Undrawn, set_weights
from regard.text import tokenizer as tokenizers
from regard.text.tokenizer import Tokenizer

START = "start"  # a folder of a fine-tuned run: the weights it starts from
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
        curves = self.path / "curves.png"
        if curves.exists():
            content = base64.b64encode(curves.read_bytes()).decode()
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
        tokenizers.save_tokenizers(aside / "tokenizer.json", source, target)
        files = {
            "config.toml": settings.to_toml(settings.to_settings(config)).encode(),
            "tokenizer.json": (aside / "tokenizer.json").read_bytes(),
        }
        versions = {"regard": regard.__version__, "torch": str(torch.__version__)}
        storage.write_files(aside, files, {**versions, **facts})
        (aside / "checkpoints").mkdir()

        for path in [*aside.rglob("*"), aside]:
            storage.sync(path)
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
        missing = {"config.toml", "tokenizer.json"} - set(storage.read_directory(path))
        if missing:
            raise Corrupt(f"{path}: not a run: it has no {' and no '.join(sorted(missing))}")

        source, target = tokenizers.load_tokenizers(path / "tokenizer.json")
        config = settings.load_config(path / "config.toml")
        return cls(path, config, source, target, storage.read_manifest(path))

    def change(self, config: Config) -> None:
        """Give the run another config.

        The manifest first allows both, so that no crash leaves a file it does not know.
        """
        content = settings.to_toml(settings.to_settings(config)).encode()
        for also_old in (True, False):
            storage.write_manifest(
                self.path, self.manifest, "config.toml", content, also_old=also_old
            )
            storage.write_text(self.path / "config.toml", content.decode())
        self.config = config

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
            return (self.path / "best").read_text().strip()
        except FileNotFoundError:
            raise UserError(
                f"{self.path}: no checkpoint yet; train it first (regard train … --resume)"
            ) from None

    def checkpoint(self, name: str) -> dict[str, bytes]:
        """The files of a checkpoint, verified against its manifest."""
        path = self.path / "checkpoints" / name
        if Path(name).name != name or not path.is_dir():
            raise UserError(
                f"{self.path}: no checkpoint {name!r} (available: "
                f"{', '.join(self.checkpoints()) or 'none'})"
            )
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
        """A model with this run's config and new random weights."""
        return build_model(self.config.model, self.source.size, self.target.size, parts)

    def model(self, name: str = "best", parts: Parts = None) -> Seq2Seq:
        """The trained model of a checkpoint, in eval mode."""
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
        """The weights that fine-tuning starts from."""
        start = self.path / START
        if start.exists():
            return tensors_from_bytes(storage.read_directory(start)["model.safetensors"])
        base = Run.open(self.config.train.start_from)  # a run that an older version prepared
        return tensors_from_bytes(base.best_checkpoint()["model.safetensors"])

    # log

    def log(self, kind: str, **values: Any) -> None:
        """Append one entry to log.jsonl."""
        with (self.path / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, **values}) + "\n")

    def records(self) -> list[dict[str, Any]]:
        """All entries of the log, without those cut short by a crash or a full disk."""
        path = self.path / "log.jsonl"
        if not path.exists():
            return []
        records = []
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
            with suppress(ValueError):
                record = json.loads(line)
                if isinstance(record, dict) and "kind" in record:
                    records.append(record)
        return records

    def best_look(self) -> dict[str, Any] | None:
        """The log entry of the best evaluation on dev, by train.metric; the first of equals."""
        metric = self.config.train.metric
        sign = 1 if metric == "loss" else -1  # of a loss the smallest is the best
        looks = [record for record in self.records() if record["kind"] in ("dev", "average")]
        judged = [look for look in looks if metric in look]
        return min(judged, key=lambda look: sign * look[metric], default=None)

    def rewind_log(self, step: int) -> None:
        """Forget records of steps after this one: training will write them again."""
        kept = [
            record
            for record in self.records()
            if record.get("step", 0) <= step and record["kind"] != "average"
        ]
        lines = [json.dumps(record) + "\n" for record in kept]
        storage.write_text(self.path / "log.jsonl", "".join(lines))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let only this process train the run. Readers need no lock.

        The system frees the lock when the process ends, however it ends.
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
        for path in [*self.path.glob(".*.tmp"), *(self.path / "checkpoints").glob(".*.tmp")]:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
