"""Proofs on a model: what may not matter to it is changed, and nothing may move. Numbers are
relative to the largest logit.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.data.batches import collate
from regard.data.corpus import Corpus
from regard.errors import UserError
from regard.inspection.doctor.files import Case, Remark, held, plain, proof, where
from regard.models.seq2seq import summed_loss
from regard.nn import Position, watch
from regard.records.attention import block_of
from regard.search import Hypothesis, beam, greedy
from regard.text.vocabulary import EOS
from regard.training.loss import mean_loss

EXACT, ROUNDED = (
    1e-5,
    1e-4,
)  # what may move: where the same is computed again; where in another shape, which rounds otherwise
LENGTH, PLACES, ANSWERS, MORE = (
    32,
    8,
    8,
    7,
)  # longest sentence; places changed; sentences answered; tokens of padding
LARGE, WORK = (
    5e7,
    2e12,
)  # numbers in a model of which less is asked; products that the loss on dev may take
MUTE, UNIFORM = (
    1e-3,
    0.99,
    # a head that says less than this of the loudest, or looks around with more of the possible
    # entropy
)
TRY = "try without parts and patches of your own; if it stays, tell us"


class Look(NamedTuple):
    """What one attention did."""

    name: str
    kind: str
    weights: Tensor  # (B, H, T, S)
    norms: Tensor  # (B, H, S)
    allowed: Tensor  # (B, 1, T, S): who may look where
    real: Tensor  # (B, 1, T): who is no padding


@torch.no_grad()
def _logits(case: Case, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
    return case.model(source, lengths, target).float()


def _looks(case: Case) -> list[Look]:
    model, b, found = case.model, case.batch, []
    with watch(model) as record:
        _logits(case, b.source, b.source_lengths, b.target_in)
    for name, calls in record.weights.items():
        weights = torch.cat(calls, dim=2).float()
        rows, columns = (torch.arange(n, device=weights.device) for n in weights.shape[2:])
        kind = block_of(name)
        past = rows[None] + (model.decoder.wait if kind == "cross" else 1)
        bound = {"decoder": True, "encoder": model.encoder.causal, "cross": model.decoder.wait}[
            kind
        ]
        reach = past if kind == "decoder" else b.source_lengths[:, None]
        allowed = columns < (torch.minimum(reach, past) if bound else reach)[..., None]
        real = rows < (b.source_lengths if kind == "encoder" else b.target_lengths)[:, None, None]
        found.append(Look(name, kind, weights, record.norms[name], allowed[:, None], real))
    return found


def _strays(case: Case, *kinds: str) -> str:
    """Which layers look where they may not."""
    lines = []
    for look in _looks(case):
        most = (look.weights.masked_fill(look.allowed, 0).sum(-1) * look.real).amax((0, 2))
        if look.kind in kinds and most.max() > 0:
            lines.append(
                f"\n{plain(look.name)} looks there: head {most.argmax() + 1} with up to "
                f"{100 * most.max():.0f} %"
            )
    return "".join(lines[:3]) + (f"\nand {len(lines) - 3} more" if len(lines) > 3 else "")


def _moved(new: Tensor, old: Tensor) -> float:
    """The largest change; NaN is the largest of all."""
    return (
        float(((new - old).abs().max() / old.abs().max().clamp(min=1)).nan_to_num(torch.inf))
        if old.numel()
        else 0.0
    )


def _any(like: Tensor, side: Any) -> Tensor:
    """Any ids at all, in this shape."""
    words = torch.Generator().manual_seed(like.numel())
    return torch.randint(len(side.embedding.weight), like.shape, generator=words).to(like.device)


@proof("no NaN, weights sum to one", f"it is broken where it says: {TRY}", "weights")
def numbers(case: Case) -> str:
    model, bad = case.model, list[str]()
    limit = min(
        [LENGTH, *(p.max_positions - MORE for p in model.modules() if isinstance(p, Position))]
    )
    most = 24 if sum(w.numel() for w in model.parameters()) < LARGE else 8
    rows = [
        ([*s[: limit - 1], EOS] if len(s) > limit else s, t[: limit + 1])
        for s, t in case.batch.to("cpu").rows()[:most]
    ]
    case.batch = collate(rows).to(next(model.parameters()).device)

    def check(name: str, module: nn.Module, inputs: Any, out: Any) -> None:
        if not bad and isinstance(out, Tensor) and not out.isfinite().all():
            heads = getattr(model.get_submodule(name.rpartition(".")[0]), "heads", 1)
            features = (
                out.movedim(1, 0).flatten(1) if out.dim() == 4 else out.flatten(0, -2).T
            )  # scores: (B, H, T, S)
            bad.append(where(name or "logits", name.split(".")[-1], ~features.isfinite(), heads))

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.enter_context(module.register_forward_hook(partial(check, name)))
        looks = _looks(case)
    off = {look.name: float(((look.weights.sum(-1) - 1) * look.real).abs().max()) for look in looks}
    bad += [
        f"{plain(name)}: the weights of a row sum to one but for {x:.2g}"
        for name, x in off.items()
        if not x <= ROUNDED
    ]
    sums = (
        f"{len(rows)} sentences, {sum(x.weights.shape[1] for x in looks)} heads; sums off by "
        f"{max([0.0, *off.values()]):.1g}"
    )
    return held(not bad, bad[0] if bad else sums)


def _others(
    case: Case, side: str, tokens: Tensor, look: Callable[[Tensor], Tensor], ahead: int, *kinds: str
) -> str:
    """Put other tokens from some place on: what look gives for places so far ahead of it may not
    move.
    """
    places = sorted({*torch.linspace(1, tokens.shape[1] - 1, PLACES).round().int().tolist()} - {0})
    before, worst = look(tokens), 0.0
    for t in places:
        after = look(torch.cat((tokens[:, :t], _any(tokens[:, t:], getattr(case.model, side))), 1))
        worst = max(worst, _moved(after[:, : max(0, t - ahead)], before[:, : max(0, t - ahead)]))
    found = (
        f"{len(tokens)} sentences, other tokens after {len(places)} places: what comes before "
        f"moves by {worst:.2g}"
    )
    return held(worst <= EXACT, found if worst <= EXACT else found + _strays(case, *kinds))


@proof(
    "the future is not seen",
    f"it reads the answer, so its loss says nothing: mask the decoder; {TRY}",
    "numbers",
)
def future(case: Case) -> str:
    logits = partial(_logits, case, case.batch.source, case.batch.source_lengths)
    return _others(case, "decoder", F.pad(case.batch.target_in, (0, MORE)), logits, 0, "decoder")


@proof(
    "source is read as it comes",
    f"it cannot translate while the source is written: mask the source; {TRY}",
    "numbers",
)
def online(case: Case) -> str:
    b, model, wait = case.batch, case.model, case.model.decoder.wait
    if not (model.encoder.causal or wait):
        raise Remark("it reads its whole source first", None)
    found = _others(
        case,
        "encoder",
        b.source,
        lambda x: model.encoder(x, b.source_lengths).states.detach(),
        0,
        "encoder",
    )
    logits = partial(_logits, case, lengths=b.source_lengths, target=b.target_in)
    return _others(case, "encoder", b.source, logits, wait - 1, "cross") if wait else found


def _alone(case: Case) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Each source without padding. The target's padding is its future, and stays as it is."""
    b = case.batch
    return [
        (b.source[i, None, :n], b.source_lengths[i, None], b.target_in[i, None])
        for i, n in enumerate(b.source_lengths)
    ]


@proof(
    "padding has no influence",
    f"its answers depend on the batch: hide what lies beyond a source's length; {TRY}",
    "numbers",
)
def padding(case: Case) -> str:
    worst = 0.0
    for source, *rest in _alone(case):
        wider = (
            torch.cat((source, _any(source.new_empty(1, n), case.model.encoder)), 1)
            for n in (1, MORE)
        )
        one, two, alone = (_logits(case, x, *rest) for x in (*wider, source))
        worst = max(worst, _moved(one, alone), _moved(two, alone))
    found = (
        f"{case.batch.size} sentences, 1 and {MORE} tokens of rubbish behind each: logits move by "
        f"{worst:.2g}"
    )
    return held(
        worst <= ROUNDED, found if worst <= ROUNDED else found + _strays(case, "encoder", "cross")
    )


@proof(
    "alone or in company: the same", f"sentences of a batch disturb each other: {TRY}", "padding"
)
def company(case: Case) -> str:
    b, alone, few = case.batch, _alone(case), min(ANSWERS, case.batch.size)
    whole = _logits(case, b.source, b.source_lengths, b.target_in)
    turned = _logits(case, b.source.flip(0), b.source_lengths.flip(0), b.target_in.flip(0)).flip(0)
    worst = max(
        _moved(torch.stack((whole[i], turned[i])), _logits(case, *one))
        for i, one in enumerate(alone)
    )
    pairs = zip(
        _answers(case, b.source[:few], b.source_lengths[:few]),
        (_answers(case, *one[:2])[0] for one in alone),
    )
    others = sum(
        any(x.tokens != y.tokens and abs(x.score - y.score) > 1e-3 for x, y in zip(*pair))
        for pair in pairs
    )
    found = (
        f"{b.size} sentences: logits move by {worst:.2g}; of {few} answers, greedy and by beam, "
        f"{others or 'none'} change"
    )
    return held(worst <= ROUNDED and not others, found)


@torch.no_grad()
def _answers(case: Case, source: Tensor, lengths: Tensor) -> list[tuple[Hypothesis, Hypothesis]]:
    """Of each sentence the greedy one and the beam's."""
    step, start, memory = (
        case.model.step,
        case.model.decoder.start,
        case.model.encoder(source, lengths),
    )
    rules: dict[str, Any] = {
        "batch": len(source),
        "limit": (lengths + 1).tolist(),
        "device": source.device,
    }
    both = greedy(step, start(memory), **rules), beam(step, start(memory), width=4, **rules)
    return [(one, best[0]) for one, best in zip(*both)]


@proof(
    "train and eval mode agree", f"what is trained is not what is used: {TRY}", "company", "future"
)
def modes(case: Case) -> str:
    b, model = case.batch, case.model
    real = torch.arange(b.target_in.shape[1], device=b.target.device) < b.target_lengths[:, None]
    used = (
        summed_loss(
            _logits(case, b.source, b.source_lengths, b.target_in)[real], b.target_out[real]
        ).nll
        / b.tokens
    )
    rates = [
        (m, k, x)
        for m in model.modules()
        for k, x in vars(m).items()
        if isinstance(x, float) and ("drop" in k or k == "p")
    ]
    for m, name, _ in rates:
        setattr(m, name, 0.0)
    try:
        trained = model.train().loss(b).nll / b.tokens
    finally:
        model.eval()
        for m, name, rate in rates:
            setattr(m, name, rate)
    apart = float((trained - used).abs() / used.clamp(min=1e-9))
    return held(
        apart <= ROUNDED,
        f"loss {trained:.5f} in training, nothing dropped; {used:.5f} in use; {apart:.1g} apart",
    )


@proof(
    "dev loss is the logged one",
    "other code, data or weights than when it was trained: find what changed",
    "modes",
)
def logged(case: Case) -> str:
    run, dev = case.run, case.path / "data" / "dev"
    known = bool(run) and dev.exists() and "pruned" not in run.manifest
    look = (
        {"kind": "average"}
        if known and run.best == "averaged"
        else {"kind": "dev", "step": known and int(run.best[5:])}
    )
    found = [r for r in run.records() if r.items() >= look.items()] if known else []
    if (
        not found
        or sum(w.numel() for w in case.model.parameters()) * 2 * found[-1]["tokens"] > WORK
    ):
        raise Remark(
            "dev is too large: use `regard evaluate RUN --split dev`"
            if found
            else "no loss on dev is known",
            None,
        )
    now = mean_loss(case.model, Corpus.open(dev), run.config.data.batch_tokens, case.device)["loss"]
    then, limit = found[-1]["loss"], 1e-2 if run.config.train.precision == "bf16" else 1e-3
    text = f"{now:.5f} now, {then:.5f} in the log of {run.best}; {limit:g} is allowed"
    return held(abs(now - then) <= limit * max(1, then), text)


@proof(
    "heads at work",
    "they are of no use to it: try fewer (model.heads, layers), or train longer",
    "padding",
    "future",
)
def heads(case: Case) -> str:
    looks, idle = _looks(case), list[str]()
    sizes = [
        ((x.weights * x.norms[:, :, None]).sum(-1) * x.real).sum((0, 2)) / x.real.sum()
        for x in looks
    ]
    for look, size in zip(looks, sizes):
        choice = look.allowed.sum(-1)
        counted = look.real & (choice > 1)
        entropy = (
            -(look.weights * look.weights.clamp(min=1e-30).log()).sum(-1)
            / choice.clamp(min=2).log()
        )
        blind = (entropy * counted).sum((0, 2)) / counted.sum().clamp(min=1) > UNIFORM
        mute = size <= MUTE * max(
            float(s.max()) for x, s in zip(looks, sizes) if x.kind == look.kind
        )
        if mute.all() and not (case.run and "pruned" in case.run.manifest):
            raise UserError(
                f"{plain(look.name)}: all its heads say less than {MUTE:g} of what those of other "
                f"layers say"
            )
        idle += [
            f"{plain(look.name)} head {h + 1}" for h in (blind | mute).nonzero().flatten().tolist()
        ]
    rule = (
        f"of {sum(map(len, sizes))} look everywhere alike (entropy over {UNIFORM:g}) or say less "
        f"than {MUTE:g} of the loudest"
    )
    if idle and case.run and "pruned" in case.run.manifest:
        return f"{len(idle)} {rule}: the run was pruned"
    if not looks:
        raise Remark("it has none", None)
    if idle:
        raise Remark(f"{len(idle)} {rule}: {'; '.join(idle[:5])}{' …' if len(idle) > 5 else ''}")
    return f"none {rule}"
