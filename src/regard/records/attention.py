"""What is seen of one answer: where the model looked, and what the search tried. Plain values, no
torch.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby

import numpy as np
import numpy.typing as npt

from regard.errors import UserError

Weights = npt.NDArray[np.float32]
Span = tuple[int, int]
HOW = ("mean", "max", "rollout", "norm")
WIDEST = 60
"""Tokens, up to which a notebook shows a table."""


@dataclass(frozen=True)
class AttentionRecord:
    """Weights of every layer and head for one answer; cross (L, H, T, S), encoder (L, H, S, S),
    decoder (L, H, T, T).

    Row t belongs to the step that wrote target token t. An RNN has cross only, a model without
    attention nothing. Layers and heads count from 0, and from the end below 0.
    """

    source: list[str]
    target: list[str]
    blocks: dict[str, Weights] = field(repr=False)
    norms: dict[str, Weights] = field(default_factory=dict, repr=False)
    """How long the vector is that each token hands over where it is looked at with weight 1: (L, H,
    S).
    """
    text_in: str = ""
    text_out: str = ""
    source_spans: list[Span] = field(default_factory=list, repr=False)
    """Of each token its first character in `text_in` (NFC), and the one after its last; <eos> has
    none.
    """
    target_spans: list[Span] = field(default_factory=list, repr=False)
    candidates: list[list[tuple[str, float]]] = field(default_factory=list, repr=False)
    """At each step the likeliest tokens, with their probabilities."""

    def sides(self, block: str) -> tuple[list[str], list[str]]:
        """The tokens of a block's rows and columns. A decoder's row has read <bos> and the tokens
        before its own.
        """
        read = ["<bos>", *self.target[:-1]]
        return {
            "cross": (self.target, self.source),
            "encoder": (self.source, self.source),
            "decoder": (self.target, read),
        }[block]

    def matrix(
        self,
        block: str = "cross",
        how: str = "mean",
        *,
        layer: int | None = -1,
        head: int | None = None,
    ) -> Weights:
        """One matrix (T, S). Of one head, or `how` heads become one: mean, max, norm or rollout.

        layer=None: the same over all layers. norm: weights times the length of the vector looked at
        (Kobayashi et al. 2020), its rows summing to one again, then the mean. rollout: what has
        flowed from which input up to the last layer, if a token keeps half of itself at each
        attention (Abnar and Zuidema 2020); it has neither layer nor head.
        """
        if block not in self.blocks or how not in HOW:
            raise UserError(
                f"there is {', '.join(self.blocks) or 'no attention'}, by {', '.join(HOW)}; not "
                f"{block} by {how}"
            )
        if how == "rollout":
            return self._rollout()[block]
        weights = self.blocks[block]
        if how == "norm":
            if block not in self.norms:
                raise UserError("a record of words knows no norms: ask the record of tokens")
            weights = weights * self.norms[block][:, :, None]
            weights = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30)
        try:
            chosen = weights if layer is None else weights[layer, None]
            chosen = chosen if head is None else chosen[:, head, None]
        except IndexError:
            layers, heads = weights.shape[:2]
            raise UserError(
                f"{block} attention has {layers} layers of {heads} heads, counted from 0: no "
                f"layer {layer}, head {head}"
            ) from None
        return np.asarray((np.max if how == "max" else np.mean)(chosen, axis=(0, 1)))

    def _rollout(self) -> dict[str, Weights]:
        if "encoder" not in self.blocks:  # an RNN's states are no mixture that attention made
            return {"cross": self.blocks["cross"][-1].mean(0)}
        source = np.eye(len(self.source), dtype=np.float32)
        for layer in self.blocks["encoder"].mean(1):
            source = (source + layer @ source) / 2
        target = np.eye(len(self.target), dtype=np.float32)
        seen = np.zeros((len(self.target), len(self.source)), np.float32)
        for own, cross in zip(self.blocks["decoder"].mean(1), self.blocks["cross"].mean(1)):
            target, seen = (target + own @ target) / 2, (seen + own @ seen) / 2
            target, seen = target / 2, (seen + cross @ source) / 2
        whole = {"encoder": source, "cross": seen, "decoder": target}
        return {name: m / np.maximum(m.sum(-1, keepdims=True), 1e-30) for name, m in whole.items()}

    def _repr_html_(self) -> str:
        """For a notebook: the last layer's mean as a table; no script."""
        if not self.blocks:
            return "<p>This model has no attention.</p>"
        block = next(iter(self.blocks))
        down, across = self.sides(block)
        if max(len(down), len(across)) > WIDEST:
            size = f"{len(down)} × {len(across)} tokens are more than a cell can show"
            return (
                f"<p>Attention: {size}; <code>result.write_page('page.html')</code> writes a "
                f"page.</p>"
            )
        named = "font-weight: normal; text-align: right; padding: 2px"
        turned = f"writing-mode: vertical-rl; {named}"
        rows = [
            "<td></td>"
            + "".join(f'<th scope="col" style="{turned}">{escape(token)}</th>' for token in across)
        ]
        for token, weights in zip(down, self.matrix(block)):
            cells = (
                f'<td title="{escape(f"{token} → {other}: {w:.2f}")}" style="background: '
                f'rgba(0,114,178,{w:.3f})"></td>'
                for other, w in zip(across, weights)
            )
            rows.append(f'<th scope="row" style="{named}">{escape(token)}</th>{"".join(cells)}')
        what = f"<p>{block} attention, last layer, mean of heads: rows look at columns</p>"
        return (
            f'{what}<table style="border-collapse: '
            f'collapse"><tr>{"</tr><tr>".join(rows)}</tr></table>'
        )

    def words(self) -> AttentionRecord:
        """The same for words. Where a word looks is the mean over its tokens; looks at it are the
        sum of those at its tokens.
        """
        source, of_source, spans_in = grouped(self.text_in, self.source_spans)
        target, of_target, spans_out = grouped(self.text_out, self.target_spans)
        read = [
            0,
            *(number + 1 for number in of_target[:-1]),
        ]  # the decoder's columns: <bos>, then what was written before
        sides = {
            "cross": (of_target, of_source),
            "encoder": (of_source, of_source),
            "decoder": (of_target, read),
        }
        blocks = {}
        for name, weights in self.blocks.items():
            rows, columns = (
                np.eye(max(numbers) + 1, dtype=np.float32)[numbers] for numbers in sides[name]
            )
            blocks[name] = (rows / rows.sum(0)).T @ weights @ columns
        return AttentionRecord(
            source, target, blocks, {}, self.text_in, self.text_out, spans_in, spans_out
        )


def block_of(attention: str) -> str:
    """The block that an attention belongs to, by its name in the model, such as
    decoder.blocks.0.cross.
    """
    return (
        "cross"
        if attention.endswith("cross") or attention == "decoder.attention"
        else attention.split(".")[0]
    )


def grouped(text: str, spans: Sequence[Span]) -> tuple[list[str], list[int], list[Span]]:
    """The words of a text, of each of its tokens the number of its word, and the words' spans.

    A token belongs to the word its last character is in; white space between words and <eos> are
    words of their own.
    """
    starts = [found.start() for found in re.finditer(r"\s+|\S+", text)]
    keys = [
        0 if start == end == len(text) else bisect_left(starts, max(end, 1)) for start, end in spans
    ]
    words = [
        [span for _, span in group]
        for _, group in groupby(zip(keys, spans), key=lambda pair: pair[0])
    ]
    whole = [(min(its)[0], max(end for _, end in its)) for its in words]
    names = [text[start:end].strip() or text[start:end] or "<eos>" for start, end in whole]
    return names, [number for number, its in enumerate(words) for _ in its], whole
