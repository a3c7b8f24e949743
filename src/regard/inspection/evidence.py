"""What an answer depends on: what changes when a token, a head or a layer is taken away.

Where the model looked is another question.
"""

from __future__ import annotations

import math
from collections import Counter
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
from regard.text.positions import positions_in
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import BOS, EOS

Matrix = npt.NDArray[np.floating[Any]]
LIMIT = (
    "Attention shows how states were combined, not what the answer depends on: a token can get "
    "much attention and still not matter."
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
    """One head: its block (encoder, segments, decoder or cross), layer and number, both from 0."""

    block: str
    layer: int
    head: int
    lost: float = 0.0
    """Mean log-probability that target tokens lose without it. Above 0: it helped."""


class Reading(NamedTuple):
    """What a layer would predict at one target token."""

    probability: float
    """Probability of the answer's token."""
    likely: list[tuple[str, float]]
    """The most likely tokens with their probabilities, best first."""


@torch.inference_mode()
def occlusion(translator: Reader, result: Answer, *, budget: int = 1 << 24) -> Matrix:
    """Log-probability that each target token loses if a source token is hidden: (T, S).

    Values above 0 mean that the source token helped. Both sides include <eos>. A hidden token is
    replaced by the mean embedding of the vocabulary, which does not say which token is there.
    budget: maximum number of logits to compute at a time.
    """
    model = translator.model
    (batch,) = batches_of(translator, [result])
    embedding: Any = model.encoder.embedding
    tokens = translator.source
    vocabulary = torch.arange(tokens.first, tokens.size, device=translator.device)
    mean = embedding(vocabulary).mean(0)  # (D,)

    complete = _logprobs(model, batch)  # (1, T)
    copies = max(1, budget // (batch.tokens * translator.target.size))
    losses = []
    for columns in torch.arange(batch.source_tokens).split(copies):
        # copy i of the sentence reads the mean in place of token columns[i]
        copy_numbers = torch.arange(len(columns))
        hide = partial(torch.index_put, indices=(copy_numbers, columns), values=mean)
        losses.append(complete - _logprobs(model, batch, len(columns), hide))
    return np.asarray(torch.cat(losses).T.cpu().numpy())


def gradient_times_input(translator: Reader, result: Answer) -> Matrix:
    """Gradient × input of each target token's log-probability: (T, S).

    The gradient with respect to a source token's embedding times that embedding, summed; in a
    linear model, the contribution of the token. Takes one backward pass per target token.
    """
    (batch,) = batches_of(translator, [result])
    vectors: list[Tensor] = []

    def keep(embedded: Tensor) -> Tensor:
        vectors.append(embedded.detach().requires_grad_())
        return vectors[0]

    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.backends.cudnn.flags(enabled=False),  # its RNNs have gradients in training mode only
    ):
        logprobs = _logprobs(translator.model, batch, 1, keep)[0]  # (T,)
        gradients = [
            torch.autograd.grad(logprob, vectors, retain_graph=True)[0][0]  # (S, D)
            for logprob in logprobs
        ]
        products = torch.stack(gradients).double() * vectors[0].detach()  # (T, S, D)
        return np.asarray(products.sum(-1).cpu().numpy())


@torch.inference_mode()
def logit_lens(translator: Reader, result: Answer, n: int = 3) -> list[list[Reading]]:
    """What each decoder layer would predict if it were the last, for each target token.

    Applies the final norm and the output layer to the states of each layer (nostalgebraist 2020).
    The last row is the prediction of the model. n: number of most likely tokens to return.
    """
    model = translator.model
    decoder = model.decoder
    (batch,) = batches_of(translator, [result])
    if not isinstance(decoder, TransformerDecoder):
        raise UserError(
            "the logit lens needs a Transformer: the layers of an RNN share no residual stream"
        )

    states: list[Tensor] = []
    with ExitStack() as hooks:
        for block in decoder.blocks:
            keep = _hooked(block.register_forward_hook, lambda output: states.append(output[0]))
            hooks.enter_context(keep)
        model.predict(batch)

    layers = []
    for state in states:
        logits = decoder.output(decoder.norm(state)[None])[0]  # (T, V)
        probabilities = logits.to(at_least_single(logits.dtype)).softmax(-1)  # (T, V)
        layers.append(_readings(probabilities, batch.target_out[0], translator.target, n))
    return layers


def _readings(
    probabilities: Tensor, targets: Tensor, tokenizer: Tokenizer, n: int
) -> list[Reading]:
    """For each row of probabilities (T, V), that of its target (T,) and the n likeliest tokens."""
    chosen = probabilities.gather(-1, targets[:, None])[:, 0]  # (T,)
    top = probabilities.topk(min(n, probabilities.shape[-1]))  # (T, n)
    readings = []
    for probability, ids, values in zip(chosen.tolist(), top.indices.tolist(), top.values.tolist()):
        likely = list(zip(tokenizer.token_texts(ids), values))
        readings.append(Reading(probability, likely))
    return readings


def agreement(record: AttentionRecord, evidence: Matrix, how: str = "mean") -> float:
    """Spearman's rank correlation of attention and evidence (T, S), averaged over target tokens.

    how: as in `AttentionRecord.matrix`. Rows in which either side is constant are left out; NaN if
    no row remains.
    """
    correlations = []
    for attention_row, evidence_row in zip(record.matrix("cross", how), evidence):
        attention_ranks = _ranks(attention_row)
        evidence_ranks = _ranks(evidence_row)
        if np.ptp(attention_ranks) and np.ptp(evidence_ranks):
            correlations.append(np.corrcoef(attention_ranks, evidence_ranks)[0, 1])
    return float(np.mean(correlations)) if correlations else math.nan


def agreements(record: AttentionRecord, occluded: Matrix) -> dict[str, float]:
    """`agreement` of the last layer ("mean") and of the rollout; NaN where there is none."""
    rollout = agreement(record, occluded, "rollout") if record.has_rollout else math.nan
    return {"mean": agreement(record, occluded, "mean"), "rollout": rollout}


def correlation(record: AttentionRecord, occluded: Matrix) -> str:
    """The agreement of attention and occlusion, in words.

    It also tells how often both name the same token first, since the ranks of tokens that hardly
    count are noise.
    """
    same = int((record.matrix().argmax(-1) == occluded.argmax(-1)).sum())
    of = agreements(record, occluded)
    correlations = f"{of['mean']:.2f} (last layer)"
    if record.has_rollout:
        correlations += f", {of['rollout']:.2f} (rollout)"
    return (
        f"Attention and occlusion rank the same source token first for {same} of {len(occluded)} "
        f"target tokens.\n"
        f"Rank correlation (Spearman): {correlations}."
    )


def _ranks(values: Matrix) -> npt.NDArray[np.float64]:
    """From 1; equal values share the mean of their ranks."""
    _, groups, counts = np.unique(values, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(counts) - (counts - 1) / 2  # of each group of equal values
    return np.asarray(mean_ranks[groups], np.float64)


def batches_of(
    translator: Reader, examples: Sequence[Answer | tuple[str, str]], tokens: int = 4096
) -> list[Batch]:
    """Answers, or pairs of texts, as batches of up to so many tokens, longest first."""
    if not examples:
        raise UserError("no examples: pass at least one answer or (source, target) pair")
    if isinstance(translator.model.decoder, Decoders):
        raise UserError("an ensemble has no evidence of its own: load one of its runs alone")

    rows = [_row(translator, example) for example in examples]
    rows.sort(key=_longest)
    batches = []
    while rows:
        size = max(1, tokens // _longest(rows[-1]))
        batches.append(collate(rows[-size:]).to(translator.device))
        del rows[-size:]
    return batches


def _row(translator: Reader, example: Answer | tuple[str, str]) -> tuple[list[int], ...]:
    """The ids of one example, as `collate` takes them."""
    if isinstance(example, tuple):
        source, text = example
        target_ids = translator.target.encode(text)
    else:
        if example.parts:
            raise UserError(
                f"the text was split into {len(example.parts)} parts: ask for the evidence of one "
                f"of them, such as result.parts[0]"
            )
        source = example.source
        target_ids = example.ids
    row = ([*translator.source.encode(source), EOS], [BOS, *target_ids, EOS])
    positions = positions_in(translator.source, source)
    return (*row, positions) if positions else row


def _longest(row: tuple[list[int], ...]) -> int:
    return max(map(len, row))


def _logprobs(
    model: Seq2Seq,
    batch: Batch,
    copies: int = 1,
    change: Callable[[Tensor], Tensor] = lambda vectors: vectors,
) -> Tensor:
    """(copies, T): log-probability of each target token, in so many copies of one pair.

    change: what the encoder reads instead of the copies' source vectors (copies, S, D).
    """

    def repeat(tensor: Tensor) -> Tensor:
        return tensor.expand(copies, *tensor.shape[1:])

    def change_vectors(vectors: Tensor) -> Tensor:
        return change(vectors.view(copies, -1, vectors.shape[-1])).view(vectors.shape)

    table = model.encoder.get_submodule("embedding")
    # the decoder may share the table, so the hook is gone before it reads
    reading = {}
    if batch.source_positions is not None:
        reading["positions"] = repeat(batch.source_positions)
    with _hooked(table.register_forward_hook, change_vectors):
        memory = model.encoder(repeat(batch.source), repeat(batch.source_lengths), **reading)
    logits, _ = model.decoder(repeat(batch.target_in), model.decoder.start(memory))
    logits = logits.to(at_least_single(logits.dtype))  # (copies, T, V)
    chosen = logits.gather(-1, repeat(batch.target_out)[..., None])[..., 0]  # (copies, T)
    return chosen - logits.logsumexp(-1)


@contextmanager
def _hooked(register: Any, change: Callable[[Any], Any]) -> Iterator[None]:
    """Changes a module's output (or its input, by a pre-hook) in this thread's calls.

    register: the module's method that takes the hook. The hook is gone at the end, however it ends.
    """
    this_thread = get_ident()

    def hook(module: Any, inputs: Any, *output: Any) -> Any:
        if get_ident() != this_thread:
            return None
        return change(output[0] if output else inputs[0])

    with register(hook):
        yield


@torch.inference_mode()
def heads(translator: Reader, examples: Sequence[Answer | tuple[str, str]]) -> list[Head]:
    """The importance of each head: the log-probability that target tokens lose without it.

    examples: results, or (source, target) pairs of texts.
    """
    model = translator.model
    batches = batches_of(translator, examples)
    complete = loss_without(model, batches)
    return [
        head._replace(lost=loss_without(model, batches, [head]) - complete)
        for head in heads_of(model)
    ]


@contextmanager
def without(model: Seq2Seq, gone: Iterable[Head]) -> Iterator[None]:
    """Context manager that switches off heads of a model: their output becomes zero.

    The attention of an RNN has one head.
    """
    all_heads = heads_of(model)
    with ExitStack() as hooks:
        for head in gone:
            _, attention = all_heads[head._replace(lost=0.0)]
            # There the heads are still side by side.
            register = attention.output.register_forward_pre_hook
            silence = partial(_silenced, heads=attention.heads, head=head.head)
            hooks.enter_context(_hooked(register, silence))
        yield


def _silenced(outputs: Tensor, heads: int, head: int) -> Tensor:
    """The outputs of all heads side by side (…, D), with zeros for one of them."""
    kept = torch.arange(heads, device=outputs.device) != head  # (H,)
    by_head = outputs.unflatten(-1, (heads, -1))  # (…, H, D / H)
    return (by_head * kept[:, None]).flatten(-2)


def heads_of(model: Seq2Seq) -> dict[Head, tuple[str, Attention]]:
    """Every head, with its attention and that attention's name in the model."""
    all_heads: dict[Head, tuple[str, Attention]] = {}
    layers: Counter[str] = Counter()  # of each block, those seen so far
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            block = block_of(name)
            for number in range(module.heads):
                all_heads[Head(block, layers[block], number)] = name, module
            layers[block] += 1
    return all_heads


def loss_without(model: Seq2Seq, batches: Sequence[Batch], gone: Iterable[Head] = ()) -> float:
    """The mean loss of a target token while these heads are silent."""
    with without(model, gone):
        total = sum(float(model.loss(batch).nll) for batch in batches)
    return total / sum(batch.tokens for batch in batches)
