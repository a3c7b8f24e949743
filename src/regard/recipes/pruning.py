"""A run without the heads that it can spare."""

import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes

from regard.data.corpus import Corpus
from regard.errors import UserError
from regard.inference.translator import load
from regard.inspection.evidence import Head, batches_of, heads, heads_of, loss_without, without
from regard.nn import Attention
from regard.runs import storage
from regard.runs.card import write_card
from regard.runs.run import Run
from regard.scoring import bleu, exact_match


@torch.inference_mode()
def prune(
    run: str | Path,
    out: str | Path,
    pairs: Sequence[tuple[str, str]] = (),
    tolerance: float = 0.01,
    points: float = 0.5,
    device: str = "auto",
) -> Run:
    """Write a copy of a run in which the heads that it can spare are silent.

    `pairs` judge what can be spared; by default, 500 pairs of the validation set. The least needed
    heads go first, as long as perplexity grows by no more than the share `tolerance`; some come
    back until BLEU and exact match (0 to 100) have fallen by no more than `points`. The new run's
    `manifest["pruned"]` lists the heads and the scores before and after. In all checkpoints the
    output weights of those heads become zero: shapes and speed stay, and further training may use
    the heads again.
    """
    old = Run.open(run)
    out = Path(out)
    translator = load(old, device=device)
    translator.settle()  # the heads are silenced in this very model, so it stays where it is
    model = translator.model
    all_heads = heads_of(model)
    if out.exists():
        raise UserError(f"{out} exists: name a new folder")
    if not all_heads or not all(attention.projections for _, attention in all_heads.values()):
        raise UserError(
            f"{old.path}: an RNN has at most one head, and that one has no weights to silence"
        )

    pairs = pairs or _validation_pairs(old, 500)
    references = [[target] for _, target in pairs]
    batches = batches_of(translator, pairs)

    def scores(silent: list[Head]) -> dict[str, float]:
        with without(model, silent):
            results = translator.translate(source for source, _ in pairs)
            answers = [result.text for result in results]
        return {
            "loss": loss_without(model, batches, silent),
            "bleu": bleu(answers, references, old.config.data.bleu_tokenize).score,
            "exact_match": 100 * exact_match(answers, references),
        }

    before = scores([])
    highest_loss = before["loss"] + math.log1p(tolerance)
    silent: list[Head] = []
    for head in sorted(heads(translator, pairs), key=lambda head: head.lost):
        if loss_without(model, batches, [*silent, head]) <= highest_loss:
            silent.append(head)

    def fell_too_far(after: dict[str, float]) -> bool:
        return any(after[name] < before[name] - points for name in ("bleu", "exact_match"))

    after = scores(silent)
    while silent and fell_too_far(after):
        silent.pop()
        after = scores(silent)

    facts = {
        "of": len(all_heads),
        "heads": [head._asdict() for head in silent],
        "before": before,
        "after": after,
    }
    places = [(head.head, *all_heads[head._replace(lost=0.0)]) for head in silent]
    return _write(old, out, places, facts)


def _validation_pairs(run: Run, count: int) -> list[tuple[str, str]]:
    """The first pairs of the run's validation set, as text."""
    corpus = Corpus.open(run.path / "data" / "dev")
    rows = islice(iter(corpus), count)
    return [(run.source.decode(source), run.target.decode(target)) for source, target in rows]


def _write(
    old: Run, out: Path, gone: list[tuple[int, str, Attention]], facts: dict[str, Any]
) -> Run:
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=out.parent, prefix="."
    ) as folder:  # so that it is whole or absent
        aside = shutil.copytree(
            old.path,
            Path(folder) / out.name,
            ignore=shutil.ignore_patterns("lock", "tensorboard", ".*"),
        )
        for checkpoint in (aside / "checkpoints").iterdir():
            files = storage.read_directory(checkpoint)
            for file in {"model.safetensors", "raw.safetensors"} & set(files):
                weights = tensors_from_bytes(files[file])
                for head, name, attention in gone:
                    weights[f"{name}.output.weight"].unflatten(1, (attention.heads, -1))[
                        :, head
                    ] = 0
                files[file] = tensors_to_bytes(weights)
            storage.write_directory(checkpoint, files)
        manifest, config = (
            storage.read_manifest(aside) | {"pruned": facts},
            (aside / "config.toml").read_bytes(),
        )
        storage.write_manifest(aside, manifest, "config.toml", config, also_old=False)
        os.rename(aside, out)
    write_card(run := Run.open(out))
    with (out / "README.md").open("a", encoding="utf-8") as card:
        card.write(
            f"\nPruned from {old.path.name}: {len(gone)} of {facts['of']} heads are silent; "
            f"manifest.json names them.\n"
        )
    return run
