"""torch's private functions that training uses.

Another version of torch may drop them or change their arguments. So each is tried once, on a few
numbers; where that fails, its public twin in `training/tensors.py` does the same, only slower.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

Private = Callable[..., Any]


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


TRIALS: dict[str, Callable[[Private], bool]] = {
    "_foreach_div_": _divides,
    "_foreach_lerp_": _moves,
    "_foreach_copy_": _copies,
}
