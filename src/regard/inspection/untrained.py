"""What a course shows about gradients, measured on untrained models: a panel of curves for each."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from regard.config import ModelConfig, RNNConfig, TrainConfig, TransformerConfig
from regard.inspection.flow import (
    FORGOTTEN,
    gradient_by_depth,
    gradient_flow,
    gradient_norms,
    reach,
)
from regard.models import Seq2Seq, build_model
from regard.nn import FeedForward
from regard.pictures.gradients import Panel
from regard.text.vocabulary import FIRST

VOCABULARY = FIRST + 64
LAYERS = 16
"""Of the networks that show depth."""
LONGEST = 200
"""Tokens of a linear cell, whose gradient would soon be larger than any number."""
Cell = Literal["rnn", "gru", "lstm", "linear"]
Change = Callable[[nn.RNNBase], None]
"""What to do to the layers of a new recurrent model."""


def gradient_panels(length: int = 100, width: int = 64, seed: int = 0) -> list[Panel]:
    """Six panels: cells as Regard starts them, as textbooks do, attention, explosion, clipping,
    depth.

    length: random tokens, source and answer together.
    """
    return [
        our_cells(length, width, seed),
        textbook_cells(length, width, seed),
        with_attention(length, width, seed),
        linear_cells(min(length, LONGEST), width, seed),
        clipping(min(length, LONGEST), width, seed),
        depth(width, seed),
    ]


def our_cells(length: int = 100, width: int = 64, seed: int = 0) -> Panel:
    """The cells that Regard trains, as it starts them, and an LSTM with forget gates opened."""
    models = {
        "plain RNN": _recurrent("rnn", width, seed),
        "GRU": _recurrent("gru", width, seed),
        "LSTM": _recurrent("lstm", width, seed),
        "LSTM, forget bias 1": _recurrent("lstm", width, seed, _forget_bias(1.0)),
    }
    flows = _flows(models, length)
    title = "Cells as Regard starts them: orthogonal, biases 0"
    if _reach(flows["plain RNN"]) > _reach(flows["LSTM"]):
        title += "\nThe reverse of the textbook: the plain RNN reaches farther than the LSTM"
    return _by_distance(title, _with_reach(flows))


def textbook_cells(length: int = 100, width: int = 64, seed: int = 0) -> Panel:
    """The same cells as torch starts them, the LSTM with forget biases of 0, 1 and 2.

    Forget gates that start open are what makes an LSTM remember (Jozefowicz et al. 2015).
    """

    def start(forget: float) -> Change:
        def change(layers: nn.RNNBase) -> None:
            layers.reset_parameters()
            if forget:
                _forget_bias(forget)(layers)

        return change

    models = {
        "plain RNN": _recurrent("rnn", width, seed, start(0)),
        "LSTM": _recurrent("lstm", width, seed, start(0)),
        "LSTM, forget bias 1": _recurrent("lstm", width, seed, start(1.0)),
        "LSTM, forget bias 2": _recurrent("lstm", width, seed, start(2.0)),
    }
    title = (
        "Cells as textbooks start them: small random matrices\n"
        "“An RNN reaches 7 tokens, an LSTM 100”: if its forget gates are open"
    )
    return _by_distance(title, _with_reach(_flows(models, length)))


def with_attention(length: int = 100, width: int = 64, seed: int = 0) -> Panel:
    """An LSTM without and with attention, and a Transformer, as Regard starts them."""
    attention = RNNConfig(cell="lstm", width=width, embedding=width, bidirectional=False)
    models = {
        "LSTM without attention": _recurrent("lstm", width, seed),
        "LSTM with attention": _built(attention, seed),
        "Transformer": _built(TransformerConfig(width=width, ffn=4 * width), seed),
    }
    title = "Attention is a short way to every source token\nModels as Regard starts them"
    return _by_distance(title, _flows(models, length))


def linear_cells(length: int = 100, width: int = 64, seed: int = 0) -> Panel:
    """A linear cell, whose gradient over ℓ steps is its matrix to the power of ℓ."""
    models = {
        f"eigenvalues of size {factor:g}": _recurrent("linear", width, seed, _scaled(factor))
        for factor in (1.1, 1.0, 0.9)
    }
    title = (
        "A linear cell explodes or vanishes\nGradient over ℓ steps: its matrix to the power of ℓ"
    )
    return _by_distance(title, _flows(models, length))


def clipping(length: int = 100, width: int = 64, seed: int = 0) -> Panel:
    """The gradient of all weights against the length of a sentence, before clipping and after."""
    lengths = np.unique(np.linspace(2, length, 12).astype(int))
    norms = {
        factor: gradient_norms(_recurrent("linear", width, seed, _scaled(factor)), lengths.tolist())
        for factor in (1.1, 1.0)
    }
    largest = TrainConfig().clip
    return Panel(
        f"Clipping bounds what explodes (train.clip={largest:g})\nThe direction stays; what has "
        f"vanished does not come back",
        {
            "linear cell, eigenvalues of size 1.1": norms[1.1],
            "the same, clipped": np.minimum(norms[1.1], largest),
            "linear cell, eigenvalues of size 1": norms[1.0],
        },
        "tokens of the sentence",
        "norm of the gradient of all weights",
        x=lengths,
    )


def depth(width: int = 64, seed: int = 0, layers: int = LAYERS) -> Panel:
    """The gradient against depth, with residual connections and without them.

    Feed-forward layers alone have no norms, as textbooks draw a deep network; the encoder of a
    Transformer has.
    """
    encoder = TransformerConfig(
        width=width, ffn=4 * width, encoder_layers=layers, decoder_layers=1, dropout=0.0
    )
    without = replace(encoder, residual=False)
    curves = {
        "feed-forward": _feedforward_depth(width, seed, layers, residual=False),
        "feed-forward, residual": _feedforward_depth(width, seed, layers, residual=True),
        "Transformer": gradient_by_depth(_built(encoder, seed)),
        "Transformer, no residual": gradient_by_depth(_built(without, seed)),
    }
    return Panel(
        f"Depth: {layers} layers, with and without residual connections\n"
        f"They keep the gradient’s size; so do the norms of a Transformer",
        curves,
        "layers below the last one",
        "norm of the gradient (last layer = 1)",
    )


def _feedforward_depth(width: int, seed: int, layers: int, *, residual: bool) -> np.ndarray:
    """Norm of the gradient at the output of each feed-forward layer, last layer first: (layers,).

    The gradient is that of a random mixture of the last layer's outputs, for random inputs.
    """
    outputs: list[Tensor] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        x = torch.randn(16, width, dtype=torch.double, requires_grad=True)
        mixture = torch.randn(16, width, dtype=torch.double)
        for _ in range(layers):
            layer = FeedForward(width).double()
            x = x + layer(x) if residual else layer(x)  # (16, D)
            outputs.append(x)
    gradients = torch.autograd.grad((x * mixture).sum(), outputs)
    norms = torch.stack([gradient.norm() for gradient in gradients]).flip(0)  # (layers,)
    return (norms / norms[0]).numpy()


def _by_distance(title: str, flows: Mapping[str, np.ndarray]) -> Panel:
    """A panel of flows, with the border between answer and source."""
    length = max(map(len, flows.values()))
    return Panel(
        title,
        flows,
        "tokens before the predicted one",
        "norm of the gradient (nearest = 1)",
        answer=length // 2,
        mark=FORGOTTEN,
    )


def _with_reach(flows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The flows by names that tell how far they reach."""
    named = {}
    for name, flow in flows.items():
        tokens = reach(flow)
        words = f"over 1% at {len(flow)}" if tokens is None else f"under 1% after {tokens}"
        named[f"{name}: {words}"] = flow
    return named


def _reach(flow: np.ndarray) -> int:
    """The tokens that a flow reaches, all of them if it never falls."""
    tokens = reach(flow)
    return len(flow) if tokens is None else tokens


def _flows(models: Mapping[str, Seq2Seq], length: int) -> dict[str, np.ndarray]:
    """The flow of each model; of fewer sentences where they are long."""
    sentences = max(1, min(16, 1600 // length))
    return {
        name: gradient_flow(model, length, sentences=sentences) for name, model in models.items()
    }


def _recurrent(cell: Cell, width: int, seed: int, change: Change | None = None) -> Seq2Seq:
    """A recurrent model without attention, one layer each for source and target."""
    config = RNNConfig(
        cell=cell, width=width, embedding=width, bidirectional=False, attention="none"
    )
    return _built(config, seed, change)


def _built(config: ModelConfig, seed: int, change: Change | None = None) -> Seq2Seq:
    """A new model of this seed; the caller's random numbers stay as they are."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build_model(config, VOCABULARY, VOCABULARY)
        if change is not None:
            for module in model.modules():
                if isinstance(module, nn.RNNBase):
                    change(module)
    return model


def _forget_bias(bias: float) -> Change:
    """Start the forget gates of an LSTM open."""

    def change(layers: nn.RNNBase) -> None:
        width = layers.hidden_size
        for layer in range(layers.num_layers):
            layers.get_parameter(f"bias_ih_l{layer}").data[width : 2 * width] = bias

    return change


def _scaled(factor: float) -> Change:
    """Multiply the matrix of the states."""

    def change(layers: nn.RNNBase) -> None:
        for layer in range(layers.num_layers):
            layers.get_parameter(f"weight_hh_l{layer}").data.mul_(factor)

    return change
