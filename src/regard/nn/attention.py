"""Attention: the pure formula, the module around it, and a way to watch the weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import UserError
from regard.nn.kernels import dropout, pooled, pooled_own
from regard.nn.masks import Layout, Mask, masked_softmax
from regard.nn.positions import Position
from regard.nn.scores import SCORES, Score
from regard.nn.state import KeyValue

TRITON = find_spec("triton") is not None  # comes with torch where there may be a GPU
SHORT = {"cpu": 256, "cuda": 64}
"""Keys up to which training is faster with whole matrices of weights than with torch's blocked kernels."""


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | Mask | None, score: Score) -> tuple[Tensor, Tensor]:
    """softmax(score(q, k)) v: the formula that everything else here must equal.

    query (B, H, T, Dq), key (B, H, S, Dk), value (B, H, S, Dv) -> output (B, H, T, Dv), weights (B, H, T, S).
    """
    weights = masked_softmax(score(query, score.prepare(key)), mask)
    return weights @ value, weights


class Record:
    """What was seen while watching: `weights[name]` holds one tensor (B, H, T, S) per call of the attention of that name.

    `norms[name]` (B, H, S), of its last call: how long the vector is that a place hands over if looked at with weight 1.
    """

    def __init__(self, names: dict[int, str]) -> None:
        self.names = names
        self.weights: dict[str, list[Tensor]] = {}
        self.norms: dict[str, Tensor] = {}

    def add(self, module: "Attention", weights: Tensor, value: Tensor) -> None:
        if (name := self.names.get(id(module))) is not None:
            self.weights.setdefault(name, []).append(weights.detach())
            self.norms[name] = module.lengths(value.detach())


_record: ContextVar[Record | None] = ContextVar("regard_record", default=None)
_watchers: list[Record] = []  # empty: nobody watches anywhere, which a compiler can see


def _watching() -> Record | None:
    return _record.get() if _watchers else None


@contextmanager
def watch(model: nn.Module) -> Iterator[Record]:
    """Record the weights of every Attention in the model. Only this thread's calls; no output bit changes."""
    names = {id(m): name for name, m in model.named_modules() if isinstance(m, Attention)}
    token = _record.set(record := Record(names))
    _watchers.append(record)
    try:
        yield record
    finally:
        _watchers.remove(record)
        _record.reset(token)


class Attention(nn.Module):
    """Bahdanau, Luong, multi-head, self, cross, causal: one class.

    width: of the query. key_width, value_width: of what is looked at (default: width). inner: of all heads together
    (default: width). output: of the result (default: width). own: the queries look at themselves, so one product makes
    query, key and value (`read`). projections=False: the textbook's raw form; one head compares the query itself with the
    keys themselves and pools the values themselves.
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
        own: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        key_width, inner = key_width or width, inner or width
        value_width = value_width or key_width
        if inner % heads or (heads > 1 and not projections):
            raise UserError(f"{heads} heads need projections and an inner width they divide (it is {inner})")
        make = SCORES[score] if isinstance(score, str) else score
        if own:
            self.qkv = nn.Linear(width, 3 * inner, bias=bias)
        elif projections:
            self.query = nn.Linear(width, inner, bias=bias)
            if key_width == value_width:
                self.keyvalue = nn.Linear(key_width, 2 * inner, bias=bias)
            else:
                self.key, self.value = nn.Linear(key_width, inner, bias=bias), nn.Linear(value_width, inner, bias=bias)
        if projections:
            self.output = nn.Linear(inner, output or width, bias=bias)
            self._start()
            self.score: Score = make(heads, inner // heads, inner // heads, score_width)
        else:
            self.score = make(1, width, key_width, score_width)
        self.position = position or Position(inner, heads)
        self.heads, self.projections, self.own, self.dropout = heads, projections, own, dropout
        self.packs = True
        """Whether kernels of variable length may compute this: they know no other rule than the past."""
        self.fused = self.score.scale is not None and self.position.fused
        """Whether a fused kernel can compute this; set it to False to take the readable path."""

    def _start(self) -> None:
        for name, layer in self.named_children():
            assert isinstance(layer, nn.Linear)
            parts = {"qkv": 3, "keyvalue": 2}.get(name, 1)
            for part in layer.weight.data.chunk(parts):
                nn.init.xavier_uniform_(part)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def _heads(self, x: Tensor, layout: Layout | None) -> Tensor:
        """(N, D) or (B, T, D) -> (B, H, T, D/H); packed rows stay as they are where a kernel takes them: (N, H, D/H)."""
        if self._packs(layout):
            return x.unflatten(-1, (self.heads, -1))
        x = layout.spread(x) if layout else x
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def _packs(self, layout: Layout | None) -> bool:
        plain = type(self.position) is Position and self.fused and self.packs and not (self.dropout and self.training)
        return (
            layout is not None and layout.offsets is not None and layout.length > SHORT["cuda"] and plain and _watching() is None
        )

    def read(self, x: Tensor, positions: Tensor | None = None, layout: Layout | None = None) -> tuple[Tensor, KeyValue]:
        """The queries of x and what they find there, for `look`: (B, T, D), or packed (N, D) with its layout."""
        if not self.own:
            return self.ask(x, positions, layout), self.project(x, None, positions, layout)
        packs = self._packs(layout)
        if torch.compiler.is_compiling():  # three products, since gathering the gradient of one costs a GPU more than it saves
            w, b = self.qkv.weight.chunk(3), [None] * 3 if self.qkv.bias is None else self.qkv.bias.chunk(3)
            q, k, v = (self._heads(F.linear(x, w[i], b[i]), layout) for i in range(3))
        else:
            whole = layout.spread(self.qkv(x)) if layout and not packs else self.qkv(x)
            q, k, v = (self._heads(part, layout if packs else None) for part in whole.chunk(3, -1))
        if not packs:
            q = self.position.rotate(q, positions := _count(q) if positions is None else positions)
        return q, self._remember(k, v, positions, layout)

    def itself(self, x: Tensor, mask: Mask, positions: Tensor, layout: Layout) -> Tensor:
        """`look(*read(x))` where nobody needs the keys afterwards; in training this is faster."""
        plain = self.own and self.fused and type(self.position) is Position and type(self.score).prepare is Score.prepare
        short = layout.length <= SHORT[x.device.type] and mask.extra is None and torch.is_grad_enabled()
        if not (plain and short) or torch.compiler.is_compiling():
            q, memory = self.read(x, positions, layout)
            return self.look(q, memory, mask, positions, layout)
        assert self.score.scale is not None
        if record := _watching():
            q, memory = self.read(x, positions, layout)
            record.add(self, self._weights(q, memory, mask, positions), memory.value)
        whole = layout.spread(self.qkv(x))
        bias = None if mask.trivial else mask.bias(layout.length, layout.length, whole)
        found = pooled_own(whole, self.heads, bias, self.score.scale, self.dropout if self.training else 0.0)
        return self.output(layout.pack(found))

    def ask(self, query: Tensor, positions: Tensor | None = None, layout: Layout | None = None) -> Tensor:
        """The queries of x, for `look`."""
        q = self._heads(self.query(query) if self.projections else query, layout)
        return q if self._packs(layout) else self.position.rotate(q, _count(q) if positions is None else positions)

    def project(
        self, keys: Tensor, values: Tensor | None = None, positions: Tensor | None = None, layout: Layout | None = None
    ) -> KeyValue:
        """What depends on the source alone, done once. keys, values: (B, S, D), or packed (N, D) with their layout."""
        if self.projections and values is None and hasattr(self, "keyvalue"):
            packs, both = self._packs(layout), self.keyvalue(keys)
            both = layout.spread(both) if layout and not packs else both
            key, value = (self._heads(part, layout if packs else None) for part in both.chunk(2, -1))
            return self._remember(key, value, positions, layout)
        values = keys if values is None else values
        if self.projections and hasattr(self, "keyvalue"):  # other values than keys
            w, b = self.keyvalue.weight.chunk(2), (None, None) if self.keyvalue.bias is None else self.keyvalue.bias.chunk(2)
            keys, values = F.linear(keys, w[0], b[0]), F.linear(values, w[1], b[1])
        elif self.projections:
            keys, values = self.key(keys), self.value(values)
        return self._remember(self._heads(keys, layout), self._heads(values, layout), positions, layout)

    def _remember(self, key: Tensor, value: Tensor, positions: Tensor | None, layout: Layout | None) -> KeyValue:
        if self._packs(layout):
            return KeyValue(self.score.prepare(key), value, key.new_empty(0), layout=layout)
        positions = _count(key) if positions is None else positions
        return KeyValue(self.score.prepare(self.position.rotate(key, positions)), value, positions)

    def forward(
        self, query: Tensor, memory: KeyValue, mask: Mask, positions: Tensor | None = None, layout: Layout | None = None
    ) -> Tensor:
        """query (B, T, D), or packed (N, D) with its layout -> the same shape, looked up in memory."""
        return self.look(self.ask(query, positions, layout), memory, mask, positions, layout)

    def look(
        self, q: Tensor, memory: KeyValue, mask: Mask, positions: Tensor | None = None, layout: Layout | None = None
    ) -> Tensor:
        """The same for queries that `ask` or `read` made."""
        if memory.layout is not None:
            assert layout is not None
            found = _by_length(q, memory, mask, layout, self.score.scale).flatten(1)
            return self.output(found) if self.projections else found
        positions = _count(q) if positions is None else positions
        record = _watching()
        if self.fused:
            found = self._fast(q, memory, mask, positions)
            if record is not None:
                record.add(self, self._weights(q, memory, mask, positions), memory.value)
        else:
            weights = self._weights(q, memory, mask, positions)
            if record is not None:
                record.add(self, weights, memory.value)
            found = self._pool(weights, memory, positions)
        found = found.transpose(1, 2).flatten(2)
        found = layout.pack(found) if layout else found
        return self.output(found) if self.projections else found

    def lengths(self, value: Tensor) -> Tensor:
        """(B, H, S): of what each head makes of a value (B, H, S, D) for the output (Kobayashi et al. 2020)."""
        if self.projections:
            by_head = self.output.weight.detach().unflatten(1, (self.heads, -1)).movedim(1, 0)  # (H, out, D)
            value = value @ by_head.mT.to(value.dtype)
        return value.float().norm(dim=-1)

    def _weights(self, q: Tensor, memory: KeyValue, mask: Mask, positions: Tensor) -> Tensor:
        scores = self.score(q, memory.key)
        term = self.position.key_term(q, positions, memory.positions)
        return masked_softmax(scores if term is None else scores + term, mask)

    def _pool(self, weights: Tensor, memory: KeyValue, positions: Tensor) -> Tensor:
        weights = dropout(weights, self.dropout, self.training)
        found = weights @ memory.value
        term = self.position.value_term(weights, positions, memory.positions)
        return found if term is None else found + term

    def _fast(self, q: Tensor, memory: KeyValue, mask: Mask, positions: Tensor) -> Tensor:
        """The same by a kernel."""
        queries, keys = q.shape[2], len(memory)
        # A kernel's own causal rule counts from the top left, so it serves only a square without other rules.
        square = mask.only_causal and mask.offset == 0 and queries == keys
        newest = mask.only_causal and mask.offset == keys - 1 and queries == 1
        free = newest or mask.trivial
        term = self.position.key_term(q, positions, memory.positions)
        p, scale = self.dropout if self.training else 0.0, self.score.scale
        assert scale is not None
        if term is None and torch.is_grad_enabled() and keys <= SHORT[q.device.type] and mask.extra is None:
            if torch.compiler.is_compiling():
                return self._pool(self._weights(q, memory, mask, positions), memory, positions)
            return pooled(q, memory.key, memory.value, None if free else mask.bias(queries, keys, q), scale, p)
        allowed = None if square or free else mask.bias(queries, keys, q)
        if term is not None:
            square = False
            hidden = None if free else ~mask.dense(queries, keys, q.device)
            allowed = term if hidden is None else term.masked_fill(hidden, float("-inf"))
        if q.is_cuda and not torch.is_grad_enabled() and TRITON and not torch.compiler.is_compiling():
            from regard.nn import gpu

            if allowed is not None and gpu.can_look(q, memory.key, memory.value):
                return gpu.look(q, memory.key, memory.value, allowed, scale)
        return F.scaled_dot_product_attention(
            q, memory.key, memory.value, attn_mask=allowed, dropout_p=p, is_causal=square, scale=scale
        )


def _by_length(q: Tensor, memory: KeyValue, mask: Mask, layout: Layout, scale: float | None) -> Tensor:
    """Packed queries (N, H, D) and keys, each sentence alone: no padding at all. CUDA, half precision."""
    from torch.nn.attention.varlen import varlen_attn

    assert memory.layout is not None
    assert mask.extra is None
    own, other = layout.offsets, memory.layout.offsets
    assert own is not None
    assert other is not None
    kind = q.dtype if q.dtype != torch.float32 else torch.bfloat16
    found = varlen_attn(
        q.to(kind),
        memory.key.to(kind),
        memory.value.to(kind),
        own,
        other,
        layout.length,
        memory.layout.length,
        scale=scale,
        window_size=(-1, 0) if mask.causal else (-1, -1),
    )
    assert isinstance(found, Tensor)
    return found


def _count(x: Tensor) -> Tensor:
    """Positions 0, 1, 2, … for (B, H, T, D)."""
    return torch.arange(x.shape[2], device=x.device).expand(x.shape[0], -1)
