"""How far back a prediction reaches: the gradient of the last target token's loss, at every token
before it.
"""

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
    model: Seq2Seq, length: int = 100, *, sentences: int = 16, seed: int = 0
) -> npt.NDArray[np.float64]:
    """(length,): the norm of the gradient at the embedding of the token so many places back, 1 at
    the nearest.

    The near half is the answer, the far half the source; all tokens are random, and norms are means
    over the sentences.
    """
    model = deepcopy(model).double().eval()  # in single precision a vanishing gradient is soon 0
    tables = [side.get_submodule("embedding") for side in (model.encoder, model.decoder)]
    read: list[Tensor] = []
    for table in dict.fromkeys(
        tables
    ):  # one, if they are tied; the source is looked up first in any case
        table.register_forward_hook(lambda module, inputs, output: read.append(output))
    random, lengths = torch.Generator().manual_seed(seed), (length - length // 2, length // 2 + 1)
    words = [table.get_parameter("weight").shape[0] for table in tables]
    source, target = (
        torch.randint(FIRST, v, (sentences, n), generator=random) for v, n in zip(words, lengths)
    )
    logits = model(source, torch.full((sentences,), source.shape[1]), target[:, :-1])
    grads = torch.autograd.grad(
        F.cross_entropy(logits[:, -1], target[:, -1], reduction="sum"), read, materialize_grads=True
    )
    norms = torch.cat(
        [grad.reshape(sentences, -1, grad.shape[-1]).norm(dim=-1).mean(0) for grad in grads]
    ).flip(0)
    return (norms / norms[0]).numpy()


def textbook(width: int = 64, seed: int = 0) -> dict[str, Seq2Seq]:
    """Three untrained models: a plain RNN and an LSTM without attention, and a Transformer.

    The cells start as torch starts them, forget gates with a bias of 1 (Jozefowicz et al. 2015).
    Models that Regard trains start from orthogonal matrices and no bias: then a plain RNN forgets
    far more slowly, and an LSTM faster.
    """
    rnn = RNNConfig(cell="rnn", width=width, embedding=width, bidirectional=False, attention="none")
    transformer = TransformerConfig(width=width, ffn=4 * width)
    kinds: dict[str, ModelConfig] = {
        "plain RNN": rnn,
        "LSTM": replace(rnn, cell="lstm"),
        "Transformer": transformer,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = {name: build_model(config, FIRST + 64, FIRST + 64) for name, config in kinds.items()}
        for cells in (
            part
            for model in made.values()
            for part in model.modules()
            if isinstance(part, nn.RNNBase)
        ):
            cells.reset_parameters()
            if isinstance(cells, nn.LSTM):
                cells.get_parameter("bias_ih_l0").data[width : 2 * width] = 1.0
    return made
