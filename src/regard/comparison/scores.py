"""What is kept of a run that was trained and scored."""

import hashlib
import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

import regard
from regard.comparison.cells import Cell
from regard.comparison.experiment import METRICS
from regard.config import Settings, to_settings
from regard.data.pairs import Pair
from regard.errors import UserError
from regard.models.parts import Parts
from regard.nn.devices import pick_device
from regard.recipes.evaluation import evaluate, judged_pairs, reference_losses
from regard.recipes.preparing import seen_in_training
from regard.recipes.text_evaluation import evaluate_texts, text_losses
from regard.runs.run import Run

POINTS = 400
"""Points of a learning curve, at most."""


@dataclass(frozen=True)
class Scores:
    """A cell that was trained and scored."""

    system: str
    seed: int
    key: str
    run: str
    """The folder of the run."""
    settings: Settings
    """All settings of the run, defaults included."""
    values: Mapping[str, float | None]
    """Of test, by metric."""
    signature: str | None
    tokenize: str
    """sacreBLEU's tokenizer for BLEU."""
    parameters: int
    steps: int
    epochs: float
    tokens: float
    """That training read, without padding."""
    seconds: float
    """Of training."""
    decoding: float | None
    """Tokens a second."""
    curve: list[tuple[int, float, float]]
    """Steps, seconds of training, loss on dev."""
    seen_in_training: int | None
    """Test sources that are in the training data; None: unknown."""
    device: str
    machine: Mapping[str, Any]
    examples: int
    sources: list[str] = field(default_factory=list)
    references: list[list[str]] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    losses: list[Sequence[float]] = field(default_factory=list)
    """Of each example: its loss, its right tokens, and its tokens."""
    digest: str = ""
    """A hash of the texts that it was scored on."""


def score(
    run: Run, cell: Cell, split: str, *, base: Run | None = None, parts: Parts = None
) -> Scores:
    """Score a finished run by the search of a cell; base: the pretraining that it started from."""
    searching = Run(run.path, run.config, run.source, run.target, run.manifest)
    searching.config = replace(run.config, search=cell.config.search)
    device = cell.config.train.device
    trained = trained_only(run, cell)
    if run.config.train.objective != "translate":
        return _scored_texts(run, trained, split, device, parts)

    evaluation = evaluate(searching, split=split, device=device, parts=parts)
    report = evaluation.report
    pairs = evaluation.pairs
    return replace(
        trained,
        values=_numbers(report.as_dict()) | evaluation.metrics,
        signature=report.bleu_signature,
        tokenize=evaluation.tokenize,
        decoding=report.tokens_per_second,
        seen_in_training=_seen_by_both(evaluation.seen_in_training, base, pairs),
        examples=report.examples,
        sources=[pair.source for pair in pairs],
        references=[list(answers) for answers in evaluation.references],
        answers=evaluation.answers,
        losses=list(reference_losses(run, pairs, device=device, parts=parts)),
        digest=_digest(text for pair in pairs for text in (pair.source, *pair.targets)),
    )


def _scored_texts(run: Run, trained: Scores, split: str, device: str, parts: Parts) -> Scores:
    """Score a language model."""
    report = evaluate_texts(run, split=split, device=device, parts=parts)
    pairs = list(judged_pairs(run, None, {}, split))
    return replace(
        trained,
        values=_numbers(report.as_dict()),
        seen_in_training=seen_in_training(run.config.data, pairs),
        examples=report.texts,
        losses=list(text_losses(run, pairs, device=device, parts=parts)),
        digest=_digest(pair.source for pair in pairs),
    )


def _seen_by_both(seen: int | None, base: Run | None, pairs: list[Pair]) -> int | None:
    """How many sources training has seen, or the pretraining before it, whichever saw more."""
    if base is None:
        return seen
    before = seen_in_training(base.config.data, pairs)
    return None if seen is None or before is None else max(seen, before)


def _digest(texts: Iterable[str]) -> str:
    """A hash of texts, in their order."""
    known = hashlib.sha256()
    for text in texts:
        known.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return known.hexdigest()


def trained_only(run: Run, cell: Cell) -> Scores:
    """What is kept of a run that only others start from: how it was trained, without scores."""
    return Scores(
        **_identity(cell, run),
        **_of_training(run),
        values={},
        signature=None,
        tokenize=run.config.data.bleu_tokenize,
        decoding=None,
        seen_in_training=None,
        examples=0,
    )


def _identity(cell: Cell, run: Run) -> dict[str, Any]:
    config = run.config
    return {
        "system": cell.system,
        "seed": cell.seed,
        "key": cell.key,
        "run": run.path.name,
        "settings": to_settings(cell.config),
        "parameters": int(run.manifest["parameters"]),
        "device": _device_name(config.train.device),
        "machine": machine(config.train.threads),
    }


def _numbers(values: Mapping[str, Any]) -> dict[str, float | None]:
    """The scores among the fields of a report."""
    known = {name: values[name] for name in METRICS if name in values}
    return {name: None if value is None else float(value) for name, value in known.items()}


def _of_training(run: Run) -> dict[str, Any]:
    """How long the run was trained, and its learning curve."""
    entries = run.records("train", "dev")
    if not entries:
        raise UserError(
            f"{run.path}: its log.jsonl is gone or damaged, so nobody knows how long it was "
            f"trained: delete this folder, and the run is trained again"
        )
    trained = [entry for entry in entries if entry["kind"] == "train"]
    last: dict[str, Any] = trained[-1] if trained else {}
    corpus = run.corpus("train")
    tokens = int(corpus.target_lengths.sum(dtype=np.int64))
    if run.config.train.objective == "translate":
        tokens += int(corpus.source_lengths.sum(dtype=np.int64))
    epochs = float(last.get("epoch", 0.0))
    return {
        "steps": int(last.get("step", 0)),
        "epochs": epochs,
        "tokens": epochs * tokens,
        "seconds": float(last.get("seconds", 0.0)),
        "curve": _curve(entries),
    }


def _curve(entries: list[dict[str, Any]]) -> list[tuple[int, float, float]]:
    """Steps, seconds of training and loss of each look at dev."""
    seconds = 0.0
    points = []
    for entry in entries:
        if entry["kind"] == "train":
            seconds = float(entry["seconds"])
        elif math.isfinite(entry["loss"]):
            points.append((int(entry["step"]), seconds, float(entry["loss"])))
    every = max(1, -(-len(points) // POINTS))
    return points[:-1:every] + points[-1:]


def machine(threads: int) -> dict[str, Any]:
    """What computes here."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "threads": threads,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "regard": regard.__version__,
    }


def _processor() -> str:
    """The name of the processor, as far as this system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _device_name(device: str) -> str:
    """The name of the device that a run was trained on."""
    place = pick_device(device)
    return torch.cuda.get_device_name(place) if place.type == "cuda" else place.type
