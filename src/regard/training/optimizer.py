"""Optimisers, and their state as named tensors (no pickle)."""

from collections import ChainMap
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from regard.config import TrainConfig
from regard.runs.storage import Corrupt
from regard.runs.weights import spread, whole
from regard.training.tensors import copy

FUSED = ("cpu", "cuda")  # devices whose fused optimisers were tried
EPS = 1e-9  # of Adam, as in Vaswani et al. 2017
MOMENTUM = 0.95  # of Muon
ADAM_SIZE = 0.2  # the usual root mean square of an update of AdamW (Liu et al. 2025)


def has_fused_step(config: TrainConfig, device: torch.device) -> bool:
    """Whether the optimiser itself divides the gradient by its `grad_scale`."""
    return config.optimizer != "sgd" and config.strategy != "fsdp" and device.type in FUSED


def make_optimizer(
    model: nn.Module, config: TrainConfig, *, captured: bool = False
) -> torch.optim.Optimizer:
    """The optimiser that the config names.

    Weight decay acts on matrices only: norms and biases have nothing to decay towards. captured:
    the optimiser will run inside a CUDA graph.
    """
    device = next(model.parameters()).device
    rate = torch.tensor(config.rate, device=device) if captured else config.rate
    if config.optimizer == "muon":
        return Muon(model, config, rate, captured=captured)

    groups = _groups(list(model.parameters()), config.weight_decay)
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=config.rate, momentum=0.9)

    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return kind(
        groups,
        lr=rate,
        betas=config.betas,
        eps=EPS,
        fused=device.type in FUSED,
        capturable=captured,
    )


def _groups(parameters: list[nn.Parameter], decay: float) -> list[dict[str, Any]]:
    """Parameter groups for torch: matrices with weight decay, the rest without."""
    matrices = [p for p in parameters if p.dim() > 1]
    others = [p for p in parameters if p.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


class Muon(torch.optim.Optimizer):
    """Momentum made orthogonal (Jordan et al. 2024), for the matrices in encoder and decoder.

    AdamW does the rest. Updates are scaled to AdamW's usual size, so that one learning rate serves
    both (Liu et al. 2025). `grad_scale` and `found_inf` mean what they mean to torch's fused
    optimisers. (torch.optim.Muon computes in bfloat16 whatever the machine.)
    """

    def __init__(
        self, model: nn.Module, config: TrainConfig, rate: float | Tensor, *, captured: bool
    ) -> None:
        inner = {name: p for name, p in model.named_parameters() if _is_inner(name, p)}
        others = [p for name, p in model.named_parameters() if name not in inner]
        device = next(model.parameters()).device
        self.fused = device.type in FUSED
        self.grad_scale = torch.ones((), device=device)
        self.found_inf = torch.zeros((), device=device)
        self.adam = torch.optim.AdamW(
            _groups(others, config.weight_decay),
            lr=rate,
            betas=config.betas,
            eps=EPS,
            fused=self.fused,
            capturable=captured,
        )

        group = {"params": list(inner.values()), "lr": rate, "weight_decay": config.weight_decay}
        super().__init__([group], {})
        self.matrices = self.param_groups[0]
        self.param_groups += self.adam.param_groups
        for parameter in inner.values():
            self.state[parameter]["momentum"] = torch.zeros_like(parameter)
        # One map of all states. Ours is a plain dict, so that AdamW's is asked for what it lacks.
        self.state = ChainMap(dict(self.state), self.adam.state)  # type: ignore[assignment]

        # Matrices of one shape are treated together. A parameter may hold several matrices one
        # below the other, each of which is made orthogonal by itself.
        self.alike: dict[tuple[int, ...], list[nn.Parameter]] = {}  # (matrices, rows, columns)
        for name, parameter in inner.items():
            layer = name.rpartition(".")[0].rpartition(".")[-1]
            count = {"qkv": 3, "keyvalue": 2}.get(layer, 1)
            self.alike.setdefault((count, *parameter.shape), []).append(parameter)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if self.fused:
            self.adam.grad_scale = self.grad_scale  # type: ignore[attr-defined]
            self.adam.found_inf = self.found_inf  # type: ignore[attr-defined]
        self.adam.step()
        for (count, *_), parameters in self.alike.items():
            used = [p for p in parameters if p.grad is not None]
            if used:
                self._move(used, count)

    def _move(self, parameters: list[nn.Parameter], count: int) -> None:
        """One step for N parameters of the same shape, each of `count` matrices."""
        rate = self.matrices["lr"]
        decay = self.matrices["weight_decay"]
        bad = self.found_inf > 0

        gradients = [p.grad for p in parameters if p.grad is not None]
        gradient = torch.stack(gradients) / self.grad_scale  # (N, R, C)
        old = torch.stack([self.state[p]["momentum"] for p in parameters])  # (N, R, C)
        momentum = torch.where(bad, old, MOMENTUM * old + gradient)  # (N, R, C)
        ahead = torch.where(bad, 0.0, gradient + MOMENTUM * momentum)  # (N, R, C), Nesterov's

        matrices = ahead.unflatten(1, (count, -1)).flatten(0, 1)  # (N · count, R / count, C)
        direction = orthogonal(matrices).unflatten(0, (-1, count)).flatten(1, 2)  # (N, R, C)
        scale = ADAM_SIZE * max(ahead.shape[1] // count, ahead.shape[2]) ** 0.5

        weights = torch.stack([p.detach() for p in parameters])  # (N, R, C)
        moved = weights * (1 - rate * decay) - rate * scale * direction  # (N, R, C)
        weights = torch.where(bad, weights, moved)
        copy([self.state[p]["momentum"] for p in parameters], list(momentum))
        copy([p.detach() for p in parameters], list(weights))


def _is_inner(name: str, parameter: nn.Parameter) -> bool:
    """Whether this is a matrix between layers: no embedding, and not the output layer."""
    is_output = name.split(".")[-2:] == ["out", "weight"]
    return parameter.dim() == 2 and "embedding" not in name and not is_output


def orthogonal(x: Tensor, steps: int = 5) -> Tensor:
    """The nearest matrix (…, R, C) whose singular values are about one.

    By Newton and Schulz's iteration, whose coefficients are those of Jordan et al. 2024.
    """
    dtype = torch.bfloat16 if x.is_cuda else x.dtype
    is_tall = x.shape[-2] > x.shape[-1]
    y = x.transpose(-2, -1) if is_tall else x  # (…, m, n), m <= n
    y = (y / (y.norm(dim=(-2, -1), keepdim=True) + 1e-7)).to(dtype)
    for _ in range(steps):
        square = y @ y.transpose(-2, -1)  # (…, m, m)
        y = 3.4445 * y + (2.0315 * square @ square - 4.7750 * square) @ y  # (…, m, n)
    return (y.transpose(-2, -1) if is_tall else y).to(x.dtype)


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """{parameter name}/{state name} -> tensor, whole and on the CPU."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                tensors[f"{name}/{key}"] = whole(value.detach()).cpu().contiguous().clone()
    return tensors


def restore_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    """The reverse of optimizer_tensors."""
    parameters = dict(model.named_parameters())
    _check_state(parameters, optimizer, tensors)
    for name, tensor in tensors.items():
        owner, _, key = name.rpartition("/")
        parameter = parameters[owner]
        is_like_parameter = tensor.shape == parameter.shape
        value = spread(tensor, parameter) if is_like_parameter else tensor.to(parameter.device)
        state = optimizer.state[parameter]
        if key in state:  # in its place: a captured graph knows no other
            state[key].copy_(value)
        else:
            state[key] = value


def _check_state(
    parameters: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, Tensor],
) -> None:
    """Refuse a state that this optimiser cannot go on from."""
    keys: dict[str, set[str]] = {}
    for name, tensor in tensors.items():
        owner, _, key = name.rpartition("/")
        if owner not in parameters:
            raise Corrupt(f"optimizer state for {owner:.80}, which is not in the model")
        shape = () if key == "step" else parameters[owner].shape
        if tensor.shape != shape or not tensor.isfinite().all():
            raise Corrupt(f"optimizer state {name:.80}: a wrong shape, or not finite")
        keys.setdefault(owner, set()).add(key)

    for owner, owned in keys.items():
        if owned != _state_keys(optimizer, parameters[owner]):
            names = ", ".join(sorted(owned))
            raise Corrupt(f"optimizer state for {owner}: {names:.80}, of another optimizer")


def _state_keys(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> set[str]:
    """What an optimiser keeps for a parameter, once it has made a step."""
    if isinstance(optimizer, Muon) and "momentum" in optimizer.state.get(parameter, {}):
        return {"momentum"}
    if isinstance(optimizer, torch.optim.SGD):
        return {"momentum_buffer"}
    return {"step", "exp_avg", "exp_avg_sq"}
