"""A prepared run -> a trainer at its first step."""

import math

import numpy as np
import torch

from regard.data.batches import Batches, Indices, Vary
from regard.data.corpus import Corpus
from regard.errors import UserError
from regard.models import Seq2Seq
from regard.runs import storage
from regard.runs.run import Parts, Run
from regard.runs.weights import set_weights
from regard.training.parallel import World
from regard.training.paths import compile_blocks, read_ahead
from regard.training.trainer import Trainer


def make_trainer(run: Run, parts: Parts, world: World) -> Trainer:
    """A trainer at its first step, with the run's own data, model and settings."""
    c = run.config
    with storage.disk_faults_told(run.path):
        corpus = Corpus.open(run.path / "data" / "train")
    if corpus.digest != c.data.digest:
        raise UserError(
            f"{corpus.path}: not the data this run was made with (its digest differs from "
            f"config.toml)"
        )

    size = (
        {"sentences": c.data.batch_sentences}
        if c.data.batch_sentences
        else {"tokens": c.data.batch_tokens}
    )
    batches = Batches(corpus, **size, seed=c.train.seed, vary=_varied(run, world))
    steps = c.train.steps
    if c.train.epochs:
        steps = max(1, math.ceil(c.train.epochs * batches.per_epoch / c.train.accumulate))

    model = initial_model(run, parts)
    if c.train.path == "compiled":
        compile_blocks(model)
    feed = read_ahead(world.share(batches), c.train.path, world.device)
    return Trainer(
        model.to(world.device), feed, c.train, steps=steps, device=world.device, world=world
    )


def initial_model(run: Run, parts: Parts) -> Seq2Seq:
    """The model at step 0: drawn from the run's seed, or with the weights that fine-tuning starts
    from.

    Where there are checkpoints, training goes on from one of them, and those weights are not read.
    """
    torch.manual_seed(run.config.train.seed)
    model = run.new_model(parts)
    base = run.config.train.start_from
    if base and not run.checkpoints():
        set_weights(model, run.start_weights(), f"{run.path}, which starts from {base}")
    return model


def _varied(run: Run, world: World) -> Vary | None:
    """BPE-dropout, if asked for."""
    p = run.config.text.dropout
    if p and world.size > 1:
        raise UserError(
            "text.dropout is for one process: several would not agree on how many tokens a batch "
            "has"
        )

    def vary(source: Indices, target: Indices, seed: int) -> tuple[Indices, Indices]:
        return np.array(run.source.vary(source.tolist(), p, seed)), np.array(
            run.target.vary(target.tolist(), p, seed + 1)
        )

    return vary if p else None
