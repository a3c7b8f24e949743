"""Attention: the pure formula, the module around it, and a way to watch the weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import UserError
from regard.nn.masks import Layout, Mask, masked_softmax
from regard.nn.positions import Position
from regard.nn.scores import SCORES, Score
from regard.nn.state import KeyValue


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | Mask | None, score: Score) -> tuple[Tensor, Tensor]:
    """softmax(score(q, k)) v: the formula that everything else here must equal.

    query (B, H, T, Dq), key (B, H, S, Dk), value (B, H, S, Dv) -> output (B, H, T, Dv), weights (B, H, T, S).
    """
    weights = masked_softmax(score(query, score.prepare(key)), mask)
    return weights @ value, weights


class Record:
    """What was seen while watching: `weights[name]` holds one tensor (B, H, T, S) per call of the attention of that name."""

    def __init__(self, names: dict[int, str]) -> None:
        self.names = names
        self.weights: dict[str, list[Tensor]] = {}

    def add(self, module: nn.Module, weights: Tensor) -> None:
        if id(module) in self.names:
            self.weights.setdefault(self.names[id(module)], []).append(weights.detach())


_record: ContextVar[Record | None] = ContextVar("regard_record", default=None)


@contextmanager
def watch(model: nn.Module) -> Iterator[Record]:
    """Record the weights of every Attention in the model. Only this thread's calls; no output bit changes."""
    names = {id(m): name for name, m in model.named_modules() if isinstance(m, Attention)}
    token = _record.set(record := Record(names))
    try:
        yield record
    finally:
        _record.reset(token)


class Attention(nn.Module):
    """Bahdanau, Luong, multi-head, self, cross, causal: one class.

    width: of the query. key_width, value_width: of what is looked at (default: width). inner: of all heads together
    (default: width). output: of the result (default: width). projections=False: the textbook's raw form; one head
    compares the query itself with the keys themselves and pools the values themselves.
    """

    def __init__(
        self,
        width: int,
        *,
        key_width: int | None = None,
        value_width: int | None = None,
        inner: int | None = None,
        output: int | None = None,
        heads: int = 1,
        score: str | type[Score] = "scaled_dot",
        score_width: int = 0,
        position: Position | None = None,
        projections: bool = True,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        key_width, inner = key_width or width, inner or width
        value_width = value_width or key_width
        if inner % heads or (heads > 1 and not projections):
            raise UserError(f"{heads} heads need projections and an inner width they divide (it is {inner})")
        make = SCORES[score] if isinstance(score, str) else score
        if projections:
            self.query = nn.Linear(width, inner, bias=bias)
            self.key = nn.Linear(key_width, inner, bias=bias)
            self.value = nn.Linear(value_width, inner, bias=bias)
            self.output = nn.Linear(inner, output or width, bias=bias)
            for layer in (self.query, self.key, self.value, self.output):
                nn.init.xavier_uniform_(layer.weight)
                if bias:
                    nn.init.zeros_(layer.bias)
            self.score: Score = make(heads, inner // heads, inner // heads, score_width)
        else:
            self.score = make(1, width, key_width, score_width)
        self.position = position or Position(inner, heads)
        self.heads, self.projections, self.dropout = heads, projections, dropout
        self.fused = self.score.scale is not None and self.position.fused
        """Whether a fused kernel can compute this; set it to False to take the readable path."""

    def _heads(self, x: Tensor, layout: Layout | None) -> Tensor:
        x = layout.pad(x) if layout else x
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def project(
        self, keys: Tensor, values: Tensor | None = None, positions: Tensor | None = None, layout: Layout | None = None
    ) -> KeyValue:
        """What depends on the source alone, done once. keys, values: (B, S, D), or packed (N, D) with their layout."""
        values = keys if values is None else values
        if self.projections:
            keys, values = self.key(keys), self.value(values)
        key, value = self._heads(keys, layout), self._heads(values, layout)
        if positions is None:
            positions = _count(key)
        return KeyValue(self.score.prepare(self.position.rotate(key, positions)), value, positions)

    def forward(
        self, query: Tensor, memory: KeyValue, mask: Mask, positions: Tensor | None = None, layout: Layout | None = None
    ) -> Tensor:
        """query (B, T, D), or packed (N, D) with its layout -> the same shape, looked up in memory."""
        q = self._heads(self.query(query) if self.projections else query, layout)
        if positions is None:
            positions = _count(q)
        q = self.position.rotate(q, positions)
        record = _record.get()
        if self.fused:
            found = self._fast(q, memory, mask, positions)
            if record is not None:
                record.add(self, self._weights(q, memory, mask, positions))
        else:
            weights = self._weights(q, memory, mask, positions)
            if record is not None:
                record.add(self, weights)
            found = self._pool(weights, memory, positions)
        found = found.transpose(1, 2).flatten(2)
        found = layout.pack(found) if layout else found
        return self.output(found) if self.projections else found

    def _weights(self, q: Tensor, memory: KeyValue, mask: Mask, positions: Tensor) -> Tensor:
        scores = self.score(q, memory.key)
        term = self.position.key_term(q, positions, memory.positions)
        return masked_softmax(scores if term is None else scores + term, mask)

    def _pool(self, weights: Tensor, memory: KeyValue, positions: Tensor) -> Tensor:
        weights = F.dropout(weights, self.dropout, self.training)
        found = weights @ memory.value
        term = self.position.value_term(weights, positions, memory.positions)
        return found if term is None else found + term

    def _fast(self, q: Tensor, memory: KeyValue, mask: Mask, positions: Tensor) -> Tensor:
        """The same by torch's fused kernel."""
        queries, keys = q.shape[2], len(memory)
        allowed: Tensor | None = None
        # The kernel's own causal rule counts from the top left, so it serves only a square without other rules.
        square = mask.only_causal and mask.offset == 0 and queries == keys
        newest = mask.only_causal and mask.offset == keys - 1 and queries == 1
        if not (square or newest or mask.trivial):
            allowed = mask.dense(queries, keys, q.device)
        term = self.position.key_term(q, positions, memory.positions)
        if term is not None:
            square = False
            hidden = None if newest or mask.trivial else ~mask.dense(queries, keys, q.device)
            allowed = term if hidden is None else term.masked_fill(hidden, float("-inf"))
        dropout = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(
            q, memory.key, memory.value, attn_mask=allowed, dropout_p=dropout, is_causal=square, scale=self.score.scale
        )


def _count(x: Tensor) -> Tensor:
    """Positions 0, 1, 2, … for (B, H, T, D)."""
    return torch.arange(x.shape[2], device=x.device).expand(x.shape[0], -1)
