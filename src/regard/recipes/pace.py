"""How fast this machine trains a model, measured before it is chosen."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.config import TrainConfig, build
from regard.data.batches import Batch, collate
from regard.data.objectives import TRANSLATE, Denoise, Masked, Objective
from regard.models import build_model
from regard.models.predictor import Predictor
from regard.nn.devices import is_out_of_memory, pick_device
from regard.text.vocabulary import BOS, EOS
from regard.training.optimizer import make_optimizer

SECONDS = 2.0
"""How long one model is measured at most."""
STEPS = 10
"""How many steps are timed; the fastest counts, since other work slows the others down."""


@dataclass(frozen=True)
class Load:
    """What a step of training has to do, but for the model: its vocabulary and its batch."""

    vocabulary: int
    batch_tokens: int
    batch_sentences: int  # 0: as many as have batch_tokens
    source_length: float
    target_length: float
    device: str = "auto"
    train: TrainConfig = field(default_factory=TrainConfig)
    """What a language model learns: of texts, target_length counts."""

    @property
    def pairs(self) -> int:
        """Pairs of a batch."""
        if self.batch_sentences:
            return self.batch_sentences
        longest = max(self.source_length, self.target_length, 1.0)
        return max(1, round(self.batch_tokens / longest))


Measure = Callable[[dict[str, Any], Load], float]
"""Pairs a second of a model with these settings; 0: its batch does not fit into memory."""


def pairs_per_second(model: dict[str, Any], load: Load) -> float:
    """How many pairs a second a model with these settings is trained on, by a few steps.

    0: one batch does not fit into memory, and nobody knows how fast half of it would be.
    """
    device = pick_device(load.device)
    try:
        return _measured_pace(model, load, device)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    if device.type == "cuda":  # outside of the `except`, whose error would keep the batch
        torch.cuda.empty_cache()
    return 0.0


def _measured_pace(model: dict[str, Any], load: Load, device: torch.device) -> float:
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(1)
        config = build({"model": model}).model
        size = load.vocabulary
        network = build_model(config, size, size, None, load.train.objective)
        network.to(device).train()
        optimizer = make_optimizer(network, TrainConfig())
        batch = _random_batch(load).to(device)
        _step(network, optimizer, batch)  # the first one also allocates

        fastest = math.inf
        began = time.perf_counter()
        for _ in range(STEPS):
            step_began = time.perf_counter()
            _step(network, optimizer, batch)
            now = time.perf_counter()
            fastest = min(fastest, now - step_began)
            if now - began > SECONDS:
                break
        return load.pairs / fastest


def _step(network: Predictor, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    """One step, to its end."""
    device = batch.source.device
    has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
    with torch.autocast(device.type, torch.bfloat16, enabled=has_bf16):
        loss = network.loss(batch, 0.1).loss
    optimizer.zero_grad(set_to_none=True)
    (loss / batch.tokens).backward()
    optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _random_batch(load: Load) -> Batch:
    """A batch of random tokens, all rows of the mean length."""
    if load.train.objective != "translate":
        return _random_texts(load)
    pairs = load.pairs
    source_length = max(2, round(load.source_length))
    target_length = max(2, round(load.target_length))
    source = _random_ids(load, source_length)  # (B, S)
    target = _random_ids(load, target_length + 1)  # (B, T + 1)
    target[:, 0] = BOS
    source[:, -1] = EOS
    target[:, -1] = EOS
    return Batch(
        source=source,
        source_lengths=torch.full((pairs,), source_length),
        target=target,
        target_lengths=torch.full((pairs,), target_length),
        tokens=pairs * target_length,
        source_tokens=pairs * source_length,
    )


def _random_texts(load: Load) -> Batch:
    """The same as texts, of which the objective makes sources and targets."""
    length = max(2, round(load.target_length))
    texts = _random_ids(load, length + 1)  # (B, T + 1)
    texts[:, 0] = BOS
    texts[:, -1] = EOS
    objective = _objective(load)
    nothing = np.array([EOS])
    rows = [(nothing, text) for text in texts.numpy()]
    return collate([objective.row(row, seed) for seed, row in enumerate(rows)])


def _objective(load: Load) -> Objective:
    """What is asked of random texts."""
    train = load.train
    if train.objective == "denoise":
        return Denoise(train.mask_rate, train.mask_span)
    if train.objective == "masked":
        return Masked(train.mask_rate, _first_id(load), load.vocabulary)
    return TRANSLATE


def _random_ids(load: Load, length: int) -> Tensor:
    """Ids (B, length) of the vocabulary, none of them special."""
    return torch.randint(_first_id(load), load.vocabulary, (load.pairs, length))


def _first_id(load: Load) -> int:
    """The first id that is taken for no special."""
    return min(10, load.vocabulary - 1)
