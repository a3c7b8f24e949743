"""How far back a prediction reaches: the gradient of the last target token's loss, at every token before it."""

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


def gradient_flow(model: Seq2Seq, length: int = 100, *, sentences: int = 16, seed: int = 0) -> npt.NDArray[np.float64]:
    """(length,): the norm of the gradient at the embedding of the token so many places back, 1 at the nearest.

    The near half of the tokens is the answer, the far half the source. They are drawn at random; the mean over some sentences.
    """
    model = deepcopy(model).double().eval()  # in single precision a vanishing gradient is soon 0
    random = torch.Generator().manual_seed(seed)
    tables: list[nn.Module] = [model.encoder.get_submodule("embedding"), model.decoder.get_submodule("embedding")]
    read: list[Tensor] = []
    for table in dict.fromkeys(tables):  # one, if they are tied; the source is looked up first in any case
        table.register_forward_hook(lambda module, inputs, output: read.append(output))
    sides = [(sentences, length - length // 2), (sentences, length // 2 + 1)]
    source, target = (
        torch.randint(FIRST, table.get_parameter("weight").shape[0], size, generator=random) for table, size in zip(tables, sides)
    )
    logits = model(source, torch.full((sentences,), source.shape[1]), target[:, :-1])
    grads = torch.autograd.grad(F.cross_entropy(logits[:, -1], target[:, -1], reduction="sum"), read, materialize_grads=True)
    norms = torch.cat([grad.reshape(sentences, -1, grad.shape[-1]).norm(dim=-1).mean(0) for grad in grads]).flip(0)
    return (norms / norms[0]).numpy()


def textbook(width: int = 64, seed: int = 0) -> dict[str, Seq2Seq]:
    """Three untrained models of one width: a plain RNN and an LSTM without attention, and a Transformer.

    The cells start as torch starts them, the LSTM's forget gates with a bias of 1 (Jozefowicz et al. 2015). Models that Regard
    trains start from orthogonal matrices instead, with which a plain RNN forgets far more slowly.
    """
    plain = RNNConfig(cell="rnn", width=width, embedding=width, bidirectional=False, attention="none")
    kinds: dict[str, ModelConfig] = {
        "plain RNN": plain,
        "LSTM": replace(plain, cell="lstm"),
        "Transformer": TransformerConfig(width=width, ffn=4 * width),
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = {name: build_model(config, FIRST + 64, FIRST + 64) for name, config in kinds.items()}
        for cells in (part for model in made.values() for part in model.modules() if isinstance(part, nn.RNNBase)):
            cells.reset_parameters()
            if isinstance(cells, nn.LSTM):
                cells.get_parameter("bias_ih_l0").data[width : 2 * width] = 1.0
    return made
