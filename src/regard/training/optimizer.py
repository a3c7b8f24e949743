"""Optimisers, and their state as named tensors (no pickle)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from regard.config import TrainConfig
from regard.storage import Corrupt


def make_optimizer(model: nn.Module, c: TrainConfig) -> torch.optim.Optimizer:
    """Weight decay acts on matrices only: norms and biases have nothing to decay towards."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups: list[dict[str, Any]] = [{"params": matrices, "weight_decay": c.weight_decay}]
    if others:
        groups.append({"params": others, "weight_decay": 0.0})
    if c.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=c.rate, momentum=0.9)
    kind = torch.optim.AdamW if c.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=c.rate, betas=c.betas, eps=1e-9, fused=True)


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """{parameter name}/{state name} -> tensor."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                tensors[f"{name}/{key}"] = value.detach().cpu().contiguous()
    return tensors


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """The reverse of optimizer_tensors."""
    parameters = dict(model.named_parameters())
    for name, value in tensors.items():
        owner, _, key = name.rpartition("/")
        if owner not in parameters:
            raise Corrupt(f"optimizer state for {owner}, which the model does not have")
        parameter = parameters[owner]
        # A step count stays where the optimiser keeps it: on the CPU, unless it is fused on a GPU.
        optimizer.state[parameter][key] = value.to(parameter.device)
