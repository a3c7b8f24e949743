"""Beam search, equal to CTranslate2's: the same candidates, the same stopping, the same scores."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.errors import UserError
from regard.search.constraints import Rules
from regard.search.hypothesis import Hypothesis, S, Step
from regard.text.vocabulary import BOS, EOS


@torch.no_grad()
def beam(
    step: Step[S], state: S, *, width: int, n_best: int = 1, length_penalty: float = 1.0, patience: float = 1.0, **rules: Any
) -> list[list[Hypothesis]]:
    """The best `n_best` hypotheses of each sentence, best first: fewer where fewer exist, never none.

    A sentence stops at its limit, or when round(width * patience) hypotheses have finished; with no length penalty,
    as soon as n_best have and one was the best candidate of its step, for longer can then only be worse than that.
    At the limit, and where nothing at all may follow, the hypotheses that have not ended count as they are.
    `rules` as in `greedy`, to which width 1 is equal.
    """
    most = int(width * patience + 0.5)  # half goes up, as in C++
    if width < 1 or not 1 <= n_best <= most:
        raise UserError(f"1 <= n_best <= width * patience, please; got {n_best=}, {width=}, {patience=}")
    bounds = Rules(**rules)
    batch, device = bounds.batch, bounds.device
    finished: list[list[Hypothesis]] = [[] for _ in range(batch)]
    # sentences that stop once enough has finished: with no length penalty, those whose best candidate has ended
    enough, led = (most, set(range(batch))) if length_penalty else (n_best, set())
    sentences, scores = torch.arange(batch, device=device).unsqueeze(-1), torch.zeros(batch, 1, device=device)
    tokens, none = torch.full((batch, 1, 1), BOS, device=device), torch.zeros(batch, 1, 0, device=device)
    live = Paths(sentences, tokens, none, scores, parents=torch.zeros_like(sentences))
    for t in range(bounds.longest):
        logits, state = step(live.tokens[..., -1].flatten(), state)
        found = live.grow(bounds(logits, live.tokens[..., 1:].flatten(0, 1), live.sentences.flatten()), 2 * width)
        ended = (found.tokens[..., -1] == EOS) | (bounds.limits[found.sentences] == t + 1)
        real = ~found.scores.isneginf()
        stuck = ~live.scores.isneginf() & ~real.any(-1, keepdim=True)
        for paths, chosen in ((found, (ended & real)[:, :width]), (live, stuck)):
            rows, slots = chosen.nonzero(as_tuple=True)
            for sentence, produced, logprobs in zip(*(part[rows, slots].tolist() for part in paths[:3])):
                finished[sentence].append(Hypothesis.build(produced[1:], logprobs, length_penalty))
            led.update(paths.sentences[rows[slots == 0], 0].tolist())
        alive, places = (real & ~ended).any(-1).tolist(), found.sentences[:, 0].tolist()
        keep = [row for row, s in enumerate(places) if alive[row] and (len(finished[s]) < enough or s not in led)]
        if not keep:
            break
        kept, onward = torch.tensor(keep, device=device), found.scores.masked_fill(ended, -torch.inf)
        order = onward[kept].sort(stable=True, dim=-1, descending=True).indices[:, :width]
        live = found._replace(scores=onward).take(kept, order)
        state = state.select(kept, live.parents)
    return [sorted(hypotheses, key=lambda one: -one.score)[:n_best] for hypotheses in finished]


class Paths(NamedTuple):
    """Hypotheses (B, C), best first, of the sentences still searched. A score of -inf marks a slot that holds none."""

    sentences: Tensor  # (B, C) their places in the caller's batch
    tokens: Tensor  # (B, C, 1+t), <bos> first
    logprobs: Tensor  # (B, C, t)
    scores: Tensor  # (B, C) the sums of logprobs
    parents: Tensor  # (B, C) their slots before the last step

    def take(self, rows: Tensor, slots: Tensor) -> "Paths":
        """Of the sentences `rows` (B',) the hypotheses `slots` (B', C')."""
        return Paths(*(part[rows.unsqueeze(-1), slots] for part in self))

    def grow(self, logits: Tensor, count: int) -> "Paths":
        """The best `count` continuations of each sentence, from logits (R, V): enough to go on if half of them end.

        Equal sums go to the better parent, then to the likelier token, then to the lower id.
        """
        logprobs, ids = (table.view(*self.scores.shape, -1) for table in ranked(logits, count))
        sums = (self.scores.unsqueeze(-1) + logprobs).flatten(1)
        scores, order = (part[:, :count] for part in sums.sort(stable=True, dim=-1, descending=True))
        parents = order // ids.shape[-1]
        old = self.take(torch.arange(len(order), device=order.device), parents)
        tokens = torch.cat((old.tokens, ids.flatten(1).gather(1, order).unsqueeze(-1)), -1)
        logprobs = torch.cat((old.logprobs, logprobs.flatten(1).gather(1, order).unsqueeze(-1)), -1)
        return Paths(old.sentences, tokens, logprobs, scores, parents)


def ranked(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities and ids (R, C) of the `count` best of each row (R, V), best first, a tie to the lower id.

    Ranking logits, not sums of log-probabilities, keeps apart what rounding would make equal: so beam 1 is greedy.
    """
    values, ids = logits.topk(min(count + 1, logits.shape[-1]))
    # topk chooses as it likes among equals: where the last one in may equal the first one out, all are sorted
    tied = (values[:, -2] == values[:, -1]) & (values[:, -1] > -torch.inf)
    if tied.any():
        ids[tied] = logits[tied].argsort(stable=True, dim=-1, descending=True)[:, : ids.shape[-1]]
    ids = ids[:, :count].sort(-1).values
    values, order = logits.gather(-1, ids).sort(stable=True, dim=-1, descending=True)
    total = logits.logsumexp(-1, keepdim=True)
    return (values - total).where(total != -torch.inf, -torch.inf), ids.gather(-1, order)
