"""A run without the heads that it can spare."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from regard.bounds import Bounded, setting
from regard.errors import UserError
from regard.files import copy_folder
from regard.inference.loading import load_translator
from regard.inference.translator import Translator
from regard.inspection.evidence import Head, batches_of, heads, heads_of, loss_without, without
from regard.models.parts import Parts
from regard.recipes.outcome import pair_of
from regard.runs import storage
from regard.runs.card import write_card
from regard.runs.claim import Claim
from regard.runs.run import Run
from regard.scoring import bleu, bleu_applies, exact_match


@dataclass(frozen=True)
class _Limits(Bounded):
    """What a run without some heads may lose."""

    tolerance: float = setting(0.01, "Relative increase in perplexity.", least=0, most=1000)
    points: float = setting(0.5, "Drop in BLEU and exact match.", least=0, most=100)


@torch.inference_mode()
def prune(
    run: str | Path,
    out: str | Path,
    pairs: Sequence[tuple[str, str]] = (),
    tolerance: float = 0.01,
    points: float = 0.5,
    device: str = "auto",
    parts: Parts = None,
) -> Run:
    """Write a copy of a run in which the heads that it can spare are silent.

    `pairs` judge what can be spared; by default, 500 pairs of the validation set. The least needed
    heads go first, as long as perplexity grows by no more than the share `tolerance`; some come
    back until BLEU and exact match (0 to 100) have fallen by no more than `points`. The new run's
    `manifest["pruned"]` lists the heads and the scores before and after. In all checkpoints the
    output weights of those heads become zero: shapes and speed stay, and further training may use
    the heads again.
    """
    limits = _Limits(tolerance, points)
    old = Run.open(run)
    out = Path(out)
    if old.config.train.objective != "translate":
        raise UserError(
            f"{old.path}: trained with train.objective={old.config.train.objective}, but heads are "
            f"pruned by how well dev pairs are translated; prune a run with "
            f"train.objective=translate"
        )
    translator = load_translator(old, device=device, parts=parts)
    translator.settle()  # the heads are silenced in this very model, so it stays where it is
    all_heads = heads_of(translator.model)
    if out.exists():
        raise UserError(f"{out} already exists: choose another folder")
    if not all_heads or not all(attention.projections for _, attention in all_heads.values()):
        raise UserError(
            f"{old.path}: this model has no heads to turn off (an RNN has at most one, without "
            f"weights)"
        )

    pairs = pairs or _validation_pairs(old, 500)
    judge = _Judge(translator, pairs, old.config.data.bleu_tokenize)
    before = judge.scores([])
    silent = judge.spare_heads(before["loss"] + math.log1p(limits.tolerance))
    after = judge.scores(silent)
    while silent and _fell_too_far(before, after, limits.points):
        silent.pop()
        after = judge.scores(silent)

    columns = []
    for head in silent:
        name, attention = all_heads[head._replace(lost=0.0)]
        columns.append(_HeadColumns(f"{name}.output.weight", attention.heads, head.head))
    facts = {
        "of": len(all_heads),
        "heads": [head._asdict() for head in silent],
        "before": before,
        "after": after,
    }
    return _write(old, out, columns, facts)


class _Judge:
    """Judges a model on the same pairs, with some of its heads silent."""

    def __init__(
        self, translator: Translator, pairs: Sequence[tuple[str, str]], tokenize: str
    ) -> None:
        self._translator = translator
        self._pairs = pairs
        self._tokenize = tokenize  # sacreBLEU's tokenizer
        self._references = [[target] for _, target in pairs]
        self._batches = batches_of(translator, pairs)

    def scores(self, silent: list[Head]) -> dict[str, float]:
        """Loss, BLEU (where it says anything) and exact match (0 to 100) without these heads."""
        with without(self._translator.model, silent):
            results = self._translator.translate(source for source, _ in self._pairs)
            answers = [result.text for result in results]
        scores = {"loss": self._loss(silent)}
        if bleu_applies(self._references, self._tokenize):
            scores["bleu"] = bleu(answers, self._references, self._tokenize).score
        scores["exact_match"] = 100 * exact_match(answers, self._references)
        return scores

    def spare_heads(self, highest_loss: float) -> list[Head]:
        """The heads without which, all together, the loss stays low enough; least needed first."""
        silent: list[Head] = []
        for head in sorted(heads(self._translator, self._pairs), key=lambda head: head.lost):
            if self._loss([*silent, head]) <= highest_loss:
                silent.append(head)
        return silent

    def _loss(self, silent: list[Head]) -> float:
        return loss_without(self._translator.model, self._batches, silent)


def _fell_too_far(before: dict[str, float], after: dict[str, float], points: float) -> bool:
    """Whether BLEU or exact match has fallen by more than so many points."""
    return any(after[name] < before[name] - points for name in before if name != "loss")


def _validation_pairs(run: Run, count: int) -> list[tuple[str, str]]:
    """The first pairs of the run's validation set, as text."""
    corpus = run.corpus("dev")
    pairs = [pair_of(run, corpus, row) for row in range(min(count, len(corpus)))]
    return [(pair.located, pair.targets[0]) for pair in pairs]


class _HeadColumns(NamedTuple):
    """The columns of an output matrix (D, H · D / H) that read one head."""

    weight: str  # name of the matrix in a checkpoint
    heads: int  # H
    head: int

    def clear(self, weights: dict[str, Tensor]) -> None:
        """Make them zero."""
        by_head = weights[self.weight].unflatten(1, (self.heads, -1))  # (D, H, D / H), a view
        by_head[:, self.head] = 0


def _write(old: Run, out: Path, columns: list[_HeadColumns], facts: dict[str, Any]) -> Run:
    """Write a copy of a run without these heads, whole or not at all."""
    with Claim.take(out) as claim:
        aside = claim.aside
        copy_folder(old.path, aside, without=("lock", "tensorboard"))
        for checkpoint in (aside / "checkpoints").iterdir():
            _silence(checkpoint, columns)

        manifest = storage.read_manifest(aside) | {"pruned": facts}
        config = (aside / "config.toml").read_bytes()
        storage.write_manifest(aside, manifest, "config.toml", config, also_old=False)
        claim.fill()

    run = Run.open(out)
    note = (
        f"Pruned from {old.path.name}: {len(columns)} of {facts['of']} heads are turned off; "
        f"manifest.json lists them."
    )
    write_card(run, note)
    return run


def _silence(checkpoint: Path, columns: list[_HeadColumns]) -> None:
    """Clear the columns of silent heads in the weights of a checkpoint."""
    files = storage.read_directory(checkpoint)
    for name in ("model.safetensors", "raw.safetensors"):
        if name in files:
            weights = tensors_from_bytes(files[name])
            for head_columns in columns:
                head_columns.clear(weights)
            files[name] = tensors_to_bytes(weights)
    storage.write_directory(checkpoint, files)
