"""torch's private functions that training uses.

Another version of torch may drop them or change their arguments. So each is tried once, on a few
numbers; where that fails, its public twin in `training/tensors.py` (or torch.optim.AdamW) does the
same, only slower.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

Private = Callable[..., Any]


def has_adamw() -> bool:
    """Whether `adamw` can be used. Its public twin is the step of torch.optim.AdamW(fused=True)."""
    return find_private("_fused_adamw_") is not None


def adamw(
    params: list[Tensor],
    gradients: list[Tensor],
    averages: list[Tensor],
    squares: list[Tensor],
    steps: list[Tensor],
    **settings: Any,
) -> None:
    """One step of AdamW for tensors whose states are collected already."""
    torch._fused_adamw_(params, gradients, averages, squares, [], steps, **settings)


@cache
def find_private(name: str) -> Private | None:
    """torch's own function, if it is there and takes what we give it; None otherwise."""
    private: Private | None = getattr(torch, name, None)
    if private is None:
        return None
    try:
        works = TRIALS[name](private)
    except (TypeError, RuntimeError):
        return None
    return private if works else None


@torch.no_grad()
def _divides(private: Private) -> bool:
    x = torch.tensor([6.0, 3.0])
    private([x], 3.0)
    return x.tolist() == [2.0, 1.0]


@torch.no_grad()
def _moves(private: Private) -> bool:
    x = torch.tensor([0.0, 4.0])
    private([x], [torch.tensor([4.0, 0.0])], 0.25)
    return x.tolist() == [1.0, 3.0]


@torch.no_grad()
def _copies(private: Private) -> bool:
    x = torch.zeros(2)
    private([x], [torch.tensor([1.0, 2.0])])
    return x.tolist() == [1.0, 2.0]


@torch.no_grad()
def _is_adamw(private: Private) -> bool:
    """The first step is as long as the rate, whatever the gradient: here it is halved
    beforehand.
    """
    x = torch.tensor([1.0, -1.0])
    gradient = torch.tensor([4.0, -2.0])
    state = [torch.zeros(2), torch.zeros(2)]
    settings = {"lr": 0.5, "beta1": 0.9, "beta2": 0.98, "weight_decay": 0.0, "eps": 1e-9}
    settings |= {"amsgrad": False, "maximize": False}
    scale = {"grad_scale": torch.tensor(2.0), "found_inf": None}
    private([x], [gradient], [state[0]], [state[1]], [], [torch.ones(())], **settings, **scale)

    expected = torch.tensor([0.5, -0.5])
    average = torch.tensor([0.2, -0.1])  # a tenth of half the gradient
    return torch.allclose(x, expected, atol=1e-4) and torch.allclose(state[0], average, atol=1e-4)


TRIALS: dict[str, Callable[[Private], bool]] = {
    "_foreach_div_": _divides,
    "_foreach_lerp_": _moves,
    "_foreach_copy_": _copies,
    "_fused_adamw_": _is_adamw,
}
