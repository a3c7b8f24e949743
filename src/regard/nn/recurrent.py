"""Recurrence: the textbook's cells, readable, and torch's fast ones over the same weights."""

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
    """W (gates·width, input), U (gates·width, width) and their biases; gates in torch's order."""

    w: Tensor
    u: Tensor
    b: Tensor
    bu: Tensor


def rnn_cell(x: Tensor, hidden: Hidden, p: CellWeights) -> Hidden:
    """h' = tanh(Wx + Uh + b) (Elman 1990)."""
    (h,) = hidden
    return (torch.tanh(x @ p.w.T + p.b + h @ p.u.T + p.bu),)


def gru_cell(x: Tensor, hidden: Hidden, p: CellWeights) -> Hidden:
    """r, z = σ(…); n = tanh(Wx + r ⊙ Uh); h' = (1 − z) ⊙ n + z ⊙ h (Cho et al. 2014)."""
    (h,) = hidden
    xr, xz, xn = (x @ p.w.T + p.b).chunk(3, dim=-1)
    hr, hz, hn = (h @ p.u.T + p.bu).chunk(3, dim=-1)
    reset, update = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
    new = torch.tanh(xn + reset * hn)
    return ((1 - update) * new + update * h,)


def lstm_cell(x: Tensor, hidden: Hidden, p: CellWeights) -> Hidden:
    """i, f, o = σ(…), g = tanh(…); c' = f ⊙ c + i ⊙ g; h' = o ⊙ tanh(c') (Hochreiter and
    Schmidhuber 1997, with forget gate).
    """
    h, c = hidden
    i, f, g, o = (x @ p.w.T + p.b + h @ p.u.T + p.bu).chunk(4, dim=-1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


Cell = Callable[[Tensor, Hidden, CellWeights], Hidden]
CELLS: dict[str, Cell] = {"rnn": rnn_cell, "gru": gru_cell, "lstm": lstm_cell}
FAST: dict[str, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


class Recurrent(nn.Module):
    """Layers of one kind of cell over (B, T, D). Padding never reaches the final state.

    fast=False walks through time with the readable cell, over the same weights.
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
        make_layers = look_up("cell", kind, FAST)
        self.torch = make_layers(
            inputs, width, layers, batch_first=True, bidirectional=bidirectional, dropout=between
        )
        self.kind, self.width, self.layers, self.fast = kind, width, layers, fast
        self.directions, self.dropout = 2 if bidirectional else 1, between
        self.parts = 2 if kind == "lstm" else 1  # (h, c) or (h,)
        for name, parameter in self.torch.named_parameters():
            if "weight_hh" in name:
                with torch.no_grad():
                    for gate in parameter.chunk(parameter.shape[0] // width):
                        nn.init.orthogonal_(gate)
            elif "weight_ih" in name:
                nn.init.xavier_uniform_(parameter)
            else:
                nn.init.zeros_(parameter)

    def zeros(self, like: Tensor) -> Hidden:
        """The state before anything was read; like: (B, …)."""
        return (
            like.new_zeros(self.layers * self.directions, like.shape[0], self.width),
        ) * self.parts

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, hidden: Hidden | None = None
    ) -> tuple[Tensor, Hidden]:
        """x (B, T, D) -> outputs (B, T, directions × width), zeros in the padding; the state after
        each sentence's last token.
        """
        hidden = self.zeros(x) if hidden is None else hidden
        return (
            self._by_torch(x, lengths, hidden) if self.fast else self._by_hand(x, lengths, hidden)
        )

    def _by_torch(self, x: Tensor, lengths: Tensor | None, hidden: Hidden) -> tuple[Tensor, Hidden]:
        if x.is_cuda and torch.is_autocast_enabled(
            "cuda"
        ):  # autocast would hand cuDNN fp16, whatever it was told
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
        batch, time = x.shape[:2]
        real = (
            torch.full((batch,), time, device=x.device) if lengths is None else lengths.to(x.device)
        )
        ends: list[Hidden] = []
        for layer in range(self.layers):
            outputs = []
            for direction in range(self.directions):
                index = layer * self.directions + direction
                start = tuple(part[index] for part in hidden)
                read = _reverse(x, real) if direction else x
                out, end = self._walk(read, real, start, self._weights(layer, direction))
                outputs.append(_reverse(out, real) if direction else out)
                ends.append(end)
            x = torch.cat(outputs, dim=-1)
            if layer + 1 < self.layers:
                x = F.dropout(x, self.dropout, self.training)
        return x, tuple(torch.stack([end[part] for end in ends]) for part in range(self.parts))

    def _walk(
        self, x: Tensor, lengths: Tensor, hidden: Hidden, weights: CellWeights
    ) -> tuple[Tensor, Hidden]:
        outputs = []
        for t in range(x.shape[1]):
            inside = (t < lengths)[:, None]
            new = CELLS[self.kind](x[:, t], hidden, weights)
            hidden = tuple(torch.where(inside, n, h) for n, h in zip(new, hidden, strict=True))
            outputs.append(torch.where(inside, new[0], 0.0))
        return torch.stack(outputs, dim=1), hidden

    def _weights(self, layer: int, direction: int) -> CellWeights:
        end = f"_l{layer}" + ("_reverse" if direction else "")
        return CellWeights(
            *(
                getattr(self.torch, n + end)
                for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
        )


def _reverse(x: Tensor, lengths: Tensor) -> Tensor:
    """Turn each sentence (B, T, D) around within its own length."""
    time = torch.arange(x.shape[1], device=x.device)
    index = torch.where(time < lengths[:, None], lengths[:, None] - 1 - time, time)
    return x.gather(1, index[..., None].expand_as(x))
