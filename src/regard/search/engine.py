"""The loop of every search: sentences stand side by side, leave when they are done, and waiting
ones take their place.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import UserError
from regard.search.constraints import Constraints, Rules
from regard.search.hypothesis import Hypothesis, Job, S, Step
from regard.text.vocabulary import BOS, EOS


class Paths(NamedTuple):
    """Hypotheses (B, C) of the sentences still searched. A score of -inf marks a slot that holds
    none.
    """

    tokens: Tensor  # (B, C, t), <bos> first; before it, where others began earlier, -1
    logprobs: Tensor  # (B, C, t)
    scores: Tensor  # (B, C) the sums of logprobs
    parents: Tensor  # (B, C) their slots before the last step

    @classmethod
    def begin(cls, sentences: int, copies: int, alive: int, device: torch.device | str) -> "Paths":
        """`copies` slots of each sentence, of which the first `alive` hold a hypothesis."""
        tokens = torch.full((sentences, copies, 1), BOS, device=device)
        scores = torch.zeros(sentences, copies, device=device)
        scores[:, alive:] = -torch.inf
        own = torch.arange(copies, device=device).expand(sentences, -1)
        return cls(tokens, torch.zeros_like(tokens, dtype=torch.float), scores, own)

    def take(self, rows: Tensor, slots: Tensor) -> "Paths":
        """Of the sentences `rows` (B',) the hypotheses `slots` (B', C')."""
        return Paths(*(part[rows.unsqueeze(-1), slots] for part in self))

    def extend(self, ids: Tensor, logprobs: Tensor, scores: Tensor) -> "Paths":
        """Each with one token more; all (B, C)."""
        tokens, logprobs = (
            torch.cat((old, new.unsqueeze(-1)), -1) for old, new in zip(self, (ids, logprobs))
        )
        return Paths(tokens, logprobs, scores, self.parents)

    def join(self, other: "Paths") -> "Paths":
        """The sentences of both; those of the other begin now."""
        behind = self.tokens.shape[2] - other.tokens.shape[2], 0
        later = F.pad(other.tokens, behind, value=-1), F.pad(other.logprobs, behind), *other[2:]
        return Paths(*(torch.cat(parts) for parts in zip(self, later)))


class Search(Protocol):
    """One way to go on. What it must remember of a sentence stands in its Job."""

    copies: int
    """Hypotheses of each sentence."""
    apart: bool
    """Whether each goes its own way; else they compete, and there is one of them at the start."""
    length_penalty: float

    def grow(self, live: Paths, logits: Tensor, jobs: Sequence[Job]) -> Paths:
        """Candidates (B, C) from masked logits (R, V): C = K, each in its slot, if they are apart;
        else C >= K, best first.
        """
        ...

    def enough(self, job: Job) -> bool:
        """Whether the sentence stops though some of its hypotheses could go on."""
        ...


@torch.no_grad()
def decode(
    step: Step[S],
    begin: Callable[[Sequence[Job]], S],
    jobs: Iterable[Job],
    search: Search,
    rules: Rules,
    room: int = 0,
) -> Iterator[Job]:
    """Search all jobs, and give each as soon as it is done. room: source tokens that stand side by
    side, with padding; 0: all.

    A sentence stops at its limit, when none of its hypotheses can go on, or when the search has
    found enough. At the limit, and where nothing at all may follow, the hypotheses that have not
    ended count as they are.
    """
    waiting, device = iter(jobs), rules.device
    coming, live, most = next(waiting, None), list[Job](), 0
    state: S | None = None
    paths = Paths.begin(0, search.copies, 1, device)
    while coming is not None or live:
        if coming is not None and 4 * len(live) <= 3 * most:  # a quarter has left: call the next
            fresh, longest = list[Job](), max((len(job.source) for job in live), default=0)
            while coming is not None:
                longest, count = max(longest, len(coming.source)), len(live) + len(fresh) + 1
                if room and count > 1 and longest * count > room:
                    break
                fresh.append(coming)
                coming = next(waiting, None)
            if fresh:
                started = Paths.begin(
                    len(fresh), search.copies, search.copies if search.apart else 1, device
                )
                begun = begin(fresh)
                begun = (
                    begun.select(None, torch.zeros_like(started.parents))
                    if search.copies > 1
                    else begun
                )
                state, paths = (
                    (begun, started) if state is None else (state.join(begun), paths.join(started))
                )
            live = [*live, *fresh]
            most = len(live)
        assert state is not None
        logits, state = step(paths.tokens[..., -1].flatten(), state)
        found = search.grow(
            paths, rules(logits, paths.tokens.flatten(0, 1), live, search.copies), live
        )
        for job in live:
            job.age += 1
        keep, found = _settle(search, paths, found, live)
        done = sorted(set(range(len(live))).difference(keep)) if len(keep) < len(live) else []
        if done or not search.apart:
            rows, slots = (
                torch.tensor(keep, device=device, dtype=torch.long),
                torch.arange(search.copies, device=device),
            )
            best = (
                found.scores.isneginf().byte().argsort(dim=1, stable=True)
            )  # they come best first
            found = found.take(
                rows, slots.expand(len(keep), -1) if search.apart else best[rows, : search.copies]
            )
            state = state.select(rows if done else None, found.parents) if keep else None
            width = (
                max((live[row].age for row in keep), default=0) + 1
            )  # the past of those who have left goes with them
            found = found._replace(
                tokens=found.tokens[..., -width:], logprobs=found.logprobs[..., -width:]
            )
        paths = found
        for job in [live[row] for row in done]:
            job.ended.sort(key=lambda one: one[0] if search.apart else -one[1].score)
            job.found = [one for _, one in job.ended]
            yield job
        live = [live[row] for row in keep]


def _settle(
    search: Search, before: Paths, found: Paths, live: Sequence[Job]
) -> tuple[list[int], Paths]:
    """Note what has ended; the rows of the sentences that go on, and the candidates without those
    that ended.
    """
    last = torch.tensor([job.age == job.limit for job in live], device=found.scores.device)
    ended, real = (found.tokens[..., -1] == EOS) | last[:, None], ~found.scores.isneginf()
    stuck = ~before.scores.isneginf() & ~(real if search.apart else real.any(-1, keepdim=True))
    for paths, chosen, late in ((found, (ended & real)[:, : search.copies], 0), (before, stuck, 1)):
        rows, slots = chosen.nonzero(as_tuple=True)
        parts = (
            part.tolist()
            for part in (rows, slots, paths.tokens[rows, slots], paths.logprobs[rows, slots])
        )
        for row, slot, tokens, logprobs in zip(*parts):
            job = live[row]
            start = len(tokens) - (job.age - late)
            job.ended.append(
                (slot, Hypothesis.build(tokens[start:], logprobs[start:], search.length_penalty))
            )
            job.led |= slot == 0
    goes_on = (real & ~ended).any(-1).tolist()
    keep = [row for row, job in enumerate(live) if goes_on[row] and not search.enough(job)]
    return keep, found._replace(scores=found.scores.masked_fill(ended, -torch.inf))


def together(
    step: Step[S],
    state: S,
    search: Search,
    *,
    batch: int,
    limit: Tensor | Sequence[int],
    constraints: Constraints | None = None,
    seeds: Sequence[int] | None = None,
    **rules: Any,
) -> list[list[Hypothesis]]:
    """Search the sentences of a state side by side; each has its own limit, the most steps, <eos>
    counted.
    """
    demands, limits = constraints or Constraints(), torch.as_tensor(limit).tolist()
    prefix = demands.prefix or [[]] * batch
    if not batch == len(limits) == len(prefix) or min(limits, default=1) < 1:
        got = f"{len(prefix)} prefixes, limits {limits}"
        raise UserError(
            f"a batch of {batch} sentences needs a prefix and a limit of at least 1 for each; got "
            f"{got}"
        )
    jobs = [
        Job(limit=most, prefix=begins, seed=seed)
        for most, begins, seed in zip(limits, prefix, seeds or [0] * batch)
    ]
    for _ in decode(step, lambda _: state, jobs, search, Rules(demands, **rules)):
        pass
    return [job.found for job in jobs]
