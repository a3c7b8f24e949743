"""What an answer hangs on: not where the model looked, but what changes when a token, a head or a
layer is taken away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import get_ident
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.data.batches import Batch, collate
from regard.errors import UserError
from regard.models import Seq2Seq
from regard.models.ensemble import Decoders
from regard.models.transformer import TransformerDecoder
from regard.nn import Attention
from regard.nn.precision import at_least_single
from regard.records.attention import AttentionRecord, block_of
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import BOS, EOS, FIRST

Matrix = npt.NDArray[np.floating[Any]]
LIMIT = (
    "Attention shows what a state was mixed from, not what the answer hangs on: a token can be "
    "looked at and not matter."
)


class Reader(Protocol):
    """A `regard.Translator`, or whatever has a model and its tokenizers."""

    source: Tokenizer
    target: Tokenizer

    @property
    def model(self) -> Seq2Seq: ...
    @property
    def device(self) -> torch.device: ...


class Answer(Protocol):
    """A `regard.records.result.Result`: a text, and what was answered."""

    @property
    def source(self) -> str: ...
    @property
    def ids(self) -> list[int]: ...
    @property
    def parts(self) -> Sequence[Any]: ...


class Head(NamedTuple):
    """One head: its block (encoder, decoder or cross), layer and number, both from 0."""

    block: str
    layer: int
    head: int
    lost: float = 0.0
    """Log-probability that target tokens lose without it, in the mean. Above 0: it helped."""


class Reading(NamedTuple):
    """What a layer would say at one target token: how likely the answer's token is, and the
    likeliest tokens.
    """

    probability: float
    likely: list[tuple[str, float]]


@torch.inference_mode()
def occlusion(translator: Reader, result: Answer, *, budget: int = 1 << 24) -> Matrix:
    """(T, S): log-probability that each target token, <eos> too, loses if a source token is hidden.
    Above 0: it helped.

    Hidden: in its place the encoder reads the mean vector of the vocabulary, which says that there
    is a token, and not which. (<unk> would say as much only had training shown it.) budget: logits
    at a time.
    """
    model, (batch,) = translator.model, batches_of(translator, [result])
    embedding: Any = model.encoder.embedding
    mean = embedding(torch.arange(FIRST, translator.source.size, device=translator.device)).mean(0)
    whole, lost = _logprobs(model, batch), []
    for some in torch.arange(batch.source_tokens).split(
        max(1, budget // (batch.tokens * translator.target.size))
    ):
        hide = partial(torch.index_put, indices=(torch.arange(len(some)), some), values=mean)
        lost.append(whole - _logprobs(model, batch, len(some), hide))
    return np.asarray(torch.cat(lost).T.cpu().numpy())


def gradient_times_input(translator: Reader, result: Answer) -> Matrix:
    """(T, S): how fast the log-probability of each target token grows as a source token's vector is
    made longer.

    That is its gradient times the vector, summed; in a linear model, what the token added. One way
    back for each target token.
    """
    (batch,), read = batches_of(translator, [result]), list[Tensor]()

    def keep(x: Tensor) -> Tensor:
        read.append(x.detach().requires_grad_())
        return read[0]

    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.backends.cudnn.flags(enabled=False),
    ):  # whose RNNs only train
        logprobs = _logprobs(translator.model, batch, 1, keep)[0]
        rows = [torch.autograd.grad(one, read, retain_graph=True)[0][0] for one in logprobs]
        return np.asarray((torch.stack(rows).double() * read[0].detach()).sum(-1).cpu().numpy())


@torch.inference_mode()
def logit_lens(translator: Reader, result: Answer, n: int = 3) -> list[list[Reading]]:
    """For each layer of the decoder, each target token: what the model would say if this layer were
    its last.

    The last norm and the output layer read the layer's state (nostalgebraist 2020). The last row is
    what the model does say.
    """
    (batch,), decoder = batches_of(translator, [result]), translator.model.decoder
    if not isinstance(decoder, TransformerDecoder):
        raise UserError(
            "the logit lens needs a Transformer: the layers of an RNN have no stream in common"
        )
    states, rows = list[Tensor](), []
    with ExitStack() as stack:
        for block in decoder.blocks:
            stack.enter_context(
                _hooked(block.register_forward_hook, lambda out: states.append(out[0]))
            )
        translator.model(batch.source, batch.source_lengths, batch.target_in)
    for state in states:
        logits = decoder.output(decoder.norm(state)[None])[0]  # (T, V)
        likely = logits.to(at_least_single(logits.dtype)).softmax(-1)
        chosen, top = (
            likely.gather(-1, batch.target_out[0, :, None])[:, 0],
            likely.topk(min(n, likely.shape[-1])),
        )
        names = [translator.target.token_texts(ids) for ids in top.indices.tolist()]
        rows.append(
            [
                Reading(p, list(zip(*one)))
                for p, *one in zip(chosen.tolist(), names, top.values.tolist())
            ]
        )
    return rows


def agreement(record: AttentionRecord, evidence: Matrix, how: str = "mean") -> float:
    """Spearman's rank correlation of attention (the last layer's mean, or `how`) with evidence (T,
    S); mean of target tokens.

    A row in which either side is all the same has none; not a number if no row has one.
    """
    rows = [
        [_ranks(side) for side in sides] for sides in zip(record.matrix("cross", how), evidence)
    ]
    found = [np.corrcoef(one, other)[0, 1] for one, other in rows if np.ptp(one) and np.ptp(other)]
    return float(np.mean(found)) if found else math.nan


def correlation(record: AttentionRecord, occluded: Matrix) -> str:
    """The same, in words; and how often both name the same token first, since the ranks of what
    hardly counts are noise.
    """
    last, flow = (f"{agreement(record, occluded, how):.2f}" for how in ("mean", "rollout"))
    same = int((record.matrix().argmax(-1) == occluded.argmax(-1)).sum())
    first = (
        f"Attention and occlusion name the same source token first for {same} of {len(occluded)} "
        f"target tokens."
    )
    return f"{first}\nRank correlation (Spearman): {last} (last layer), {flow} (rollout)."


def _ranks(x: Matrix) -> npt.NDArray[np.float64]:
    """From 1; equal values share the mean of their ranks."""
    _, place, count = np.unique(x, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(count) - (count - 1) / 2)[place], np.float64)


def batches_of(
    translator: Reader, examples: Sequence[Answer | tuple[str, str]], tokens: int = 4096
) -> list[Batch]:
    if not examples:
        raise UserError("no answer and no pair: there is nothing to weigh heads by")
    if isinstance(translator.model.decoder, Decoders):
        raise UserError(
            "several models have several reasons: load one of them alone to see its evidence"
        )
    if parts := [one.parts for one in examples if not isinstance(one, tuple) and one.parts]:
        raise UserError(
            f"split into {len(parts[0])} parts: ask for the evidence of one, such as "
            f"result.parts[0]"
        )
    both = [
        (one[0], translator.target.encode(one[1]))
        if isinstance(one, tuple)
        else (one.source, one.ids)
        for one in examples
    ]
    rows = sorted(
        (([*translator.source.encode(s), EOS], [BOS, *t, EOS]) for s, t in both),
        key=lambda row: max(map(len, row)),
    )
    made = []
    while rows:
        size = max(1, tokens // max(map(len, rows[-1])))
        made.append(collate(rows[-size:]).to(translator.device))
        del rows[-size:]
    return made


def _logprobs(
    model: Seq2Seq, batch: Batch, rows: int = 1, change: Callable[[Tensor], Tensor] = lambda x: x
) -> Tensor:
    """(rows, T): of each target token, given those before it, in so many copies of one pair.
    change: of its source's vectors.
    """
    sides = batch.source, batch.source_lengths, batch.target_in, batch.target_out
    source, lengths, before, target = (x.expand(rows, *x.shape[1:]) for x in sides)
    table = model.encoder.get_submodule(
        "embedding"
    )  # the decoder may share it, so the hook is gone before it reads
    with _hooked(
        table.register_forward_hook, lambda x: change(x.view(rows, -1, x.shape[-1])).view(x.shape)
    ):
        memory = model.encoder(source, lengths)
    logits, _ = model.decoder(before, model.decoder.start(memory))
    logits = logits.to(at_least_single(logits.dtype))
    return logits.gather(-1, target[..., None])[..., 0] - logits.logsumexp(-1)


@contextmanager
def _hooked(register: Any, change: Callable[[Any], Any]) -> Iterator[None]:
    """What comes out (or goes in, by a pre-hook) is changed, in this thread's calls only, until the
    end, however it ends.
    """
    me = get_ident()
    with register(
        lambda module, given, *out: (
            change(out[0] if out else given[0]) if get_ident() == me else None
        )
    ):
        yield


@torch.inference_mode()
def heads(translator: Reader, examples: Sequence[Answer | tuple[str, str]]) -> list[Head]:
    """Of every head, what target tokens lose without it: of answers, or of pairs of texts."""
    batches, model = batches_of(translator, examples), translator.model
    whole = loss_without(model, batches)
    return [
        one._replace(lost=loss_without(model, batches, [one]) - whole) for one in heads_of(model)
    ]


@contextmanager
def without(model: Seq2Seq, gone: Iterable[Head]) -> Iterator[None]:
    """The model while these heads are silent: zeros where they would have spoken. An RNN's
    attention is one head.
    """
    found = heads_of(model)
    with ExitStack() as stack:
        for one in gone:
            _, attention = found[one._replace(lost=0.0)]
            here = (
                attention.output.register_forward_pre_hook
                if attention.projections
                else attention.register_forward_hook
            )
            stack.enter_context(
                _hooked(here, partial(_silenced, heads=attention.heads, head=one.head))
            )
        yield


def _silenced(x: Tensor, heads: int, head: int) -> Tensor:
    kept = torch.arange(heads, device=x.device) != head
    return (x.unflatten(-1, (heads, -1)) * kept[:, None]).flatten(-2)


def heads_of(model: Seq2Seq) -> dict[Head, tuple[str, Attention]]:
    """Every head, with the name of its attention."""
    found: dict[Head, tuple[str, Attention]] = {}
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            block = block_of(name)
            layer = sum(one.block == block and one.head == 0 for one in found)
            found |= {Head(block, layer, number): (name, module) for number in range(module.heads)}
    return found


def loss_without(model: Seq2Seq, batches: Sequence[Batch], gone: Iterable[Head] = ()) -> float:
    with without(model, gone):
        return sum(float(model.loss(batch).nll) for batch in batches) / sum(
            batch.tokens for batch in batches
        )
