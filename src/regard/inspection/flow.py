"""Gradient flow: how far back the gradient of the last target token's loss reaches."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.config import ModelConfig, RNNConfig, TransformerConfig
from regard.models import Seq2Seq, build_model
from regard.text.vocabulary import FIRST


def gradient_flow(
    model: Seq2Seq, length: int = 100, *, sentences: int = 16, seed: int = 0, first: int = FIRST
) -> npt.NDArray[np.float64]:
    """Norm of the gradient at the embedding of each token, nearest first: (length,).

    The gradient is that of the last target token's loss, scaled so that the nearest token has norm
    1. The first half of the tokens is the target, the second half the source. All tokens are
    random, and norms are averaged over sentences. first: the first id that is not reserved.
    """
    model = deepcopy(model).double().eval()  # in single precision a vanishing gradient is soon 0
    source_table = model.encoder.get_submodule("embedding")
    target_table = model.decoder.get_submodule("embedding")
    vectors = _keep_outputs(source_table, target_table)

    source_length = length - length // 2
    target_length = length // 2 + 1  # the last token is only predicted
    generator = torch.Generator().manual_seed(seed)
    source = _random_tokens(source_table, first, (sentences, source_length), generator)
    target = _random_tokens(target_table, first, (sentences, target_length), generator)

    logits = model(source, torch.full((sentences,), source_length), target[:, :-1])  # (B, T, V)
    loss = F.cross_entropy(logits[:, -1], target[:, -1], reduction="sum")
    gradients = torch.autograd.grad(loss, vectors, materialize_grads=True)

    norms = []
    for gradient in gradients:
        rows = gradient.reshape(sentences, -1, gradient.shape[-1])  # (B, S, D), then (B, T, D)
        norms.append(rows.norm(dim=-1).mean(0))
    nearest_first = torch.cat(norms).flip(0)  # (length,)
    return (nearest_first / nearest_first[0]).numpy()


def _keep_outputs(*tables: nn.Module) -> list[Tensor]:
    """A list that collects what these embeddings return, in the order of their calls."""
    outputs: list[Tensor] = []
    for table in dict.fromkeys(tables):  # one hook where source and target share their embedding
        table.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    return outputs


def _random_tokens(
    table: nn.Module, first: int, shape: tuple[int, int], generator: torch.Generator
) -> Tensor:
    """Tokens (B, T), any of this embedding's vocabulary from id `first` on."""
    size = table.get_parameter("weight").shape[0]
    return torch.randint(first, size, shape, generator=generator)


def textbook(width: int = 64, seed: int = 0) -> dict[str, Seq2Seq]:
    """Three untrained models: a plain RNN and an LSTM without attention, and a Transformer.

    The cells start as torch starts them, forget gates with a bias of 1 (Jozefowicz et al. 2015).
    Models that Regard trains start from orthogonal matrices and no bias: then a plain RNN forgets
    far more slowly, and an LSTM faster.
    """
    rnn = RNNConfig(cell="rnn", width=width, embedding=width, bidirectional=False, attention="none")
    configs: dict[str, ModelConfig] = {
        "plain RNN": rnn,
        "LSTM": replace(rnn, cell="lstm"),
        "Transformer": TransformerConfig(width=width, ffn=4 * width),
    }
    size = FIRST + 64
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        models = {name: build_model(config, size, size) for name, config in configs.items()}
        for model in models.values():
            _reset_cells(model, width)
    return models


def _reset_cells(model: Seq2Seq, width: int) -> None:
    """Start recurrent cells as torch does, and an LSTM's forget gates with a bias of 1."""
    for module in model.modules():
        if not isinstance(module, nn.RNNBase):
            continue
        module.reset_parameters()
        if isinstance(module, nn.LSTM):
            module.get_parameter("bias_ih_l0").data[width : 2 * width] = 1.0
