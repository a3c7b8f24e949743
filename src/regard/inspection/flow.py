"""Gradient flow: how far back, and how deep, the gradient of the last target token's loss reaches.

All of it in double precision: in single precision a vanishing gradient is soon 0.
"""

from collections.abc import Sequence
from copy import deepcopy

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import UserError
from regard.models import Seq2Seq
from regard.text.vocabulary import FIRST

FORGOTTEN = 0.01
"""The share of the nearest token's gradient below which a token counts as forgotten."""


def gradient_flow(
    model: Seq2Seq, length: int = 100, *, sentences: int = 16, seed: int = 0, first: int = FIRST
) -> npt.NDArray[np.float64]:
    """Norm of the gradient at the embedding of each token, nearest first: (length,).

    The gradient is that of the last target token's loss, scaled so that the nearest token has norm
    1. The first half of the tokens is the target, the second half the source. All tokens are
    random, and norms are averaged over sentences. first: the first id that is not reserved.
    """
    model = deepcopy(model).double().eval()
    source_table = model.encoder.get_submodule("embedding")
    target_table = model.decoder.get_submodule("embedding")
    vectors = _keep_outputs(source_table, target_table)
    loss = _last_loss(model, length, sentences, seed, first)
    gradients = torch.autograd.grad(loss, vectors, materialize_grads=True)

    norms = []
    for gradient in gradients:
        rows = gradient.reshape(sentences, -1, gradient.shape[-1])  # (B, S, D), then (B, T, D)
        norms.append(rows.norm(dim=-1).mean(0))
    nearest_first = torch.cat(norms).flip(0)  # (length,)
    return (nearest_first / nearest_first[0]).numpy()


def reach(flow: npt.ArrayLike, share: float = FORGOTTEN) -> int | None:
    """How many tokens back a flow (N,) first falls below a share of the nearest one's.

    None: it never does.
    """
    below = np.flatnonzero(np.asarray(flow) < share)
    return int(below[0]) if len(below) else None


def gradient_by_depth(
    model: Seq2Seq, length: int = 20, *, sentences: int = 4, seed: int = 0, first: int = FIRST
) -> npt.NDArray[np.float64]:
    """Norm of the gradient at the output of each block of the encoder, last block first: (layers,).

    It is scaled so that the last block has norm 1. The tokens are as in `gradient_flow`.
    """
    model = deepcopy(model).double().eval()
    blocks = getattr(model.encoder, "blocks", None)
    if not isinstance(blocks, nn.ModuleList):
        raise UserError("gradient_by_depth needs an encoder of blocks, such as a Transformer's")
    outputs = _keep_outputs(*blocks)
    loss = _last_loss(model, length, sentences, seed, first)
    gradients = torch.autograd.grad(loss, outputs)
    norms = torch.stack([gradient.norm() for gradient in gradients]).flip(0)  # (layers,)
    return (norms / norms[0]).numpy()


def gradient_norms(
    model: Seq2Seq,
    lengths: Sequence[int],
    *,
    sentences: int = 4,
    seed: int = 0,
    first: int = FIRST,
) -> npt.NDArray[np.float64]:
    """Norm of the gradient of all weights, which clipping looks at, for each length: (lengths,)."""
    model = deepcopy(model).double().eval()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    norms = []
    for length in lengths:
        loss = _last_loss(model, length, sentences, seed, first) / sentences
        gradients = torch.autograd.grad(loss, weights, materialize_grads=True)
        norms.append(torch.cat([gradient.flatten() for gradient in gradients]).norm())
    return torch.stack(norms).numpy()


def _last_loss(model: Seq2Seq, length: int, sentences: int, seed: int, first: int) -> Tensor:
    """The loss of the last target token of random sentences, summed over them.

    length: tokens of source and target together.
    """
    source_table = model.encoder.get_submodule("embedding")
    target_table = model.decoder.get_submodule("embedding")
    source_length = length - length // 2
    target_length = length // 2 + 1  # the last token is only predicted
    generator = torch.Generator().manual_seed(seed)
    source = _random_tokens(source_table, first, (sentences, source_length), generator)
    target = _random_tokens(target_table, first, (sentences, target_length), generator)

    logits = model(source, torch.full((sentences,), source_length), target[:, :-1])  # (B, T, V)
    return F.cross_entropy(logits[:, -1], target[:, -1], reduction="sum")


def _keep_outputs(*modules: nn.Module) -> list[Tensor]:
    """A list that collects what these modules return, in the order of their calls."""
    outputs: list[Tensor] = []

    def keep(module: nn.Module, inputs: object, output: Tensor | tuple[Tensor, object]) -> None:
        outputs.append(output[0] if isinstance(output, tuple) else output)

    for module in dict.fromkeys(modules):  # one hook where source and target share their embedding
        module.register_forward_hook(keep)
    return outputs


def _random_tokens(
    table: nn.Module, first: int, shape: tuple[int, int], generator: torch.Generator
) -> Tensor:
    """Tokens (B, T), any of this embedding's vocabulary from id `first` on."""
    size = table.get_parameter("weight").shape[0]
    return torch.randint(first, size, shape, generator=generator)
