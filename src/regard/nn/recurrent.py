"""Recurrent layers: readable cells as in a textbook, or torch's fast ones with the same weights."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.nn.names import look_up

Hidden = tuple[Tensor, ...]
"""(h,) or, for the LSTM, (h, c); each (layers × directions, B, width)."""


@dataclass(frozen=True)
class CellWeights:
    """The weights of one layer in one direction; the gates are in torch's order."""

    w: Tensor
    """Of the input: (gates · width, input)."""
    u: Tensor
    """Of the state: (gates · width, width)."""
    b: Tensor
    """Beside W: (gates · width,)."""
    bu: Tensor
    """Beside U: (gates · width,)."""


def rnn_cell(x: Tensor, hidden: Hidden, weights: CellWeights) -> Hidden:
    """h' = tanh(Wx + Uh + b) (Elman 1990)."""
    (h,) = hidden
    return (torch.tanh(x @ weights.w.T + weights.b + h @ weights.u.T + weights.bu),)


def linear_cell(x: Tensor, hidden: Hidden, weights: CellWeights) -> Hidden:
    """h' = Wx + Uh + b: an RNN without tanh, whose gradient over ℓ steps is Uˡ."""
    (h,) = hidden
    return (x @ weights.w.T + weights.b + h @ weights.u.T + weights.bu,)


def gru_cell(x: Tensor, hidden: Hidden, weights: CellWeights) -> Hidden:
    """r, z = σ(…); n = tanh(Wx + r ⊙ Uh); h' = (1 − z) ⊙ n + z ⊙ h (Cho et al. 2014)."""
    (h,) = hidden
    xr, xz, xn = (x @ weights.w.T + weights.b).chunk(3, dim=-1)
    hr, hz, hn = (h @ weights.u.T + weights.bu).chunk(3, dim=-1)
    reset = torch.sigmoid(xr + hr)
    update = torch.sigmoid(xz + hz)
    new = torch.tanh(xn + reset * hn)
    return ((1 - update) * new + update * h,)


def lstm_cell(x: Tensor, hidden: Hidden, weights: CellWeights) -> Hidden:
    """i, f, o = σ(…); g = tanh(…); c' = f ⊙ c + i ⊙ g; h' = o ⊙ tanh(c').

    Hochreiter and Schmidhuber 1997, with a forget gate.
    """
    h, c = hidden
    i, f, g, o = (x @ weights.w.T + weights.b + h @ weights.u.T + weights.bu).chunk(4, dim=-1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


Cell = Callable[[Tensor, Hidden, CellWeights], Hidden]
CELLS: dict[str, Cell] = {
    "rnn": rnn_cell,
    "gru": gru_cell,
    "lstm": lstm_cell,
    "linear": linear_cell,
}
LAYERS: dict[str, Callable[..., nn.RNNBase]] = {
    "rnn": nn.RNN,
    "gru": nn.GRU,
    "lstm": nn.LSTM,
    "linear": nn.RNN,  # for its weights; torch has no linear cell to compute with
}


class Recurrent(nn.Module):
    """A recurrent network of one or more layers: inputs (B, T, D) -> outputs and final state.

    kind: `rnn`, `gru`, `lstm` or `linear`. Padding does not affect the final state. fast=False
    steps through time with a readable cell and the same weights; `linear` always does.
    """

    def __init__(
        self,
        kind: str,
        inputs: int,
        width: int,
        *,
        layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
        fast: bool = True,
    ) -> None:
        super().__init__()
        between = dropout if layers > 1 else 0.0
        make_layers = look_up("cell", kind, LAYERS)
        self.torch = make_layers(
            inputs, width, layers, batch_first=True, bidirectional=bidirectional, dropout=between
        )
        self.kind = kind
        self.width = width
        self.layers = layers
        self.fast = fast and kind != "linear"
        self.directions = 2 if bidirectional else 1
        self.dropout = between
        self.parts = 2 if kind == "lstm" else 1  # (h, c) or (h,)
        self._initialise()

    def _initialise(self) -> None:
        """Orthogonal matrices for the state, gate by gate; Xavier for the input; biases of zero."""
        for name, parameter in self.torch.named_parameters():
            if "weight_hh" in name:
                with torch.no_grad():
                    for gate in parameter.chunk(parameter.shape[0] // self.width):
                        nn.init.orthogonal_(gate)
            elif "weight_ih" in name:
                nn.init.xavier_uniform_(parameter)
            else:
                nn.init.zeros_(parameter)

    def zeros(self, like: Tensor) -> Hidden:
        """The state before anything was read, of as many rows as `like` (B, …) has."""
        zeros = like.new_zeros(self.layers * self.directions, like.shape[0], self.width)
        return (zeros,) * self.parts

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, hidden: Hidden | None = None
    ) -> tuple[Tensor, Hidden]:
        """x (B, T, D) -> outputs (B, T, directions × width), and the state after the last tokens.

        lengths (B,): where each sentence ends (default: none has padding). Outputs are zero in the
        padding. hidden: the state to begin with (default: zeros).
        """
        if hidden is None:
            hidden = self.zeros(x)
        if self.fast:
            return self._by_torch(x, lengths, hidden)
        return self._by_hand(x, lengths, hidden)

    def _by_torch(self, x: Tensor, lengths: Tensor | None, hidden: Hidden) -> tuple[Tensor, Hidden]:
        """`forward` by torch's layers."""
        # Autocast would give cuDNN fp16, whatever type was asked for.
        if x.is_cuda and torch.is_autocast_enabled("cuda"):
            with torch.autocast("cuda", enabled=False):
                return self._by_torch(x.float(), lengths, tuple(part.float() for part in hidden))

        start = hidden if self.parts == 2 else hidden[0]
        if lengths is None:
            outputs, end = self.torch(x, start)
        else:
            packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
            outputs, end = self.torch(packed, start)
            outputs, _ = pad_packed_sequence(outputs, batch_first=True, total_length=x.shape[1])
        return outputs, (tuple(end) if self.parts == 2 else (end,))

    def _by_hand(self, x: Tensor, lengths: Tensor | None, hidden: Hidden) -> tuple[Tensor, Hidden]:
        """`forward` by the readable cells, layer by layer and step by step."""
        batch, time = x.shape[:2]
        if lengths is None:
            lengths = torch.full((batch,), time, device=x.device)
        else:
            lengths = lengths.to(x.device)

        ends: list[Hidden] = []
        for layer in range(self.layers):
            outputs = []
            for direction in range(self.directions):
                index = layer * self.directions + direction
                start = tuple(part[index] for part in hidden)
                weights = self._weights(layer, direction)
                if direction == 0:
                    out, end = self._walk(x, lengths, start, weights)
                else:
                    backwards, end = self._walk(_reverse(x, lengths), lengths, start, weights)
                    out = _reverse(backwards, lengths)
                outputs.append(out)
                ends.append(end)
            x = torch.cat(outputs, dim=-1)  # (B, T, directions × width)
            if layer + 1 < self.layers:
                x = F.dropout(x, self.dropout, self.training)

        return x, tuple(torch.stack([end[part] for end in ends]) for part in range(self.parts))

    def _walk(
        self, x: Tensor, lengths: Tensor, hidden: Hidden, weights: CellWeights
    ) -> tuple[Tensor, Hidden]:
        """One layer in one direction over x (B, T, D) -> outputs (B, T, width), the last state."""
        cell = CELLS[self.kind]
        outputs = []
        for t in range(x.shape[1]):
            inside = (t < lengths)[:, None]  # (B, 1)
            new = cell(x[:, t], hidden, weights)
            pairs = zip(new, hidden, strict=True)
            hidden = tuple(torch.where(inside, after, before) for after, before in pairs)
            outputs.append(torch.where(inside, new[0], 0.0))
        return torch.stack(outputs, dim=1), hidden

    def _weights(self, layer: int, direction: int) -> CellWeights:
        """The weights that torch's layers keep under these names."""
        suffix = f"_l{layer}"
        if direction:
            suffix += "_reverse"
        return CellWeights(
            w=getattr(self.torch, "weight_ih" + suffix),
            u=getattr(self.torch, "weight_hh" + suffix),
            b=getattr(self.torch, "bias_ih" + suffix),
            bu=getattr(self.torch, "bias_hh" + suffix),
        )


def _reverse(x: Tensor, lengths: Tensor) -> Tensor:
    """Turn each sentence (B, T, D) around within its own length."""
    time = torch.arange(x.shape[1], device=x.device)  # (T,)
    ends = lengths[:, None]  # (B, 1)
    index = torch.where(time < ends, ends - 1 - time, time)  # (B, T)
    return x.gather(1, index[..., None].expand_as(x))
