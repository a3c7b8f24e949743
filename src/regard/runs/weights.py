"""Weights -> tensors of a file, and back."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.errors import counted
from regard.runs.storage import Corrupt


def whole(x: Tensor) -> Tensor:
    """x as one tensor, however it is spread over processes."""
    full: Any = getattr(x, "full_tensor", None)
    return x if full is None else full()


def spread(x: Tensor, like: Tensor) -> Tensor:
    """The reverse: x where and as `like` is."""
    mesh: Any = getattr(like, "device_mesh", None)
    if mesh is None:
        return x.to(like.device)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(x.to(like.device), mesh, getattr(like, "placements", None))


def get_weights(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter once, on the CPU; tied ones under their first name."""
    return {
        name: whole(parameter.detach()).cpu().contiguous()
        for name, parameter in model.named_parameters()
    }


class Undrawn(TorchFunctionMode):
    """Build a model without drawing its weights, for weights that will be read from a file.

    Drawing them takes a third of the time that opening a run does. Only parameters are left as they
    are, which `set_weights` then fills, every one of them; buffers are computed as always.
    """

    DRAWS = (
        nn.init.kaiming_uniform_,
        nn.init.xavier_uniform_,
        nn.init.orthogonal_,
        nn.init.uniform_,
        nn.init.normal_,
        Tensor.uniform_,
        Tensor.normal_,
    )

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in self.DRAWS:
            tensor = args[0] if args else kwargs["tensor"]
            if isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter):
                return tensor
        return function(*args, **kwargs)


def set_weights(model: nn.Module, weights: Mapping[str, Tensor], where: str) -> None:
    """Copy weights in; names and shapes must be exactly the model's, and every number finite."""
    parameters = dict(model.named_parameters())
    check_weights(parameters, weights, where)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(spread(weights[name], parameter))


def adopt_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> float:
    """Copy in those weights that the model has by the same name and shape; their share of it.

    So an encoder-decoder can start from a decoder or an encoder that learned alone.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))  # tied ones by every name
    taken: dict[int, int] = {}  # numbers of each parameter that was filled
    with torch.no_grad():
        for name, values in weights.items():
            parameter = parameters.get(name)
            if parameter is None or parameter.shape != values.shape:
                continue
            parameter.copy_(values)
            taken[id(parameter)] = values.numel()
    total = sum(parameter.numel() for parameter in model.parameters())
    return sum(taken.values()) / total


def check_weights(
    parameters: Mapping[str, Tensor], weights: Mapping[str, Tensor], where: str
) -> None:
    """Refuse weights whose names or shapes are not those of the parameters, or are not finite."""
    unmatched = sorted(set(parameters) ^ set(weights))
    if unmatched:
        raise Corrupt(
            f"{where}: the weights do not match the config: {counted(len(unmatched), 'parameter')} "
            f"only in one of them, such as {unmatched[0]}"
        )
    for name, parameter in parameters.items():
        values = weights[name]
        if parameter.shape != values.shape:
            raise Corrupt(
                f"{where}: {name} has shape {tuple(values.shape)}, but the config requires "
                f"{tuple(parameter.shape)}"
            )
        if not values.is_floating_point():
            raise Corrupt(f"{where}: {name} has type {values.dtype}, not a floating-point one")
        if not values.isfinite().all():
            raise Corrupt(f"{where}: {name} contains NaN or infinite values")
