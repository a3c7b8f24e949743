"""Where a model looked while it wrote one answer. Plain values, no torch."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import numpy.typing as npt

from regard.display import html, undirected
from regard.errors import UserError, counted

Weights = npt.NDArray[np.float32]
Span = tuple[int, int]
SMALLEST = 1e-30  # in place of a sum of 0 that is divided by
HOW = ("mean", "max", "rollout", "norm")
WIDEST = 60
"""Tokens, up to which a notebook shows a table."""
HEADING = "font-weight: normal; text-align: right; padding: 2px"
"""The style of a heading in that table."""


@dataclass(frozen=True)
class AttentionRecord:
    """The attention weights of every layer and head for one answer.

    `blocks` has `cross` (L, H, T, S), `encoder` (L, H, S, S) and `decoder` (L, H, T, T). Row t is
    the step that produced target token t. RNNs have only `cross`; models without attention have
    none. Of a language model there is only `decoder` (and no source), or only `encoder` (and no
    target). Layers and heads count from 0; negative numbers count from the end.
    """

    source: list[str]
    target: list[str]
    blocks: dict[str, Weights] = field(repr=False)
    norms: dict[str, Weights] = field(default_factory=dict, repr=False)
    """(L, H, S): the norm of the vector that a token contributes with an attention weight of 1."""
    text_in: str = ""
    text_out: str = ""
    source_spans: list[Span] = field(default_factory=list, repr=False)
    """Start and end of each token in `text_in` (NFC), in characters; empty for <eos>."""
    target_spans: list[Span] = field(default_factory=list, repr=False)
    candidates: list[list[tuple[str, float]]] = field(default_factory=list, repr=False)
    """The most likely tokens at each step, with their probabilities."""
    has_rollout: bool = True
    """Whether tokens can be followed through all layers: not where some layers attend to mixtures
    of tokens, or to segments.
    """

    @property
    def main_block(self) -> str:
        """What is looked at first: `cross`, or of a language model the only block there is."""
        return next((name for name in ("cross", "decoder", "encoder") if name in self.blocks), "")

    def sides(self, block: str) -> tuple[list[str], list[str]]:
        """The tokens of a block's rows and columns.

        A decoder's row has read <bos> and the tokens before its own.
        """
        if block == "cross":
            return self.target, self.source
        if block == "encoder":
            return self.source, self.source
        if block == "decoder":
            return self.target, ["<bos>", *self.target[:-1]]
        raise KeyError(block)

    def matrix(
        self,
        block: str = "",
        how: str = "mean",
        *,
        layer: int | None = -1,
        head: int | None = None,
    ) -> Weights:
        """One matrix (T, S) of attention weights, of a single head or aggregated over heads.

        block: `cross`, `encoder` or `decoder` (default: `main_block`).
        how: how heads are aggregated.
        `mean` and `max`: over the heads of the layer, or of all layers with layer=None.
        `norm`: weights times the norm of the value vectors (Kobayashi et al. 2020), normalized to
        rows that sum to 1, then averaged.
        `rollout`: attention traced through all layers back to the inputs (Abnar and Zuidema 2020);
        layer and head are ignored.
        """
        if not self.blocks:
            raise UserError("this model has no attention")
        block = block or self.main_block
        if block not in self.blocks or how not in HOW:
            raise UserError(
                f"no {block} attention by {how} (blocks: {', '.join(self.blocks)}; how: "
                f"{', '.join(HOW)})"
            )
        if how == "rollout":
            return self._rollout()[block]

        weights = self._norm_weights(block) if how == "norm" else self.blocks[block]
        try:
            chosen = weights if layer is None else weights[layer, None]  # (layers, H, T, S)
            if head is not None:
                chosen = chosen[:, head, None]  # (layers, 1, T, S)
        except IndexError:
            layers, heads = weights.shape[:2]
            raise UserError(
                f"no layer={layer}, head={head} in {block} attention: it has "
                f"{counted(layers, 'layer')} of {counted(heads, 'head')}, counted from 0"
            ) from None

        if how == "max":
            return np.asarray(np.max(chosen, axis=(0, 1)))
        return np.asarray(np.mean(chosen, axis=(0, 1)))

    def alignment(
        self, how: str = "mean", *, layer: int | None = -1, head: int | None = None
    ) -> list[tuple[int, int]]:
        """The hard alignment: for each target token the source token that it looks at most.

        They are given by their places, from 0: `record.target[t]` and `record.source[s]` for each
        (t, s). The arguments are those of `matrix`. For words: `record.words().alignment()`.
        """
        weights = self.matrix("cross", how, layer=layer, head=head)  # (T, S)
        return list(enumerate(weights.argmax(-1).tolist()))

    def _norm_weights(self, block: str) -> Weights:
        """(L, H, T, S): weights times the length of what is looked at; rows sum to one again."""
        if block not in self.norms:
            raise UserError("how=norm works on tokens, not on words: use the record before words()")
        return _normalised(self.blocks[block] * self.norms[block][:, :, None])

    def _rollout(self) -> dict[str, Weights]:
        """What has flowed from which input up to the last layer, a matrix for each block."""
        if not self.has_rollout:
            raise UserError(
                "how=rollout follows tokens through all layers, and some layers of this encoder "
                "attend to mixtures of tokens (linformer) or to segments (model.levels=2): use "
                "mean, max or norm"
            )
        if "cross" not in self.blocks:
            return {block: _alone(layers.mean(1)) for block, layers in self.blocks.items()}
        if "encoder" not in self.blocks:  # as with an RNN: nobody knows what its states are made of
            return {block: layers[-1].mean(0) for block, layers in self.blocks.items()}

        source = np.eye(len(self.source), dtype=np.float32)  # (S, S)
        for encoder_weights in self.blocks["encoder"].mean(1):  # (S, S), a layer at a time
            source = (source + encoder_weights @ source) / 2

        # What the decoder's states hold of the target, and what of the source.
        target = np.eye(len(self.target), dtype=np.float32)  # (T, T)
        cross = np.zeros((len(self.target), len(self.source)), np.float32)  # (T, S)
        decoder_layers = self.blocks["decoder"].mean(1)  # (L, T, T)
        cross_layers = self.blocks["cross"].mean(1)  # (L, T, S)
        for decoder_weights, cross_weights in zip(decoder_layers, cross_layers):
            target = (target + decoder_weights @ target) / 2
            cross = (cross + decoder_weights @ cross) / 2
            target = target / 2  # the other half is now of the source
            cross = (cross + cross_weights @ source) / 2

        return {
            "encoder": _normalised(source),
            "cross": _normalised(cross),
            "decoder": _normalised(target),
        }

    def _repr_html_(self) -> str:
        """For a notebook: the last layer's mean as a table; no script."""
        if not self.blocks:
            return "<p>This model has no attention.</p>"
        block = self.main_block
        row_tokens, column_tokens = self.sides(block)
        if max(len(row_tokens), len(column_tokens)) > WIDEST:
            size = f"{len(row_tokens)} × {len(column_tokens)} tokens are too many to show here"
            return f"<p>Attention: {size}; <code>result.page()</code> shows all of it.</p>"

        rows = ["<td></td>" + "".join(map(_html_heading, column_tokens))]
        for token, weights in zip(row_tokens, self.matrix(block)):
            heading = f'<th scope="row" style="{HEADING}">{html(token)}</th>'
            cells = [_html_cell(token, other, w) for other, w in zip(column_tokens, weights)]
            rows.append(heading + "".join(cells))

        caption = f"<p>{block} attention, last layer, mean over heads: rows attend to columns</p>"
        content = "</tr><tr>".join(rows)
        return f'{caption}<table style="border-collapse: collapse"><tr>{content}</tr></table>'

    def words(self) -> AttentionRecord:
        """The same for words.

        Where a word looks is the mean over its tokens; looks at it are the sum of those at its
        tokens.
        """
        source, of_source, source_spans = words_of_tokens(self.text_in, self.source_spans)
        target, of_target, target_spans = words_of_tokens(self.text_out, self.target_spans)
        # The decoder's columns: <bos>, then what was written before.
        of_read = [0, *(number + 1 for number in of_target[:-1])]
        word_numbers = {  # of each row, and of each column
            "cross": (of_target, of_source),
            "encoder": (of_source, of_source),
            "decoder": (of_target, of_read),
        }

        blocks = {}
        for name, weights in self.blocks.items():
            of_rows, of_columns = word_numbers[name]
            rows = _one_hot(of_rows)  # (T, words)
            columns = _one_hot(of_columns)  # (S, words)
            blocks[name] = (rows / rows.sum(0)).T @ weights @ columns
        return AttentionRecord(
            source,
            target,
            blocks,
            {},
            self.text_in,
            self.text_out,
            source_spans,
            target_spans,
            has_rollout=self.has_rollout,
        )


def _normalised(matrix: Weights) -> Weights:
    """The matrix (…, T, S) with rows that sum to one; rows of zeros stay what they are."""
    return np.asarray(matrix / np.maximum(matrix.sum(-1, keepdims=True), SMALLEST))


def _alone(layers: Weights) -> Weights:
    """What has flowed from which token through layers (L, T, T) of self-attention alone."""
    flow = np.eye(layers.shape[-1], dtype=np.float32)  # (T, T)
    for weights in layers:
        flow = (flow + weights @ flow) / 2
    return _normalised(flow)


def _one_hot(numbers: list[int]) -> Weights:
    """(N, highest number + 1): a row for each number, with a one in its column."""
    return np.eye(max(numbers) + 1, dtype=np.float32)[numbers]


def isolated(text: str) -> str:
    """The text between marks that keep its direction to itself.

    So "source → target" stays in this order where one of them is written from right to left.
    Marks of the text itself cannot end it.
    """
    return f"\u2068{undirected(text)}\u2069"


def _html_heading(token: str) -> str:
    """The heading of a column: a short token upright, a longer one from top to bottom."""
    style = f"{HEADING}; text-align: center; vertical-align: bottom; min-width: 1.3em"
    if len(token) > 2:
        style = f"{HEADING}; writing-mode: vertical-rl"
    return f'<th scope="col" style="{style}">{html(token)}</th>'


def _html_cell(token: str, other: str, weight: float) -> str:
    """A cell of a table, the darker the more `token` looks at `other`."""
    title = html(f"{isolated(token)} → {isolated(other)}: {weight:.2f}")
    return f'<td title="{title}" style="background: rgba(0,114,178,{weight:.3f})"></td>'


def block_of(attention: str) -> str:
    """The block of an attention, by its name in the model, such as decoder.blocks.0.cross."""
    if attention.endswith("cross") or attention == "decoder.attention":
        return "cross"
    if attention.startswith("encoder.level."):
        return "segments"
    return attention.split(".")[0]


def words_of_tokens(text: str, spans: Sequence[Span]) -> tuple[list[str], list[int], list[Span]]:
    """The words of a text, of each of its tokens the number of its word, and the words' spans.

    A token belongs to the word its last character is in; white space between words and <eos> are
    words of their own.
    """
    starts = [match.start() for match in re.finditer(r"\s+|\S+", text)]

    def word_of(span: Span) -> int:
        start, end = span
        if start == end == len(text):
            return 0  # <eos>
        return bisect_left(starts, max(end, 1))

    names = []
    numbers = []
    word_spans = []
    for number, (_, group) in enumerate(groupby(spans, key=word_of)):
        token_spans = list(group)
        start = min(first for first, _ in token_spans)
        end = max(last for _, last in token_spans)
        names.append(text[start:end].strip() or text[start:end] or "<eos>")
        numbers += [number] * len(token_spans)
        word_spans.append((start, end))
    return names, numbers, word_spans
