"""Optimisers, and their state as named tensors (no pickle)."""

from collections import ChainMap
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from regard.config import TrainConfig
from regard.errors import only_fast_is_missing
from regard.runs.storage import Corrupt
from regard.runs.weights import spread, whole
from regard.training.tensors import copy

try:
    from regard.training.fast import fused
except ModuleNotFoundError as error:
    only_fast_is_missing(error)
    fused = None  # type: ignore[assignment]

FUSED = ("cpu", "cuda")  # devices whose fused optimisers were tried


def has_fused_step(c: TrainConfig, device: torch.device) -> bool:
    """Whether the optimiser itself divides the gradient by its `grad_scale`."""
    return c.optimizer != "sgd" and c.strategy != "fsdp" and device.type in FUSED


def make_optimizer(
    model: nn.Module, c: TrainConfig, *, captured: bool = False
) -> torch.optim.Optimizer:
    """Weight decay acts on matrices only: norms and biases have nothing to decay towards.

    captured: the optimiser will run inside a CUDA graph.
    """
    device = next(model.parameters()).device
    rate = torch.tensor(c.rate, device=device) if captured else c.rate
    if c.optimizer == "muon":
        return Muon(model, c, rate, captured=captured)

    groups = _groups(list(model.parameters()), c.weight_decay)
    if c.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=c.rate, momentum=0.9)

    kind: type[torch.optim.Adam] = torch.optim.Adam
    if c.optimizer == "adamw":
        has_kernel = fused is not None and fused.has_adamw()
        own = has_fused_step(c, device) and not captured and has_kernel
        kind = AdamW if own else torch.optim.AdamW
    by_kernel = device.type in FUSED
    return kind(groups, lr=rate, betas=c.betas, eps=1e-9, fused=by_kernel, capturable=captured)


def _groups(parameters: list[nn.Parameter], decay: float) -> list[dict[str, Any]]:
    kinds = (
        (decay, [p for p in parameters if p.dim() > 1]),
        (0.0, [p for p in parameters if p.dim() <= 1]),
    )
    return [
        {"params": params, "weight_decay": weight_decay} for weight_decay, params in kinds if params
    ]


class AdamW(torch.optim.AdamW):
    """torch's fused AdamW, which hands the same lists to the same kernel without collecting them
    anew; one step count for all.
    """

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        params = [p for group in self.param_groups for p in group["params"]]
        counts = [self.state[p].get("step") for p in params]
        ready = all(p.grad is not None for p in params) and all(c is not None for c in counts)
        if not ready or (len({id(c) for c in counts}) > 1 and len({float(c) for c in counts}) > 1):
            for p in params:  # some have no gradient: each counts for itself
                if "step" in self.state[p]:
                    self.state[p]["step"] = self.state[p]["step"].clone()
            super().step()
            return
        for p in params:
            self.state[p]["step"] = counts[0]
        scale, inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        counts[0].add_(1 if inf is None else 1 - inf)
        for group in self.param_groups:
            states = [self.state[p] for p in group["params"]]
            averages, squares, steps = (
                [state[key] for state in states] for key in ("exp_avg", "exp_avg_sq", "step")
            )
            settings = {
                key: group[key] for key in ("lr", "weight_decay", "eps", "amsgrad", "maximize")
            }
            settings |= {
                "beta1": group["betas"][0],
                "beta2": group["betas"][1],
                "grad_scale": scale,
                "found_inf": inf,
            }
            gradients = [p.grad for p in group["params"]]
            fused.adamw(group["params"], gradients, averages, squares, steps, **settings)


class Muon(torch.optim.Optimizer):
    """Momentum made orthogonal (Jordan et al. 2024) for the matrices inside encoder and decoder;
    AdamW for all else.

    Updates are scaled to AdamW's usual size, so that one learning rate serves both (Liu et al.
    2025). `grad_scale` and `found_inf` mean what they mean to torch's fused optimisers.
    (torch.optim.Muon computes in bfloat16 whatever the machine.)
    """

    def __init__(
        self, model: nn.Module, c: TrainConfig, rate: float | Tensor, *, captured: bool
    ) -> None:
        named = dict(model.named_parameters())
        device = next(model.parameters()).device
        self.fused = device.type in FUSED
        self.grad_scale = torch.ones((), device=device)
        self.found_inf = torch.zeros((), device=device)
        inner = {
            n: p
            for n, p in named.items()
            if p.dim() == 2 and "embedding" not in n and not n.endswith("out.weight")
        }
        rest = _groups([p for n, p in named.items() if n not in inner], c.weight_decay)
        self.adam = torch.optim.AdamW(
            rest, lr=rate, betas=c.betas, eps=1e-9, fused=self.fused, capturable=captured
        )
        super().__init__(
            [{"params": list(inner.values()), "lr": rate, "weight_decay": c.weight_decay}], {}
        )
        self.matrices = self.param_groups[0]
        self.param_groups += self.adam.param_groups
        for p in inner.values():
            self.state[p]["momentum"] = torch.zeros_like(p)
        self.alike: dict[
            tuple[int, ...], list[nn.Parameter]
        ] = {}  # matrices of one shape are treated together
        for n, p in inner.items():
            parts = {"qkv": 3, "keyvalue": 2}.get(
                n.split(".")[-2], 1
            )  # each of its matrices by itself
            self.alike.setdefault((parts, *p.shape), []).append(p)
        self.state = ChainMap(dict(self.state), self.adam.state)  # type: ignore[assignment]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if self.fused:
            self.adam.grad_scale = self.grad_scale  # type: ignore[attr-defined]
            self.adam.found_inf = self.found_inf  # type: ignore[attr-defined]
        self.adam.step()
        rate, decay, bad = self.matrices["lr"], self.matrices["weight_decay"], self.found_inf > 0
        for (parts, *_), params in self.alike.items():
            used = [p for p in params if p.grad is not None]
            gradient = torch.stack([p.grad for p in used if p.grad is not None]) / self.grad_scale
            old = torch.stack([self.state[p]["momentum"] for p in used])
            new = torch.where(bad, old, 0.95 * old + gradient)
            ahead = torch.where(bad, 0.0, gradient + 0.95 * new)
            moved = (
                orthogonal(ahead.unflatten(1, (parts, -1)).flatten(0, 1))
                .unflatten(0, (-1, parts))
                .flatten(1, 2)
            )
            scale = 0.2 * max(ahead.shape[1] // parts, ahead.shape[2]) ** 0.5
            now = torch.stack(used)  # type: ignore[arg-type]
            now = torch.where(bad, now, now * (1 - rate * decay) - rate * scale * moved)
            copy([self.state[p]["momentum"] for p in used], list(new))
            copy([p.detach() for p in used], list(now))


def orthogonal(x: Tensor, steps: int = 5) -> Tensor:
    """The nearest matrix (…, R, C) whose singular values are about one, by Newton and Schulz's
    iteration.
    """
    kind = torch.bfloat16 if x.is_cuda else x.dtype
    tall = x.shape[-2] > x.shape[-1]
    y = x.transpose(-2, -1) if tall else x
    y = (y / (y.norm(dim=(-2, -1), keepdim=True) + 1e-7)).to(kind)
    for _ in range(steps):
        square = y @ y.transpose(-2, -1)
        y = 3.4445 * y + (2.0315 * square @ square - 4.7750 * square) @ y
    return (y.transpose(-2, -1) if tall else y).to(x.dtype)


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """{parameter name}/{state name} -> tensor."""
    states = {
        name: optimizer.state.get(parameter, {}) for name, parameter in model.named_parameters()
    }
    found = {
        f"{name}/{key}": value
        for name, state in states.items()
        for key, value in state.items()
        if value is not None
    }
    return {name: whole(value.detach()).cpu().contiguous().clone() for name, value in found.items()}


def restore_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    """The reverse of optimizer_tensors."""
    parameters = dict(model.named_parameters())
    for name, value in tensors.items():
        owner, _, key = name.rpartition("/")
        if owner not in parameters:
            raise Corrupt(f"optimizer state for {owner}, which the model does not have")
        parameter = parameters[owner]
        value = (
            spread(value, parameter)
            if value.shape == parameter.shape
            else value.to(parameter.device)
        )
        if key in optimizer.state[parameter]:  # in its place: a captured graph knows no other
            optimizer.state[parameter][key].copy_(value)
        else:
            optimizer.state[parameter][key] = value
