"""Proofs on a model: change what must not matter to it, and see that its logits stay the same.

Changes of logits are relative to the largest logit.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.data.batches import Batch, collate
from regard.data.corpus import Corpus
from regard.data.objectives import objective_of
from regard.errors import UserError, counted
from regard.inspection.doctor.files import (
    Case,
    DoesNotApply,
    Remark,
    layer_name,
    locate_bad_values,
    proof,
    require,
)
from regard.models import CausalModel, MaskedEncoder
from regard.models.predictor import summed_loss
from regard.models.seq2seq import Seq2Seq
from regard.nn import Pattern, Position, watch
from regard.nn.masks import Rule, ask_rule
from regard.records.attention import block_of
from regard.runs.run import SHORTER
from regard.search import Hypothesis, beam, greedy
from regard.text.vocabulary import EOS, PAD
from regard.training.loss import mean_loss

EXACT = 1e-5  # how far logits may move where the same shapes are computed again
ROUNDED = 1e-4  # the same where shapes differ, and with them the order of the sums

LENGTH = 32  # tokens of the longest sentence the model is tried on
PLACES = 8  # places after which other tokens are tried
ANSWERS = 8  # sentences that are decoded
MORE = 7  # tokens of padding

LARGE = 5e7  # parameters from which a model is tried on fewer sentences
WORK = 2e12  # multiplications that computing the dev loss again may take

MUTE = 1e-3  # a head is idle if its output is smaller than this part of the largest,
UNIFORM = 0.99  # or if its weights have more than this part of the highest possible entropy

READS_ALL = "it reads the whole text at once"
READS_NOTHING = "it reads no source"

TRY = "try without your own parts and patches; if it persists, please report it"


class Layer(NamedTuple):
    """What one attention layer did with the batch, and where it was allowed to look."""

    name: str
    kind: str  # encoder, decoder or cross
    weights: Tensor  # (B, H, T, S)
    norms: Tensor  # (B, H, S), the length of the vector that each key hands over
    allowed: Tensor  # (B, H, T, S), True = may look; B, H and T may be 1 where it is all the same
    real: Tensor  # (B, 1, T), True = no padding


# What the proofs share


@torch.no_grad()
def _logits(case: Case, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
    if isinstance(case.model, MaskedEncoder):
        return case.model(source, lengths).float()  # (B, S, V)
    return case.model(source, lengths, target).float()  # (B, T, V)


def _layers(case: Case) -> list[Layer]:
    """Every attention layer of the model, after it has read the batch."""
    batch = case.batch
    with watch(case.model) as record:
        _logits(case, batch.source, batch.source_lengths, batch.target_in)

    layers = []
    for name, calls in record.weights.items():
        kind = block_of(name)
        weights = torch.cat(calls, dim=2).float()  # (B, H, T, S)
        if name in record.mixtures:
            continue  # they belong to no tokens
        rows = torch.arange(weights.shape[2], device=weights.device)  # (T,)
        columns = torch.arange(weights.shape[3], device=weights.device)  # (S,)

        visible = _visible(case, kind, rows)
        allowed = (columns < visible[..., None])[:, None]  # (B, 1, T, S)
        rule = _own_rule(case, kind)
        if rule is not None:
            allowed = allowed & ask_rule(rule, rows[None], columns[None], weights.shape[1])
        lengths = batch.source_lengths if kind == "encoder" else batch.target_lengths
        pattern = _pattern(case, kind)
        if pattern is not None:
            of_texts = lengths[:, None, None, None]  # (B, 1, 1, 1)
            allowed = allowed & pattern.allows(rows[:, None], columns, of_texts)
        real = rows < lengths[:, None, None]  # (B, 1, T)
        layers.append(Layer(name, kind, weights, record.norms[name], allowed, real))
    return layers


def _own_rule(case: Case, kind: str) -> Rule | None:
    """The user's own mask of this kind of attention."""
    model = case.model
    if kind == "encoder":
        return model.encoder.mask_rule
    return model.decoder.cross_rule if kind == "cross" else model.decoder.mask_rule


def _pattern(case: Case, kind: str) -> Pattern | None:
    """Which tokens see which in this kind of attention; None: all."""
    if kind == "encoder":
        return case.model.encoder.pattern
    return case.model.decoder.pattern if kind == "decoder" else None


def _visible(case: Case, kind: str, rows: Tensor) -> Tensor:
    """How many keys each row may look at: (B, T), or (1, T) or (B, 1) where it is all the same."""
    model = case.model
    if kind == "decoder":
        return rows[None] + 1  # (1, T)

    lengths = case.batch.source_lengths[:, None]  # (B, 1)
    if kind == "encoder" and model.encoder.causal:
        return torch.minimum(lengths, rows + 1)  # (B, T)
    if kind == "cross" and model.decoder.wait:
        return torch.minimum(lengths, rows + model.decoder.wait)  # (B, T)
    return lengths


def _leaks(case: Case, *kinds: str) -> str:
    """Lines that name the layers of these kinds which look where they may not."""
    lines = []
    for layer in _layers(case):
        if layer.kind not in kinds:
            continue
        forbidden = layer.weights.masked_fill(layer.allowed, 0).sum(-1) * layer.real  # (B, H, T)
        highest = forbidden.amax((0, 2))  # (H,)
        if highest.max() > 0:
            lines.append(
                f"\n{layer_name(layer.name)} attends there: head {highest.argmax() + 1} with up to "
                f"{100 * highest.max():.0f} %"
            )

    text = "".join(lines[:3])
    if len(lines) > 3:
        text += f"\nand {len(lines) - 3} more"
    return text


def _change(new: Tensor, old: Tensor) -> float:
    """The largest change of a value, relative to the largest value; infinite if there is NaN."""
    if old.numel() == 0:
        return 0.0
    scale = old.abs().max().clamp(min=1)
    change = (new - old).abs().max() / scale
    return float(change.nan_to_num(nan=torch.inf))


def _random_tokens(like: Tensor, side: Any) -> Tensor:
    """Tokens of this shape, any of the encoder's or decoder's vocabulary; the same every time."""
    generator = torch.Generator().manual_seed(like.numel())
    size = len(side.embedding.weight)
    return torch.randint(size, like.shape, generator=generator).to(like.device)


def _sentences(case: Case) -> str:
    return counted(case.batch.size, "sentence")


def _parameter_count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _is_pruned(case: Case) -> bool:
    return case.run is not None and "pruned" in case.run.manifest


# Numbers


@proof("no NaN, attention sums to 1", f"the part named above is broken: {TRY}", "weights")
def numbers(case: Case) -> str:
    """Every module gives finite values, and the weights of every row sum to one."""
    case.batch = _shortened(case)
    with _first_bad_output(case.model) as faults:
        layers = _layers(case)

    errors = {layer.name: _sum_error(layer) for layer in layers}
    for name, error in errors.items():
        if not error <= ROUNDED:  # so that NaN is a fault, too
            faults.append(
                f"{layer_name(name)}: the attention weights of a row sum to 1 ± {error:.2g}"
            )
    if faults:
        raise UserError(faults[0])

    head_count = sum(layer.weights.shape[1] for layer in layers)
    largest = max(errors.values(), default=0.0)
    return f"{_sentences(case)}, {counted(head_count, 'head')}; sums off by {largest:.1g}"


def _shortened(case: Case) -> Batch:
    """The case's batch with fewer and shorter sentences, so that all proofs are fast.

    Sentences also leave room for the padding that is added to them later.
    """
    model = case.model
    positions = [module for module in model.modules() if isinstance(module, Position)]
    limit = min([LENGTH, *(position.max_positions - MORE for position in positions)])
    count = 24 if _parameter_count(model) < LARGE else 8

    rows = []
    for source, target, *_ in case.batch.to("cpu").rows()[:count]:
        if len(source) > limit:
            source = [*source[: limit - 1], EOS]
        target = target[: limit + 1]
        if isinstance(model, MaskedEncoder) and len(target) > limit:
            target = [*target[:limit], PAD]  # nothing is asked of <eos>
        rows.append((source, target))
    return collate(rows).to(next(model.parameters()).device)


@contextmanager
def _first_bad_output(model: Seq2Seq) -> Iterator[list[str]]:
    """A list that tells, once the model has run, which module was the first with NaN or infinity.

    It stays empty if there was none.
    """
    faults: list[str] = []

    def check(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        if faults or not isinstance(output, Tensor) or output.isfinite().all():
            return
        parent, _, kind = name.rpartition(".")
        heads = getattr(model.get_submodule(parent), "heads", 1)
        bad = ~_by_feature(output).isfinite()
        faults.append(locate_bad_values(name or "logits", kind, bad, heads))

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.enter_context(module.register_forward_hook(partial(check, name)))
        yield faults


def _by_feature(output: Tensor) -> Tensor:
    """A module's output with one row for each feature, or for each head if it is scores."""
    if output.dim() == 4:  # scores (B, H, T, S)
        return output.movedim(1, 0).flatten(1)  # (H, B * T * S)
    return output.flatten(0, -2).T  # (D, B * T)


def _sum_error(layer: Layer) -> float:
    """How far from one the weights of a row sum, at most; zero if it may look at nothing."""
    expected = layer.allowed.any(-1).float()  # (B, H, T)
    errors = (layer.weights.sum(-1) - expected) * layer.real  # (B, H, T)
    return float(errors.abs().max())


# What is not there yet


@proof(
    "no look-ahead",
    f"it sees the tokens to predict, so its loss means nothing: mask the decoder; {TRY}",
    "numbers",
)
def future(case: Case) -> str:
    """Logits do not depend on later target tokens."""
    if isinstance(case.model, MaskedEncoder):
        raise DoesNotApply(READS_ALL)
    batch = case.batch
    logits = partial(_logits, case, batch.source, batch.source_lengths)
    target = F.pad(batch.target_in, (0, MORE))  # (B, T + MORE)
    return _replace_later(case, target, case.model.decoder, logits, "decoder")


@proof(
    "no look-ahead in the source",
    f"it cannot translate a source that is still being written: mask it; {TRY}",
    "numbers",
)
def online(case: Case) -> str:
    """Nothing depends on source tokens that come later.

    That is: neither the states of a causal encoder, nor the logits of a model that waits.
    """
    if isinstance(case.model, MaskedEncoder):
        raise DoesNotApply(READS_ALL)
    if isinstance(case.model, CausalModel):
        raise DoesNotApply(READS_NOTHING)
    batch = case.batch
    encoder = case.model.encoder
    wait = case.model.decoder.wait
    if not encoder.causal and not wait:
        raise DoesNotApply("it reads the whole source first")

    def states(source: Tensor) -> Tensor:
        return encoder(source, batch.source_lengths).states.detach()  # (B, S, D)

    encoder_text = _replace_later(case, batch.source, encoder, states, "encoder")
    if not wait:
        return encoder_text

    logits = partial(_logits, case, lengths=batch.source_lengths, target=batch.target_in)
    return _replace_later(case, batch.source, encoder, logits, "cross", ahead=wait - 1)


def _replace_later(
    case: Case,
    tokens: Tensor,
    side: Any,
    compute: Callable[[Tensor], Tensor],
    kind: str,
    ahead: int = 0,
) -> str:
    """Replace all tokens (B, T) after a place: what is computed before it must stay the same.

    side: the encoder or decoder, for its vocabulary. compute: tokens -> (B, T, …). ahead: how many
    more tokens a row may see than its own. kind: the attention to blame if values change.
    """
    places = torch.linspace(1, tokens.shape[1] - 1, PLACES).round().int().tolist()
    places = sorted(set(places) - {0})

    expected = compute(tokens)
    largest = 0.0
    for place in places:
        later = _random_tokens(tokens[:, place:], side)
        values = compute(torch.cat((tokens[:, :place], later), 1))
        rows = max(0, place - ahead)
        largest = max(largest, _change(values[:, :rows], expected[:, :rows]))

    text = (
        f"{_sentences(case)}, later tokens replaced at {counted(len(places), 'position')}: "
        f"earlier outputs change by {largest:.2g}"
    )
    if largest > EXACT:
        raise UserError(text + _leaks(case, kind))
    return text


# Padding and batches


def _alone(case: Case) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Each sentence as a batch of its own: source without padding, length, target.

    The target keeps its padding: to the decoder that is the future, which has a proof of its own.
    """
    batch = case.batch
    sentences = []
    for row, length in enumerate(batch.source_lengths):
        source = batch.source[row, None, :length]  # (1, S)
        sentences.append((source, batch.source_lengths[row, None], batch.target_in[row, None]))
    return sentences


@proof(
    "padding has no effect",
    f"answers depend on the batch: mask the source beyond its length; {TRY}",
    "numbers",
)
def padding(case: Case) -> str:
    """Logits do not depend on what stands in the source after its length."""
    if isinstance(case.model, CausalModel):
        raise DoesNotApply(READS_NOTHING)
    largest = 0.0
    for source, length, target in _alone(case):
        expected = _logits(case, source, length, target)  # (1, T, V)
        for count in (1, MORE):
            rubbish = _random_tokens(source.new_empty(1, count), case.model.encoder)
            logits = _logits(case, torch.cat((source, rubbish), 1), length, target)
            real = logits[:, : expected.shape[1]]  # a masked model answers for the padding, too
            largest = max(largest, _change(real, expected))

    text = (
        f"{_sentences(case)}, padded with 1 and {MORE} random tokens: logits change by "
        f"{largest:.2g}"
    )
    if largest > ROUNDED:
        raise UserError(text + _leaks(case, "encoder", "cross"))
    return text


@proof("batching has no effect", f"sentences in a batch affect each other: {TRY}", "padding")
def company(case: Case) -> str:
    """A sentence has the same logits and answers alone, in a batch, and in a batch turned round."""
    largest = _change_in_company(case, _alone(case))
    text = f"{_sentences(case)}, alone and in a batch: logits differ by {largest:.2g}"
    if isinstance(case.model, MaskedEncoder):  # it writes no answers
        return require(largest <= ROUNDED, text)

    sources, lengths = _to_continue(case)
    together = _answers(case, sources, lengths)
    changed = 0
    for row, answers in enumerate(together):
        length = lengths[row, None]  # (1,)
        (alone,) = _answers(case, sources[row, None, :length], length)
        changed += any(map(_differ, answers, alone))

    text += f", greedy and beam answers in {changed} of {counted(len(together), 'case')}"
    return require(largest <= ROUNDED and not changed, text)


def _to_continue(case: Case) -> tuple[Tensor, Tensor]:
    """What some answers are answers to, (B, S) and (B,): sources, or the first halves of texts."""
    batch = case.batch
    if isinstance(case.model, CausalModel):
        halves = batch.target_lengths[:ANSWERS] // 2 + 1  # (B,), <bos> included
        return batch.target_in[:ANSWERS], halves
    return batch.source[:ANSWERS], batch.source_lengths[:ANSWERS]


def _change_in_company(case: Case, sentences: list[tuple[Tensor, Tensor, Tensor]]) -> float:
    """How far the logits of a batch are from those of its sentences alone.

    The batch is read in this order and in reverse.
    """
    batch = case.batch
    sides = (batch.source, batch.source_lengths, batch.target_in)
    forward = _logits(case, *sides)  # (B, T, V)
    reverse = _logits(case, *(side.flip(0) for side in sides)).flip(0)  # (B, T, V)

    changes = []
    for row, sentence in enumerate(sentences):
        alone = _logits(case, *sentence)  # (1, T, V)
        both = torch.stack((forward[row], reverse[row]))  # (2, T or more, V)
        changes.append(_change(both[:, : alone.shape[1]], alone))
    return max(changes)


@torch.no_grad()
def _answers(case: Case, source: Tensor, lengths: Tensor) -> list[tuple[Hypothesis, Hypothesis]]:
    """For each sentence, the answers of greedy and of beam search."""
    model = case.model
    rules: dict[str, Any] = {
        "batch": len(source),
        "limit": (lengths + 1).tolist(),
        "device": source.device,
    }
    by_greedy = greedy(model.step, model.start(source, lengths), **rules)
    by_beam = beam(model.step, model.start(source, lengths), width=4, **rules)
    return [(first, best[0]) for first, best in zip(by_greedy, by_beam)]


def _differ(one: Hypothesis, other: Hypothesis) -> bool:
    """Whether the tokens differ, and not only because rounding decided between equal scores."""
    return one.tokens != other.tokens and abs(one.score - other.score) > 1e-3


# Training


@proof(
    "train and eval mode agree",
    f"the model in use is not the one that is trained: {TRY}",
    "company",
    "future",
)
def modes(case: Case) -> str:
    """Without dropout, the loss in training is the loss of the logits in eval mode."""
    batch = case.batch
    real = batch.target_out != PAD  # (B, T)
    logits = _logits(case, batch.source, batch.source_lengths, batch.target_in)  # (B, T, V)
    used = summed_loss(logits[real], batch.target_out[real]).nll / batch.tokens

    with _training_without_dropout(case.model):
        trained = case.model.loss(batch).nll / batch.tokens

    difference = float((trained - used).abs() / used.clamp(min=1e-9))
    return require(
        difference <= ROUNDED,
        f"loss {trained:.5f} in train mode without dropout, {used:.5f} in eval mode; relative "
        f"difference {difference:.1g}",
    )


@contextmanager
def _training_without_dropout(model: Seq2Seq) -> Iterator[None]:
    """The model in training mode with all dropout rates at zero; afterwards in eval mode again."""
    rates = []
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, float) and ("drop" in name or name == "p"):
                rates.append((module, name, value))
    for module, name, _ in rates:
        setattr(module, name, 0.0)
    try:
        model.train()
        yield
    finally:
        model.eval()
        for module, name, rate in rates:
            setattr(module, name, rate)


@proof(
    "dev loss matches the log",
    "code, data or weights have changed since training: find out which",
    "modes",
)
def logged(case: Case) -> str:
    """The best checkpoint still has the loss on dev that training wrote into the log."""
    record = _logged_record(case)
    if record is None:
        raise Remark("no dev loss in the log", None)
    if 2 * _parameter_count(case.model) * record["tokens"] > WORK:
        raise Remark(
            "the dev set is too large to check here: run `regard evaluate RUN --split dev`", None
        )

    config = case.run.config
    corpus = Corpus.open(case.path / "data" / "dev")
    objective = objective_of(config.train, case.run.source)
    now = mean_loss(case.model, corpus, config.data.batch_tokens, case.device, objective)["loss"]
    then = record["loss"]
    limit = 1e-2 if config.train.precision == "bf16" else 1e-3
    text = f"{now:.5f} now, {then:.5f} in the log of {case.run.best}; tolerance {limit:g}"
    return require(abs(now - then) <= limit * max(1, then), text)


def _logged_record(case: Case) -> dict[str, Any] | None:
    """The last line of the log about the best checkpoint's loss on dev, if there is one."""
    run = case.run
    if run is None or _is_pruned(case) or not (case.path / "data" / "dev").exists():
        return None
    if run.best == SHORTER:  # training goes on, and has forgotten what it logged of it
        return None
    wanted: dict[str, Any] = {"kind": "average"}
    if run.best != "averaged":
        wanted = {"kind": "dev", "step": int(run.best.removeprefix("step-"))}
    wanted_items = wanted.items()
    found = None
    for record in run.looks():
        if record.items() >= wanted_items and "tokens" in record:
            found = record
    return found


# Heads


@proof(
    "all heads are used",
    "idle heads do not help the model: try fewer heads or layers, or train longer",
    "padding",
    "future",
)
def heads(case: Case) -> str:
    """No head looks everywhere alike or says next to nothing."""
    layers = _layers(case)
    if not layers:
        raise Remark("no attention heads", None)
    sizes = [_output_sizes(layer) for layer in layers]

    idle: list[str] = []
    for layer, size in zip(layers, sizes):
        loudest = max(
            float(other.max()) for peer, other in zip(layers, sizes) if peer.kind == layer.kind
        )
        mute = size <= MUTE * loudest  # (H,)
        if mute.all() and not _is_pruned(case):
            raise UserError(
                f"{layer_name(layer.name)}: every head's output is smaller than {MUTE:g} of the "
                f"largest of the other layers"
            )
        uniform = _relative_entropy(layer) > UNIFORM  # (H,)
        idle_heads = (mute | uniform).nonzero().flatten().tolist()
        idle += [f"{layer_name(layer.name)} head {head + 1}" for head in idle_heads]

    count = counted(sum(map(len, sizes)), "head")
    rule = f"uniform attention, entropy over {UNIFORM:g}; or output below {MUTE:g} of the largest"
    text = f"{len(idle)} of {count} idle ({rule})"
    if not idle:
        return text
    if _is_pruned(case):
        return f"{text}; the run was pruned"
    more = " …" if len(idle) > 5 else ""
    raise Remark(f"{text}: {'; '.join(idle[:5])}{more}")


def _output_sizes(layer: Layer) -> Tensor:
    """(H,): how much each head says, the mean over real rows of its weights times norms."""
    sizes = (layer.weights * layer.norms[:, :, None]).sum(-1) * layer.real  # (B, H, T)
    return sizes.sum((0, 2)) / layer.real.sum()


def _relative_entropy(layer: Layer) -> Tensor:
    """(H,): the mean entropy of a head's weights; 1 is that of looking everywhere alike.

    Only rows count that are real and may look at more than one key.
    """
    keys = layer.allowed.sum(-1)  # (B, 1 or H, T)
    counted = layer.real & (keys > 1)  # (B, 1 or H, T)
    logs = layer.weights.clamp(min=1e-30).log()  # (B, H, T, S)
    entropy = -(layer.weights * logs).sum(-1)  # (B, H, T)
    relative = entropy / keys.clamp(min=2).log()  # (B, H, T)
    return (relative * counted).sum((0, 2)) / counted.sum((0, 2)).clamp(min=1)
