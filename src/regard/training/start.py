"""A prepared run -> a trainer at its first step."""

import math

import numpy as np
import torch

from regard.config import Config
from regard.data.batches import Batches, Indices, Vary
from regard.data.corpus import Corpus
from regard.data.objectives import objective_of
from regard.errors import UserError
from regard.files import disk_faults_told
from regard.models import Predictor
from regard.models.parts import Parts
from regard.models.size import check_size
from regard.nn.devices import pick_device
from regard.runs.run import Run
from regard.runs.weights import set_weights
from regard.training.parallel import World
from regard.training.paths import compile_blocks, read_ahead
from regard.training.trainer import Trainer


def make_trainer(run: Run, parts: Parts, world: World) -> Trainer:
    """A trainer at its first step, with the run's own data, model and settings."""
    config = run.config
    with disk_faults_told(run.path):
        corpus = Corpus.open(run.path / "data" / "train")
    if corpus.digest != config.data.digest:
        raise UserError(
            f"{corpus.path}: not the data this run was trained on (data.digest in config.toml "
            f"differs): restore the data, or train a new run"
        )

    size = {"tokens": config.data.batch_tokens}
    if config.data.batch_sentences:
        size = {"sentences": config.data.batch_sentences}
    batches = Batches(
        corpus,
        **size,
        seed=config.train.seed,
        at_random=config.data.batching == "random",
        vary=_varied(run, world),
        objective=objective_of(config.train, run.source),
    )
    epoch_steps = batches.per_epoch / config.train.accumulate
    steps = config.train.steps
    if config.train.epochs:
        steps = max(1, math.ceil(config.train.epochs * epoch_steps))

    check_training_size(config, run.source.size, run.target.size)
    model = initial_model(run, parts)
    if config.train.path == "compiled":
        compile_blocks(model)
    feed = read_ahead(batches.shard(world.rank, world.size), config.train.path, world.device)
    return Trainer(
        model.to(world.device),
        feed,
        config.train,
        steps=steps,
        device=world.device,
        world=world,
        epoch_steps=epoch_steps,
    )


def check_training_size(config: Config, source_size: int = 0, target_size: int = 0) -> None:
    """Refuse a model that does not fit into memory with its gradients and its optimizer.

    Shards of a model are not counted. The sizes of the vocabularies may not be known yet.
    """
    if config.train.strategy == "fsdp":
        return
    moments = 1 if config.train.optimizer == "sgd" else 2
    check_size(
        config.model,
        source_size,
        target_size,
        objective=config.train.objective,
        copies=2 + moments,  # the weights and their gradients
        device=pick_device(config.train.device),
    )


def initial_model(run: Run, parts: Parts) -> Predictor:
    """The model at step 0: random, or with the weights that fine-tuning starts from.

    Where there are checkpoints, training goes on from one of them, and those weights are not read.
    """
    torch.manual_seed(run.config.train.seed)
    model = run.new_model(parts)
    base = run.config.train.start_from
    if base and not run.checkpoints():
        set_weights(model, run.start_weights(), f"{run.path}, starting from {base}")
    return model


def _varied(run: Run, world: World) -> Vary | None:
    """BPE-dropout, if asked for."""
    dropout = run.config.text.dropout
    if not dropout:
        return None
    if world.size > 1:
        raise UserError(
            "text.dropout works in one process only: set text.dropout=0, or run without torchrun"
        )

    def vary(source: Indices, target: Indices, seed: int) -> tuple[Indices, Indices]:
        new_source = run.source.vary(source.tolist(), dropout, seed)
        new_target = run.target.vary(target.tolist(), dropout, seed + 1)
        return np.array(new_source), np.array(new_target)

    return vary
