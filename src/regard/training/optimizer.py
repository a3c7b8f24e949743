"""Optimisers, and their state as named tensors (no pickle)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from regard.config import TrainConfig
from regard.run import spread, whole
from regard.storage import Corrupt


def make_optimizer(model: nn.Module, c: TrainConfig, *, captured: bool = False) -> torch.optim.Optimizer:
    """Weight decay acts on matrices only: norms and biases have nothing to decay towards. captured: inside a CUDA graph."""
    if c.optimizer == "muon":
        return Muon(model, c)
    groups = _groups(list(model.parameters()), c.weight_decay)
    if c.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=c.rate, momentum=0.9)
    kind = torch.optim.AdamW if c.optimizer == "adamw" else torch.optim.Adam
    rate = torch.tensor(c.rate, device=groups[0]["params"][0].device) if captured else c.rate
    return kind(groups, lr=rate, betas=c.betas, eps=1e-9, fused=True, capturable=captured)


def _groups(parameters: list[nn.Parameter], decay: float) -> list[dict[str, Any]]:
    kinds = ((decay, [p for p in parameters if p.dim() > 1]), (0.0, [p for p in parameters if p.dim() <= 1]))
    return [{"params": params, "weight_decay": weight_decay} for weight_decay, params in kinds if params]


class Muon(torch.optim.Optimizer):
    """Momentum made orthogonal (Jordan et al. 2024) for the matrices inside encoder and decoder; AdamW for all else.

    Updates are scaled to AdamW's usual size, so that one learning rate serves both (Liu et al. 2025).
    """

    def __init__(self, model: nn.Module, c: TrainConfig) -> None:
        named = dict(model.named_parameters())
        inner = [p for name, p in named.items() if p.dim() == 2 and "embedding" not in name and not name.endswith("out.weight")]
        chosen = {id(p) for p in inner}
        rest = [p for p in named.values() if id(p) not in chosen]
        self.adam = torch.optim.AdamW(_groups(rest, c.weight_decay), lr=c.rate, betas=c.betas, eps=1e-9, fused=True)
        self.muon = torch.optim.Muon(inner, lr=c.rate, weight_decay=c.weight_decay, adjust_lr_fn="match_rms_adamw")
        super().__init__([{"params": list(named.values())}], {})
        self.param_groups = [*self.adam.param_groups, *self.muon.param_groups]
        self.state = _Joined(self.adam.state, self.muon.state, chosen)  # type: ignore[assignment]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.adam.step()
        self.muon.step()


class _Joined:
    """The state of two optimisers, by parameter."""

    def __init__(self, adam: Any, muon: Any, chosen: set[int]) -> None:
        self.adam, self.muon, self.chosen = adam, muon, chosen

    def __getitem__(self, parameter: Tensor) -> Any:
        return (self.muon if id(parameter) in self.chosen else self.adam)[parameter]

    def get(self, parameter: Tensor, default: Any) -> Any:
        return (self.muon if id(parameter) in self.chosen else self.adam).get(parameter, default)


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """{parameter name}/{state name} -> tensor."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                tensors[f"{name}/{key}"] = whole(value.detach()).cpu().contiguous()
    return tensors


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """The reverse of optimizer_tensors."""
    parameters = dict(model.named_parameters())
    for name, value in tensors.items():
        owner, _, key = name.rpartition("/")
        if owner not in parameters:
            raise Corrupt(f"optimizer state for {owner}, which the model does not have")
        parameter = parameters[owner]
        optimizer.state[parameter][key] = (
            spread(value, parameter) if value.shape == parameter.shape else value.to(parameter.device)
        )
