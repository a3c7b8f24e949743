"""Attention: the pure formula, the modules around it, and a way to watch the weights."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import UserError, counted, only_fast_is_missing
from regard.nn.kernels import dropout
from regard.nn.masks import Layout, Mask, masked_softmax
from regard.nn.names import look_up
from regard.nn.patterns.approximation import Approximation
from regard.nn.positions import POSITIONS, Position
from regard.nn.precision import autocast_type
from regard.nn.scores import SCORES, Score
from regard.nn.state import KeyValue

try:
    from regard.nn.fast import choose
except ModuleNotFoundError as error:
    only_fast_is_missing(error)
    choose = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from regard.nn.fast.blocked import Blocks


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | Mask | None, score: Score
) -> tuple[Tensor, Tensor]:
    """softmax(score(q, k)) v: the formula that everything else here must equal.

    query (B, H, T, Dq), key (B, H, S, Dk), value (B, H, S, Dv)
    -> output (B, H, T, Dv), weights (B, H, T, S).
    """
    scores = score(query, score.prepare(key))  # (B, H, T, S)
    weights = masked_softmax(scores, mask)
    return weights @ value, weights


class Record:
    """What was seen while watching.

    `weights[name]` holds one tensor (B, H, T, S) per call of the attention of that name.
    `norms[name]` (B, H, S), of its last call: how long the vector is that a place hands over if
    looked at with weight 1.
    """

    def __init__(self, names: dict[int, str]) -> None:
        self.names = names
        self.weights: dict[str, list[Tensor]] = {}
        self.norms: dict[str, Tensor] = {}
        self.mixtures: set[str] = set()
        """Attentions whose weights are not of tokens, but of mixtures (Linformer) or segments."""

    def add(self, module: "Attention", weights: Tensor, value: Tensor) -> None:
        name = self.names.get(id(module))
        if name is None:
            return

        if not module.weighs_tokens:
            self.mixtures.add(name)
        self.weights.setdefault(name, []).append(weights.detach())
        self.norms[name] = module.lengths(value.detach())


_record: ContextVar[Record | None] = ContextVar("regard_record", default=None)
_watchers: list[Record] = []  # empty: nobody watches anywhere, which a compiler can see


def _watching() -> Record | None:
    return _record.get() if _watchers else None


def is_watched() -> bool:
    """Whether somebody records the weights of this thread's calls."""
    return _watching() is not None


@contextmanager
def watch(model: nn.Module) -> Iterator[Record]:
    """Record the weights of every Attention in the model, by its name there.

    An Attention that is the model itself has the name "attention". Only this thread's calls are
    recorded; no output bit changes.
    """
    modules = model.named_modules()
    names = {id(m): name or "attention" for name, m in modules if isinstance(m, Attention)}
    record = Record(names)
    token = _record.set(record)
    _watchers.append(record)
    try:
        yield record
    finally:
        _watchers.remove(record)
        _record.reset(token)


class Attention(nn.Module):
    """One class for all kinds of attention: Bahdanau, Luong, multi-head, cross, causal.

    Batch first, as with `torch.nn.MultiheadAttention(batch_first=True)`, and it returns the output
    alone. `SelfAttention` is the same with one product for queries, keys and values.

    width: of the query. key_width, value_width: of what is looked at (default: width). inner: of
    all heads together (default: width). output: of the result (default: width). score: a name of
    `SCORES` or a class. position: a name of `POSITIONS` that acts inside attention (`relative`,
    `rotary`, `alibi`), or an object. projections=False: the textbook's raw form; one head compares
    the query itself with the keys themselves and pools the values themselves. approximation: for
    long texts, something cheaper than a softmax over all keys, such as `Performer`.

    >>> attention = Attention(64, heads=4)
    >>> query = torch.randn(2, 5, 64)  # (B, T, D)
    >>> source = torch.randn(2, 7, 64)  # (B, S, D)
    >>> attention(query, source, source).shape
    torch.Size([2, 5, 64])

    Sentences of 7 and of 3 tokens, and the weights that were used:

    >>> with watch(attention) as record:
    ...     output = attention(query, source, source, mask=torch.tensor([7, 3]))
    >>> record.weights["attention"][0].shape  # (B, H, T, S)
    torch.Size([2, 4, 5, 7])
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
        position: str | Position | None = None,
        projections: bool = True,
        bias: bool = True,
        dropout: float = 0.0,
        approximation: Approximation | None = None,
    ) -> None:
        super().__init__()
        key_width = key_width or width
        value_width = value_width or key_width
        inner = inner or width
        if heads > 1 and not projections:
            raise UserError(f"{heads} heads need projections: leave out projections=False")
        if inner % heads:
            raise UserError(
                f"{counted(heads, 'head')} cannot share a width of {inner}: {inner} is not "
                f"divisible by {heads}"
            )

        make_score = look_up("score", score, SCORES) if isinstance(score, str) else score
        if projections:
            self._make_projections(width, key_width, value_width, inner, bias)
            self.output: nn.Module = nn.Linear(inner, output or width, bias=bias)
            self._initialise()
            self.score: Score = make_score(heads, inner // heads, inner // heads, score_width)
        else:
            self.output = nn.Identity()
            self.score = make_score(1, width, key_width, score_width)

        self.position = _position(position, inner if projections else width, heads)
        self.position.scale = self.score.scale
        self.heads = heads
        self.projections = projections
        self.dropout = dropout
        self.fused_scale = self.score.fused_scale
        """What q·k is multiplied by in a fused kernel. None: no such kernel knows the score."""
        self.fused = self.fused_scale is not None and self.position.fused
        """Whether a fused kernel can compute this; set it to False to take the readable path."""
        # Asked in every call, and slow to ask a module for.
        self._head_width = self.score.query_width
        self._widths = (width, key_width, value_width)
        self._plain = type(self.position) is Position and type(self.score).prepare is Score.prepare
        self.only_rotates = _only_rotates(self.position, self.score)
        """Whether positions only rotate queries and keys, and the score prepares no key."""
        self.approximation = approximation
        self.weighs_tokens = approximation is None or approximation.weighs_tokens
        """Whether its weights are of tokens, one each, rather than of mixtures or segments."""
        if approximation is not None:
            self._check_approximation(dropout)

    def _check_approximation(self, dropout: float) -> None:
        """An approximation computes softmax(scale · q·k) v, and nothing else."""
        assert self.approximation is not None
        size = (self.approximation.heads, self.approximation.width)
        if size != (self.heads, self._head_width):
            raise UserError(
                f"the approximation is for {counted(size[0], 'head')} of width {size[1]}, the "
                f"attention has {counted(self.heads, 'head')} of width {self._head_width}"
            )
        if self.fused_scale is None:
            raise UserError("an approximation of attention needs a score that is a product: dot …")
        adds = (type(self.position).key_term, type(self.position).value_term)
        if adds != (Position.key_term, Position.value_term):
            name = type(self.position).__name__
            raise UserError(f"an approximation of attention does not work with {name} positions")
        if dropout:
            raise UserError("an approximation of attention has no weights for dropout: leave it 0")

    def _make_projections(
        self, width: int, key_width: int, value_width: int, inner: int, bias: bool
    ) -> None:
        self.query = nn.Linear(width, inner, bias=bias)
        if key_width == value_width:
            self.keyvalue = nn.Linear(key_width, 2 * inner, bias=bias)
        else:
            self.key = nn.Linear(key_width, inner, bias=bias)
            self.value = nn.Linear(value_width, inner, bias=bias)

    def _initialise(self) -> None:
        """Every matrix by itself, also where several lie in one layer."""
        for name, layer in self.named_children():
            assert isinstance(layer, nn.Linear)
            matrices = {"qkv": 3, "keyvalue": 2}.get(name, 1)
            with torch.no_grad():
                for matrix in layer.weight.chunk(matrices):
                    nn.init.xavier_uniform_(matrix)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def draw_jointly(self) -> None:
        """Draw the query, key and value matrices anew, as if they were one of three times the rows.

        So `torch.nn.MultiheadAttention` does it. They become 0.71 times as large.
        """
        for name, layer in self.named_children():
            if name not in ("query", "key", "value", "keyvalue", "qkv"):
                continue
            assert isinstance(layer, nn.Linear)
            matrices = {"qkv": 3, "keyvalue": 2}.get(name, 1)
            rows = 3 * layer.out_features // matrices
            bound = math.sqrt(6 / (layer.in_features + rows))
            nn.init.uniform_(layer.weight, -bound, bound)

    # ---- the door for a model of one's own ----

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | Mask | None = None
    ) -> Tensor:
        """query (B, T, D), key (B, S, D), value (B, S, D) -> output (B, T, D).

        mask: where True, a query may look (the reverse of `torch.nn.MultiheadAttention`); bool of
        (T, S), (B, T, S) or (B, H, T, S). Or the lengths of the keys, (B,) or (B, T); or a `Mask`,
        such as Mask(causal=True). A query that may look at nothing gets zeros before the output
        projection.
        """
        self._check_shapes(query, key, value)
        if query is key and key is value:
            q, memory = self.read(query)
        else:
            q = self.ask(query)
            memory = self.project(key, None if value is key else value)

        shape = (query.shape[0], self.heads, query.shape[1], key.shape[1])
        return self.look(q, memory, Mask.of(mask, shape))

    def _check_shapes(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Refuse what does not fit before a product of matrices fails on it."""
        names = ("query", "key", "value")
        for name, x, width in zip(names, (query, key, value), self._widths, strict=True):
            fixed = self.projections or name == "query"  # raw values may have any width
            if x.dim() != 3 or (fixed and x.shape[-1] != width):
                raise UserError(
                    f"{name} has the shape {tuple(x.shape)}: it must be (batch, length, {width})"
                )
        if not query.shape[0] == key.shape[0] == value.shape[0]:
            raise UserError("query, key and value must have the same batch size, on their axis 0")
        if key.shape[1] != value.shape[1]:
            raise UserError(f"{key.shape[1]} keys and {value.shape[1]} values: they go in pairs")

    # ---- from rows to heads ----

    def _queries(self, x: Tensor, layout: Layout | None) -> Tensor:
        """(N, D) with its layout, or (B, T, D) -> (B, T, inner)."""
        return _padded(self.query(x) if self.projections else x, layout)

    def _keys_values(
        self, keys: Tensor, values: Tensor | None, layout: Layout | None
    ) -> tuple[Tensor, Tensor]:
        """(N, D) with their layout, or (B, S, D) -> (B, S, inner) each.

        values=None: the keys are the values too.
        """
        if not self.projections:
            return _padded(keys, layout), _padded(keys if values is None else values, layout)

        if not hasattr(self, "keyvalue"):
            key = self.key(keys)
            value = self.value(keys if values is None else values)
            return _padded(key, layout), _padded(value, layout)

        if values is None:
            key, value = _padded(self.keyvalue(keys), layout).chunk(2, -1)
            return key, value

        key_weight, value_weight = self.keyvalue.weight.chunk(2)
        key_bias, value_bias = (
            (None, None) if self.keyvalue.bias is None else self.keyvalue.bias.chunk(2)
        )
        key = F.linear(keys, key_weight, key_bias)
        value = F.linear(values, value_weight, value_bias)
        return _padded(key, layout), _padded(value, layout)

    def _heads(self, x: Tensor) -> Tensor:
        """(B, T, inner) -> (B, H, T, D)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def _remember(self, key: Tensor, value: Tensor, positions: Tensor | None) -> KeyValue:
        """Keys and values (B, H, S, D)."""
        if positions is None:
            positions = _count(key)
        key = self.position.rotate(key, positions)
        return KeyValue(self.score.prepare(key), value, positions)

    # ---- what models call ----

    def ask(
        self, query: Tensor, positions: Tensor | None = None, layout: Layout | None = None
    ) -> Tensor:
        """Queries for `look`: (B, T, D), or packed (N, D) with its layout -> (B, H, T, D)."""
        q = self._heads(self._queries(query, layout))
        return self.position.rotate(q, _count(q) if positions is None else positions)

    def project(
        self,
        keys: Tensor,
        values: Tensor | None = None,
        positions: Tensor | None = None,
        layout: Layout | None = None,
    ) -> KeyValue:
        """What depends on the source alone, computed once for all queries.

        keys, values: (B, S, D), or packed (N, D) with their layout.
        """
        key, value = self._keys_values(keys, values, layout)
        return self._remember(self._heads(key), self._heads(value), positions)

    def read(
        self, x: Tensor, positions: Tensor | None = None, layout: Layout | None = None
    ) -> tuple[Tensor, KeyValue]:
        """The queries of x and what they look at, for `look`.

        x: (B, T, D), or packed (N, D) with its layout.
        """
        return self.ask(x, positions, layout), self.project(x, None, positions, layout)

    def attend_to(
        self,
        query: Tensor,
        memory: KeyValue,
        mask: Mask,
        positions: Tensor | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        """Attention of a query (B, T, D) to a memory -> the same shape: project once, ask often.

        The query may be packed, (N, D) with its layout.
        """
        return self.look(self.ask(query, positions, layout), memory, mask, positions, layout)

    def itself(self, x: Tensor, mask: Mask, positions: Tensor, layout: Layout) -> Tensor:
        """`look(*read(x))` for packed rows (N, D), where nobody needs the keys afterwards."""
        q, memory = self.read(x, positions, layout)
        return self.look(q, memory, mask, positions, layout)

    def across(
        self,
        x: Tensor,
        states: Tensor,
        mask: Mask,
        positions: Tensor,
        layout: Layout,
        key_layout: Layout,
    ) -> Tensor:
        """`attend_to(x, project(states))` for packed rows (N, D) and (M, D).

        For training, where nobody needs the keys afterwards.
        """
        case = self._rows_case(x, mask, layout, key_layout)
        kernel = None if case is None else choose.across_kernel(case)
        if case is not None and kernel is not None:
            q = self._queries(x, None)  # (N, inner)
            k, v = self._keys_values(states, None, None)  # (M, inner)
            context = kernel(case, q, k, v)  # (N, inner)
            return self.output(context)

        memory = self.project(states, layout=key_layout)
        return self.attend_to(x, memory, mask, positions, layout)

    def _approximate(self, q: Tensor, memory: KeyValue, mask: Mask) -> Tensor:
        """What each head pools by its approximation: (B, H, T, D)."""
        approximation = self.approximation
        assert approximation is not None
        assert self.fused_scale is not None
        if self.fused and approximation.applies(mask, q.shape[2], len(memory)):
            return approximation(q, memory.key, memory.value, mask, self.fused_scale)
        weights = approximation.weights(q, memory.key, mask, self.fused_scale)
        return approximation.pool(weights, memory.value, mask)

    def look(
        self,
        q: Tensor,
        memory: KeyValue,
        mask: Mask,
        positions: Tensor | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        """Queries (B, H, T, D) of `ask` or `read` -> (B, T, D), or packed (N, D) with a layout."""
        if positions is None:
            positions = _count(q)

        record = _watching()
        weights = None  # (B, H, T, S)
        if record is not None:
            weights = self._weights(q, memory, mask, positions)
            record.add(self, weights, memory.value)

        if self.approximation is not None:
            return self._finished(self._approximate(q, memory, mask), layout)
        blocks = None if choose is None else choose.blocks_of(mask, q, memory)
        if blocks is not None:
            context = self._context_by_blocks(blocks, q, memory, mask, positions)
        else:
            context = self._context(q, memory, mask, positions, weights)  # (B, H, T, D)
        return self._finished(context, layout)

    def _finished(self, context: Tensor, layout: Layout | None) -> Tensor:
        """What the heads pooled (B, H, T, D) -> (B, T, D), or packed (N, D) with a layout."""
        context = context.transpose(1, 2).flatten(2)  # (B, T, inner)
        if layout is not None:
            context = layout.pack(context)  # (N, inner)
        return self.output(context)

    def _context(
        self,
        q: Tensor,
        memory: KeyValue,
        mask: Mask,
        positions: Tensor,
        weights: Tensor | None = None,
    ) -> Tensor:
        """What each head pools: (B, H, T, D). weights: if they are known already."""
        case = self._heads_case(q, memory, mask, positions)
        kernel = None if case is None else choose.heads_kernel(case)
        if case is not None and kernel is not None:
            return kernel(case)
        if weights is None:
            weights = self._weights(q, memory, mask, positions)
        return self._pool(weights, memory, positions)

    def _context_by_blocks(
        self, blocks: "Blocks", q: Tensor, memory: KeyValue, mask: Mask, positions: Tensor
    ) -> Tensor:
        """`_context` of a mask with a pattern, in time and memory that grow with T, not T²."""
        queries = blocks.queries(q)  # (B · N, H, C, D)
        places = blocks.positions(positions.expand(len(q), -1))  # (B · N, C)
        gathering = blocks.memory(memory)
        contexts = [
            self._context(queries[part.rows], gathering.of(part), part.mask, places[part.rows])
            for part in blocks.parts(memory.key)
        ]  # (R, H, C, D) each
        context = blocks.back(torch.cat(contexts))  # (B, H, T, D)

        seers = blocks.global_tokens
        if not seers or mask.causal:  # a causal global token sees global tokens only
            return context
        of_seers = self._context(
            q[:, :, :seers], memory, replace(mask, pattern=None, _made={}), positions[:, :seers]
        )  # (B, H, G, D)
        return torch.cat((of_seers, context[:, :, seers:]), 2)

    def lengths(self, value: Tensor) -> Tensor:
        """How long a vector each head adds to the output for a value (Kobayashi et al. 2020).

        Values (B, H, S, D) -> (B, H, S).
        """
        if self.projections:
            weight: Tensor = self.output.get_parameter("weight").detach()  # (out, H · D)
            by_head = weight.unflatten(1, (self.heads, -1)).movedim(1, 0)  # (H, out, D)
            value = value @ by_head.mT.to(value.dtype)
        return value.float().norm(dim=-1)

    # ---- the readable path ----

    def _weights(self, q: Tensor, memory: KeyValue, mask: Mask, positions: Tensor) -> Tensor:
        """(B, H, T, S), before dropout; of an approximation, what it has in place of them."""
        if self.approximation is not None:
            assert self.fused_scale is not None
            return self.approximation.weights(q, memory.key, mask, self.fused_scale)
        scores = self.score(q, memory.key)
        term = self.position.key_term(q, positions, memory.positions)
        return masked_softmax(scores if term is None else scores + term, mask)

    def _pool(self, weights: Tensor, memory: KeyValue, positions: Tensor) -> Tensor:
        """Weights (B, H, T, S) -> (B, H, T, D)."""
        weights = dropout(weights, self.dropout, self.training)
        context = weights @ memory.value
        term = self.position.value_term(weights, positions, memory.positions)
        return context if term is None else context + term

    # ---- what decides about a kernel ----

    def _rows_case(
        self, x: Tensor, mask: Mask, layout: Layout, key_layout: Layout
    ) -> "choose.RowsCase | None":
        """A call with rows (N, D). None: there are no kernels, only the readable path."""
        if choose is None or self.approximation is not None:
            return None
        dtype = autocast_type(x.device.type) or x.dtype
        common = self._common(mask, layout.length, key_layout.length, x.device.type)
        return choose.RowsCase(**common, query_layout=layout, key_layout=key_layout, dtype=dtype)

    def _heads_case(
        self, q: Tensor, memory: KeyValue, mask: Mask, positions: Tensor
    ) -> "choose.HeadsCase | None":
        """A call with heads. None: there are no kernels, only the readable path."""
        if choose is None:
            return None
        term = None  # (B, H, T, S)
        if self.fused and not self._plain:
            term = self.position.key_term(q, positions, memory.positions)
        common = self._common(mask, q.shape[2], len(memory), q.device.type)
        return choose.HeadsCase(**common, query=q, key=memory.key, value=memory.value, term=term)

    def _common(self, mask: Mask, queries: int, keys: int, device: str) -> dict[str, Any]:
        """The fields of `choose.KernelCase`."""
        return {
            "mask": mask,
            "queries": queries,
            "keys": keys,
            "device": device,
            "heads": self.heads,
            "width": self._head_width,
            "scale": self.fused_scale if self.fused else None,  # None: the readable path
            "plain": self._plain,
            "dropout": self.dropout if self.training else 0.0,
            "gradients": torch.is_grad_enabled(),
            "compiling": torch.compiler.is_compiling(),
            "watched": _watching() is not None,
        }


class SelfAttention(Attention):
    """Tokens look at each other: one product makes their queries, keys and values.

    The same function as `Attention`, over one matrix `qkv` where that has `query` and `keyvalue`.
    `read` is what this is for; `ask` and `project` compute the whole product and leave out what was
    not asked for.
    """

    def __init__(
        self,
        width: int,
        *,
        inner: int | None = None,
        output: int | None = None,
        heads: int = 1,
        score: str | type[Score] = "scaled_dot",
        score_width: int = 0,
        position: str | Position | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        approximation: Approximation | None = None,
    ) -> None:
        super().__init__(
            width,
            inner=inner,
            output=output,
            heads=heads,
            score=score,
            score_width=score_width,
            position=position,
            bias=bias,
            dropout=dropout,
            approximation=approximation,
        )

    def _make_projections(
        self, width: int, key_width: int, value_width: int, inner: int, bias: bool
    ) -> None:
        self.qkv = nn.Linear(width, 3 * inner, bias=bias)

    def _queries(self, x: Tensor, layout: Layout | None) -> Tensor:
        q, _, _ = self.qkv(x).chunk(3, -1)
        return _padded(q, layout)

    def _keys_values(
        self, keys: Tensor, values: Tensor | None, layout: Layout | None
    ) -> tuple[Tensor, Tensor]:
        _, key, value = self.qkv(keys).chunk(3, -1)
        if values is not None:
            _, _, value = self.qkv(values).chunk(3, -1)
        return _padded(key, layout), _padded(value, layout)

    def read(
        self, x: Tensor, positions: Tensor | None = None, layout: Layout | None = None
    ) -> tuple[Tensor, KeyValue]:
        """The queries of x and what they look at, for `look`.

        x: (B, T, D), or packed (N, D) with its layout.
        """
        if (
            torch.compiler.is_compiling()
        ):  # gathering the gradient of one product costs a GPU more than it saves
            q, k, v = (self._heads(_padded(part, layout)) for part in self._three_products(x))
        else:
            qkv = _padded(self.qkv(x), layout)  # (B, T, 3 · inner)
            q, k, v = (self._heads(part) for part in qkv.chunk(3, -1))  # (B, H, T, D)

        if positions is None:
            positions = _count(q)
        return self.position.rotate(q, positions), self._remember(k, v, positions)

    def _three_products(self, x: Tensor) -> list[Tensor]:
        weights = self.qkv.weight.chunk(3)
        biases = [None] * 3 if self.qkv.bias is None else self.qkv.bias.chunk(3)
        return [F.linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True)]

    def itself(self, x: Tensor, mask: Mask, positions: Tensor, layout: Layout) -> Tensor:
        """`look(*read(x))` for packed rows (N, D), where nobody needs the keys afterwards.

        In training this is faster.
        """
        case = self._rows_case(x, mask, layout, layout)
        kernel = None if case is None else choose.own_kernel(case)
        if case is None or kernel is None:
            return super().itself(x, mask, positions, layout)

        record = _watching()
        if record is not None:
            q, memory = self.read(x, positions, layout)
            record.add(self, self._weights(q, memory, mask, positions), memory.value)
        return self.output(kernel(case, self.qkv(x)))


def _only_rotates(position: Position, score: Score) -> bool:
    """Whether the position adds no term to scores or output, and the score prepares no key."""
    kind = type(position)
    adds = (kind.key_term, kind.value_term) != (Position.key_term, Position.value_term)
    return not adds and type(score).prepare is Score.prepare


def _position(position: str | Position | None, width: int, heads: int) -> Position:
    """The object that acts inside an attention of this width."""
    if position is None:
        return Position(width, heads)
    if isinstance(position, Position):
        return position

    kind = look_up("position", position, POSITIONS)
    if kind is not Position and not kind.in_attention:
        inside = [name for name, other in POSITIONS.items() if other.in_attention]
        raise UserError(
            f"position {position!r} is added to embeddings, not inside attention: call its "
            f"`embed` there "
            f"(inside attention there are: {', '.join(inside)})"
        )
    return kind(width, heads)


def _padded(x: Tensor, layout: Layout | None) -> Tensor:
    """(N, D) with a layout -> (B, T, D); what has no layout is left as it is."""
    return x if layout is None else layout.spread(x)


def _count(x: Tensor) -> Tensor:
    """Positions 0, 1, 2, … for (B, H, T, D)."""
    return torch.arange(x.shape[2], device=x.device).expand(x.shape[0], -1)
