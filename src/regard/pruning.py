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

from regard import storage
from regard.card import write_card
from regard.data.corpus import Corpus
from regard.errors import UserError
from regard.evidence import Head, batches_of, heads, heads_of, loss_without, without
from regard.nn import Attention
from regard.run import Run
from regard.scoring import bleu, exact_match
from regard.translator import load


@torch.inference_mode()
def prune(
    run: str | Path,
    out: str | Path,
    pairs: Sequence[tuple[str, str]] = (),
    tolerance: float = 0.01,
    points: float = 0.5,
    device: str = "auto",
) -> Run:
    """Write a run without the heads that `pairs` (none: 500 of its dev pairs) can spare; the least needed are tried first.

    Perplexity may grow by the share `tolerance`, BLEU and exact match (0 to 100) fall by `points`; the new `manifest["pruned"]`
    has the heads and the scores before and after. In all checkpoints the weights with which those heads speak become zero:
    shapes and speed stay, and training on may wake the heads again.
    """
    old, out = Run.open(run), Path(out)
    translator = load(old, device=device)
    translator.settle()  # the heads are silenced in this very model, so it stays where it is
    model, found = translator.model, heads_of(translator.model)
    if out.exists():
        raise UserError(f"{out} exists: name a new folder")
    if not found or not all(attention.projections for _, attention in found.values()):
        raise UserError(f"{old.path}: an RNN has at most one head, and that one has no weights to silence")
    rows = () if pairs else islice(iter(Corpus.open(old.path / "data" / "dev")), 500)
    pairs = pairs or [(old.source.decode(source), old.target.decode(target)) for source, target in rows]
    batches, references = batches_of(translator, pairs), [[target] for _, target in pairs]

    def scores(gone: list[Head]) -> dict[str, float]:
        with without(model, gone):
            answers = [result.text for result in translator.translate(source for source, _ in pairs)]
        right = {"bleu": bleu(answers, references).score, "exact_match": 100 * exact_match(answers, references)}
        return {"loss": loss_without(model, batches, gone), **right}

    before, removed = scores([]), list[Head]()
    for one in sorted(heads(translator, pairs), key=lambda head: head.lost):
        removed += [one] if loss_without(model, batches, [*removed, one]) <= before["loss"] + math.log1p(tolerance) else []
    after = scores(removed)
    while removed and any(after[name] < before[name] - points for name in ("bleu", "exact_match")):
        after = scores(removed := removed[:-1])
    facts = {"of": len(found), "heads": [one._asdict() for one in removed], "before": before, "after": after}
    return _write(old, out, [(one.head, *found[one._replace(lost=0.0)]) for one in removed], facts)


def _write(old: Run, out: Path, gone: list[tuple[int, str, Attention]], facts: dict[str, Any]) -> Run:
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".") as folder:  # so that it is whole or absent
        aside = shutil.copytree(old.path, Path(folder) / out.name, ignore=shutil.ignore_patterns("lock", "tensorboard", ".*"))
        for checkpoint in (aside / "checkpoints").iterdir():
            files = storage.read_directory(checkpoint)
            for file in {"model.safetensors", "raw.safetensors"} & set(files):
                weights = tensors_from_bytes(files[file])
                for head, name, attention in gone:
                    weights[f"{name}.output.weight"].unflatten(1, (attention.heads, -1))[:, head] = 0
                files[file] = tensors_to_bytes(weights)
            storage.write_directory(checkpoint, files)
        manifest, config = storage.read_manifest(aside) | {"pruned": facts}, (aside / "config.toml").read_bytes()
        storage.write_manifest(aside, manifest, "config.toml", config, also_old=False)
        os.rename(aside, out)
    write_card(run := Run.open(out))
    with (out / "README.md").open("a", encoding="utf-8") as card:
        card.write(f"\nPruned from {old.path.name}: {len(gone)} of {facts['of']} heads are silent; manifest.json names them.\n")
    return run
