"""What an answer hangs on: not where the model looked, but what changes when a token, a head or a layer is taken away."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from threading import get_ident
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from regard import storage
from regard.card import write_card
from regard.data.batches import Batch, collate
from regard.data.corpus import Corpus
from regard.errors import UserError
from regard.models import Seq2Seq
from regard.models.ensemble import Decoders
from regard.models.transformer import TransformerDecoder
from regard.nn import Attention
from regard.record import AttentionRecord
from regard.result import Result
from regard.run import Run
from regard.scoring import bleu, exact_match
from regard.text.vocabulary import BOS, EOS, FIRST
from regard.translator import Translator, load

Matrix = npt.NDArray[np.floating[Any]]
LIMIT = "Attention shows what a state was mixed from, not what the answer hangs on: a token can be looked at and not matter."


class Head(NamedTuple):
    """One head: its block (encoder, decoder or cross), layer and number, both from 0."""

    block: str
    layer: int
    head: int
    lost: float = 0.0
    """Log-probability that target tokens lose without it, in the mean. Above 0: it helped."""


class Reading(NamedTuple):
    """What a layer would say at one target token: how likely the answer's token is, and the likeliest tokens."""

    probability: float
    likely: list[tuple[str, float]]


@torch.inference_mode()
def occlusion(translator: Translator, result: Result, *, budget: int = 1 << 24) -> Matrix:
    """(T, S): log-probability that each target token, <eos> too, loses if a source token is hidden. Above 0: it helped.

    Hidden: in its place the encoder reads the mean vector of the vocabulary, which says that there is a token, and not which.
    (<unk> would say as much only had training shown it.) budget: logits at a time.
    """
    model, (batch,) = translator.model, _batches(translator, [result])
    embedding: Any = model.encoder.embedding
    mean = embedding(torch.arange(FIRST, translator.source.size, device=translator.device)).mean(0)
    whole, lost = _logprobs(model, batch), []
    for some in torch.arange(batch.source_tokens).split(max(1, budget // (batch.tokens * translator.target.size))):
        hide = partial(torch.index_put, indices=(torch.arange(len(some)), some), values=mean)
        lost.append(whole - _logprobs(model, batch, len(some), hide))
    return np.asarray(torch.cat(lost).T.cpu().numpy())


def gradient_times_input(translator: Translator, result: Result) -> Matrix:
    """(T, S): how fast the log-probability of each target token grows as a source token's vector is made longer.

    That is its gradient times the vector, summed; in a linear model, what the token added. One way back for each target token.
    """
    (batch,), read = _batches(translator, [result]), list[Tensor]()

    def keep(x: Tensor) -> Tensor:
        read.append(x.detach().requires_grad_())
        return read[0]

    with torch.inference_mode(False), torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):  # whose RNNs only train
        logprobs = _logprobs(translator.model, batch, 1, keep)[0]
        rows = [torch.autograd.grad(one, read, retain_graph=True)[0][0] for one in logprobs]
        return np.asarray((torch.stack(rows).double() * read[0].detach()).sum(-1).cpu().numpy())


@torch.inference_mode()
def logit_lens(translator: Translator, result: Result, n: int = 3) -> list[list[Reading]]:
    """For each layer of the decoder, each target token: what the model would say if this layer were its last.

    The last norm and the output layer read the layer's state (nostalgebraist 2020). The last row is what the model does say.
    """
    (batch,), decoder = _batches(translator, [result]), translator.model.decoder
    if not isinstance(decoder, TransformerDecoder):
        raise UserError("the logit lens needs a Transformer: the layers of an RNN have no stream in common")
    states, rows = list[Tensor](), []
    with ExitStack() as stack:
        for block in decoder.blocks:
            stack.enter_context(_hooked(block.register_forward_hook, lambda out: states.append(out[0])))
        translator.model(batch.source, batch.source_lengths, batch.target_in)
    for state in states:
        likely = decoder.output(decoder.norm(state)[None])[0].float().softmax(-1)
        chosen, top = likely.gather(-1, batch.target_out[0, :, None])[:, 0], likely.topk(min(n, likely.shape[-1]))
        names = [translator.target.token_texts(ids) for ids in top.indices.tolist()]
        rows.append([Reading(p, list(zip(*one))) for p, *one in zip(chosen.tolist(), names, top.values.tolist())])
    return rows


def agreement(record: AttentionRecord, evidence: Matrix, how: str = "mean") -> float:
    """Spearman's rank correlation of attention (the last layer's mean, or `how`) with evidence (T, S); mean of target tokens.

    A row in which either side is all the same has none; not a number if no row has one.
    """
    rows = [[_ranks(side) for side in sides] for sides in zip(record.matrix("cross", how), evidence)]
    found = [np.corrcoef(one, other)[0, 1] for one, other in rows if np.ptp(one) and np.ptp(other)]
    return float(np.mean(found)) if found else math.nan


def _ranks(x: Matrix) -> npt.NDArray[np.float64]:
    """From 1; equal values share the mean of their ranks."""
    _, place, count = np.unique(x, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(count) - (count - 1) / 2)[place], np.float64)


def _batches(translator: Translator, examples: Sequence[Result | tuple[str, str]], tokens: int = 4096) -> list[Batch]:
    if isinstance(translator.model.decoder, Decoders):
        raise UserError("several models have several reasons: load one of them alone to see its evidence")
    if parts := [one.parts for one in examples if isinstance(one, Result) and one.parts]:
        raise UserError(f"split into {len(parts[0])} parts: ask for the evidence of one, such as result.parts[0]")
    both = [(one.source, one.ids) if isinstance(one, Result) else (one[0], translator.target.encode(one[1])) for one in examples]
    rows = sorted((([*translator.source.encode(s), EOS], [BOS, *t, EOS]) for s, t in both), key=lambda row: max(map(len, row)))
    made = []
    while rows:
        size = max(1, tokens // max(map(len, rows[-1])))
        made.append(collate(rows[-size:]).to(translator.device))
        del rows[-size:]
    return made


def _logprobs(model: Seq2Seq, batch: Batch, rows: int = 1, change: Callable[[Tensor], Tensor] = lambda x: x) -> Tensor:
    """(rows, T): of each target token, given those before it, in so many copies of one pair. change: of its source's vectors."""
    sides = batch.source, batch.source_lengths, batch.target_in, batch.target_out
    source, lengths, before, target = (x.expand(rows, *x.shape[1:]) for x in sides)
    hook = model.encoder.get_submodule("embedding").register_forward_hook
    with _hooked(
        hook, lambda x: change(x.view(rows, -1, x.shape[-1])).view(x.shape)
    ):  # not while the decoder reads, which may share it
        memory = model.encoder(source, lengths)
    logits, _ = model.decoder(before, model.decoder.start(memory))
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits.gather(-1, target[..., None])[..., 0] - logits.logsumexp(-1)


@contextmanager
def _hooked(register: Any, change: Callable[[Any], Any]) -> Iterator[None]:
    """What comes out (or goes in, by a pre-hook) is changed, in this thread's calls only, until the end, however it ends."""
    me = get_ident()
    with register(lambda module, given, *out: change(out[0] if out else given[0]) if get_ident() == me else None):
        yield


@torch.inference_mode()
def heads(translator: Translator, examples: Sequence[Result | tuple[str, str]]) -> list[Head]:
    """Of every head, what target tokens lose without it: of answers, or of pairs of texts."""
    batches, model = _batches(translator, examples), translator.model
    whole = _loss(model, batches)
    return [one._replace(lost=_loss(model, batches, [one]) - whole) for one in _heads(model)]


@contextmanager
def without(model: Seq2Seq, gone: Iterable[Head]) -> Iterator[None]:
    """The model while these heads are silent: zeros where they would have spoken. An RNN's attention is one head."""
    found = _heads(model)
    with ExitStack() as stack:
        for one in gone:
            _, attention = found[one._replace(lost=0.0)]
            here = attention.output.register_forward_pre_hook if attention.projections else attention.register_forward_hook
            stack.enter_context(_hooked(here, partial(_silenced, heads=attention.heads, head=one.head)))
        yield


def _silenced(x: Tensor, heads: int, head: int) -> Tensor:
    kept = torch.arange(heads, device=x.device) != head
    return (x.unflatten(-1, (heads, -1)) * kept[:, None]).flatten(-2)


def _heads(model: Seq2Seq) -> dict[Head, tuple[str, Attention]]:
    """Every head, with the name of its attention."""
    found: dict[Head, tuple[str, Attention]] = {}
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            block = "cross" if name.endswith("cross") or name == "decoder.attention" else name.split(".")[0]
            layer = sum(one.block == block and one.head == 0 for one in found)
            found |= {Head(block, layer, number): (name, module) for number in range(module.heads)}
    return found


def _loss(model: Seq2Seq, batches: Sequence[Batch], gone: Iterable[Head] = ()) -> float:
    with without(model, gone):
        return sum(float(model.loss(batch).nll) for batch in batches) / sum(batch.tokens for batch in batches)


@torch.inference_mode()
def prune(
    run: str | Path, out: str | Path, pairs: Sequence[tuple[str, str]] = (), tolerance: float = 0.01, points: float = 0.5
) -> Run:
    """Write a run without the heads that `pairs` (none: 500 of its dev pairs) can spare; the least needed are tried first.

    Perplexity may grow by the share `tolerance`, BLEU and exact match (0 to 100) fall by `points`; the new `manifest["pruned"]`
    has the heads and the scores before and after. In all checkpoints the weights with which those heads speak become zero:
    shapes and speed stay, and training on may wake the heads again.
    """
    old, out = Run.open(run), Path(out)
    translator = load(old)
    model, found = translator.model, _heads(translator.model)
    if out.exists():
        raise UserError(f"{out} exists: name a new folder")
    if not found or not all(attention.projections for _, attention in found.values()):
        raise UserError(f"{old.path}: an RNN has at most one head, and that one has no weights to silence")
    rows = () if pairs else islice(iter(Corpus.open(old.path / "data" / "dev")), 500)
    pairs = pairs or [(old.source.decode(source), old.target.decode(target)) for source, target in rows]
    batches, references = _batches(translator, pairs), [[target] for _, target in pairs]

    def scores(gone: list[Head]) -> dict[str, float]:
        with without(model, gone):
            answers = [result.text for result in translator.translate(source for source, _ in pairs)]
        right = {"bleu": bleu(answers, references).score, "exact_match": 100 * exact_match(answers, references)}
        return {"loss": _loss(model, batches, gone), **right}

    before, removed = scores([]), list[Head]()
    for one in sorted(heads(translator, pairs), key=lambda head: head.lost):
        removed += [one] if _loss(model, batches, [*removed, one]) <= before["loss"] + math.log1p(tolerance) else []
    after = scores(removed)
    while removed and any(after[name] < before[name] - points for name in ("bleu", "exact_match")):
        after = scores(removed := removed[:-1])
    facts = {"of": len(found), "heads": [one._asdict() for one in removed], "before": before, "after": after}
    return _write(old, out, [(one.head, *found[one._replace(lost=0.0)]) for one in removed], facts)


def _write(old: Run, out: Path, gone: list[tuple[int, str, Attention]], facts: dict[str, Any]) -> Run:
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".") as folder:  # so that it is whole or absent
        aside = shutil.copytree(old.path, Path(folder) / out.name, ignore=shutil.ignore_patterns("lock", "tensorboard"))
        for checkpoint in (aside / "checkpoints").iterdir():
            files = storage.read_directory(checkpoint)
            for file in {"model.safetensors", "raw.safetensors"} & set(files):
                weights = tensors_from_bytes(files[file])
                for head, name, attention in gone:
                    weights[f"{name}.output.weight"].unflatten(1, (attention.heads, -1))[:, head] = 0
                files[file] = tensors_to_bytes(weights)
            storage.write_directory(checkpoint, files)
        manifest, config = storage.read_manifest(aside) | {"pruned": facts}, (aside / "config.toml").read_bytes()
        storage.write_manifest(aside, manifest, "config.toml", config, also_old=False)
        os.rename(aside, out)
    write_card(run := Run.open(out))
    with (out / "README.md").open("a", encoding="utf-8") as card:
        card.write(f"\nPruned from {old.path.name}: {len(gone)} of {facts['of']} heads are silent; manifest.json names them.\n")
    return run
