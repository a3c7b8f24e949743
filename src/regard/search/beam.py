"""Beam search, equal to CTranslate2's: the same candidates, the same stopping, the same scores."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.errors import UserError
from regard.search.constraints import Constraints, Rules
from regard.search.hypothesis import Hypothesis, S, Step, limits, not_numbers
from regard.text.vocabulary import BOS, EOS


@torch.no_grad()
def beam(
    step: Step[S],
    state: S,
    *,
    batch: int,
    limit: Tensor | Sequence[int],
    width: int,
    n_best: int = 1,
    length_penalty: float = 1.0,
    patience: float = 1.0,
    minimum: int = 0,
    constraints: Constraints | None = None,
    suppress: Tensor | None = None,
    device: torch.device | str = "cpu",
) -> list[list[Hypothesis]]:
    """The best `n_best` hypotheses of each sentence, best first: fewer where fewer exist, never none.

    A sentence stops at its limit, or when round(width * patience) hypotheses have finished; with no length penalty,
    as soon as n_best have and one was the best candidate of its step, for longer can then only be worse than that.
    At the limit the hypotheses that have not ended count as they are, with the length of their tokens.
    Arguments as in `greedy`, to which width 1 is equal.
    """
    most = int(width * patience + 0.5)  # half goes up, as in C++
    if width < 1 or not 1 <= n_best <= most:
        raise UserError(f"1 <= n_best <= width * patience, please; got {n_best=}, {width=}, {patience=}")
    steps, place = limits(limit, batch), torch.device(device)
    rules = Rules(batch, constraints, suppress, minimum, place)
    results = [Finished(n_best if length_penalty == 0 else most, length_penalty) for _ in range(batch)]
    last_step = torch.tensor(steps, dtype=torch.long, device=place) - 1
    live = Beams.start(batch, place)
    for t in range(max(steps, default=0)):
        logits, state = step(live.tokens[..., -1].flatten(), state)
        logits = rules(logits, live.tokens[..., 1:].flatten(0, 1), live.sentences.repeat_interleave(live.width))
        found = candidates(live, logits, width)
        last = last_step[live.sentences] == t
        ends = ((found.ids == EOS) | last.unsqueeze(-1))[:, :width] & (found.scores > -torch.inf)[:, :width]
        onward = going_on(found, width)
        keep = settle(results, live, found, ends, onward.scores[:, 0].isneginf() | last)
        if not keep:
            break
        kept = torch.tensor(keep, device=place)
        live, state = live.grow(kept, onward), state.select(kept, onward.parents[kept])
    return [result.best(n_best) for result in results]


@dataclass(frozen=True)
class Candidates:
    """Hypotheses one token longer, (B, C) each, best first: where they come from, what they add, what they sum to."""

    parents: Tensor
    ids: Tensor
    logprobs: Tensor
    scores: Tensor


@dataclass(frozen=True)
class Beams:
    """The live hypotheses of the sentences still searched. A score of -inf marks a slot that holds none."""

    sentences: Tensor  # (B,) their places in the caller's batch
    tokens: Tensor  # (B, K, 1+t), <bos> first
    logprobs: Tensor  # (B, K, t)
    scores: Tensor  # (B, K) the sums of logprobs, best first

    @classmethod
    def start(cls, batch: int, device: torch.device) -> "Beams":
        """One hypothesis a sentence: <bos>."""
        tokens = torch.full((batch, 1, 1), BOS, device=device)
        empty, zero = torch.zeros(batch, 1, 0, device=device), torch.zeros(batch, 1, device=device)
        return cls(torch.arange(batch, device=device), tokens, empty, zero)

    @property
    def width(self) -> int:
        return self.scores.shape[1]

    def extended(self, rows: Tensor, parents: Tensor, ids: Tensor, logprobs: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and logprobs of the hypotheses `parents` of the sentences `rows`, each with one more; of any shape."""
        tokens = torch.cat((self.tokens[rows, parents], ids.unsqueeze(-1)), -1)
        return tokens, torch.cat((self.logprobs[rows, parents], logprobs.unsqueeze(-1)), -1)

    def grow(self, kept: Tensor, onward: Candidates) -> "Beams":
        """The candidates `onward` (B, K') become the live hypotheses, of the sentences `kept` (B',) only."""
        parents, ids, logprobs = onward.parents[kept], onward.ids[kept], onward.logprobs[kept]
        tokens, logprobs = self.extended(kept.unsqueeze(-1), parents, ids, logprobs)
        return Beams(self.sentences[kept], tokens, logprobs, onward.scores[kept])


@dataclass
class Finished:
    """The hypotheses of one sentence that have ended, and how many of them are enough."""

    enough: int
    length_penalty: float
    hypotheses: list[Hypothesis] = field(default_factory=list)
    top: bool = False  # one of them was the best candidate of its step

    def add(self, produced: list[int], logprobs: list[float]) -> None:
        self.hypotheses.append(Hypothesis.build(produced, logprobs, self.length_penalty))

    def complete(self) -> bool:
        return len(self.hypotheses) >= self.enough and (self.top or self.length_penalty != 0)

    def best(self, n: int) -> list[Hypothesis]:
        return sorted(self.hypotheses, key=lambda one: -one.score)[:n]


def candidates(live: Beams, logits: Tensor, width: int) -> Candidates:
    """The best 2*width continuations of each sentence, from logits (R, V): enough to go on if `width` of them end.

    Equal sums go to the better parent, then to the likelier token, then to the lower id.
    """
    logprobs, ids = (table.view(*live.scores.shape, -1) for table in ranked(logits, 2 * width))
    each = ids.shape[-1]
    sums = (live.scores.unsqueeze(-1) + logprobs).flatten(1)
    scores, order = sums.sort(stable=True, dim=-1, descending=True)
    order, scores = order[:, : 2 * width], scores[:, : 2 * width]
    return Candidates(order // each, ids.flatten(1).gather(1, order), logprobs.flatten(1).gather(1, order), scores)


def ranked(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities and ids (R, C) of the `count` best of each row (R, V), best first, a tie to the lower id.

    Ranking logits, not sums of log-probabilities, keeps apart what rounding would make equal: so beam 1 is greedy.
    """
    count = min(count, logits.shape[-1])
    total = logits.logsumexp(-1, keepdim=True)
    values, ids = logits.topk(min(count + 1, logits.shape[-1]))
    # topk chooses as it likes among equals; that matters where the last one in equals the first one out
    edge, out = values[:, count - 1], values[:, count:]
    tied = ((out == edge.unsqueeze(-1)) & (out > -torch.inf)).any(-1)
    some_tied, broken = torch.stack((tied.any(), ~(total < torch.inf).all())).tolist()
    if broken:
        raise not_numbers()
    ids = ids[:, :count]
    if some_tied:
        ids[tied] = lowest_of_equals(logits[tied], edge[tied].unsqueeze(-1), count)
    ids = ids.sort(-1).values
    values, order = logits.gather(-1, ids).sort(stable=True, dim=-1, descending=True)
    return (values - total).where(total > -torch.inf, -torch.inf), ids.gather(-1, order)


def lowest_of_equals(logits: Tensor, edge: Tensor, count: int) -> Tensor:
    """The ids (R, count) above `edge` (R, 1), filled up with the lowest of those equal to it."""
    above, level = logits > edge, logits == edge
    room = count - above.sum(-1, keepdim=True)
    return (above | (level & (level.cumsum(-1) <= room))).nonzero()[:, 1].view(-1, count)


def going_on(found: Candidates, width: int) -> Candidates:
    """The best `width` candidates that do not end. Too few of them leave slots of score -inf."""
    ended = found.ids == EOS
    first = ended.byte().argsort(stable=True, dim=-1)[:, :width]
    scores = found.scores.masked_fill(ended, -torch.inf)
    return Candidates(*(part.gather(1, first) for part in (found.parents, found.ids, found.logprobs, scores)))


def settle(results: list[Finished], live: Beams, found: Candidates, ends: Tensor, over: Tensor) -> list[int]:
    """Record the candidates that end, `ends` (B, K), and say which of the B sentences go on.

    `over` (B,) marks a sentence at its limit or with nothing to go on with. If it then has no hypothesis at all,
    the constraints forbid every continuation, and its live ones are recorded as they are.
    """
    # the one wait for the device, but for steps in which something ends
    flags = torch.cat((ends, over.unsqueeze(-1), live.sentences.unsqueeze(-1)), 1).tolist()
    if any(any(row[:-2]) for row in flags):
        rows, ranks = ends.nonzero(as_tuple=True)
        new = (part[rows, ranks] for part in (found.parents, found.ids, found.logprobs))
        tokens, logprobs = live.extended(rows, *new)
        for row, one, its in zip(rows.tolist(), tokens.tolist(), logprobs.tolist()):
            results[flags[row][-1]].add(one[1:], its)
    keep = []
    for row, (top, *_, stop, sentence) in enumerate(flags):
        result = results[sentence]
        result.top |= bool(top)
        if stop and not result.hypotheses:
            slots = (live.scores[row] > -torch.inf).nonzero().squeeze(1)
            for one, its in zip(live.tokens[row, slots].tolist(), live.logprobs[row, slots].tolist()):
                result.add(one[1:], its)
        if not stop and not result.complete():
            keep.append(row)
    return keep
