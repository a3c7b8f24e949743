"""The loop of every search.

Sentences are decoded side by side. Those that are done leave, and waiting ones take their places.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import UserError
from regard.search.constraints import Constraints, Rules
from regard.search.hypothesis import Hypothesis, Job, S, Step
from regard.text.vocabulary import BOS, EOS

if TYPE_CHECKING:
    from regard.search.beam import Beam


class Paths(NamedTuple):
    """The hypotheses of all sentences that are being searched: B sentences with C slots each.

    Here are two sentences with three slots each, the second of which began two steps later. Its
    tokens are padded on the left, so that the next token of all belongs into the same column.

                            tokens                        scores   parents
        sentence 0  slot 0  <bos>   the     cat     sat     -1.2         0
                    slot 1  <bos>   the     cat     lay     -1.9         0
                    slot 2  <bos>   a       cat     sat     -2.5         1
        sentence 1  slot 0  -1      -1      <bos>   good    -0.4         0
                    slot 1  -1      -1      <bos>   well    -1.7         0
                    slot 2  (anything)                      -inf         0

    A score of -inf marks an empty slot.
    """

    tokens: Tensor  # (B, C, t), <bos> first; -1 in the columns before a sentence began
    logprobs: Tensor  # (B, C, t) of each token; 0 for <bos> and before it
    scores: Tensor  # (B, C) the sums of the logprobs
    parents: Tensor  # (B, C) the slots that the hypotheses were in before the last step

    @classmethod
    def begin(
        cls,
        sentences: int,
        copies: int,
        alive: int,
        device: torch.device | str,
        first: Tensor | None = None,
    ) -> "Paths":
        """`copies` slots of each sentence, of which the first `alive` hold a hypothesis.

        first (B,): the token that each begins with; None: <bos>.
        """
        tokens = torch.full((sentences, copies, 1), BOS, device=device)  # (B, K, 1)
        if first is not None:
            tokens = first[:, None, None].repeat(1, copies, 1)  # (B, K, 1)

        scores = torch.zeros(sentences, copies, device=device)  # (B, K)
        scores[:, alive:] = -torch.inf

        parents = torch.arange(copies, device=device).expand(sentences, -1)  # (B, K)
        logprobs = torch.zeros_like(tokens, dtype=torch.float)  # (B, K, 1)
        return cls(tokens, logprobs, scores, parents)

    def take(self, rows: Tensor, slots: Tensor) -> "Paths":
        """Of the sentences `rows` (B',) the hypotheses `slots` (B', C')."""
        rows = rows.unsqueeze(-1)  # (B', 1)
        return Paths(
            tokens=self.tokens[rows, slots],  # (B', C', t)
            logprobs=self.logprobs[rows, slots],  # (B', C', t)
            scores=self.scores[rows, slots],  # (B', C')
            parents=self.parents[rows, slots],  # (B', C')
        )

    def extend(self, ids: Tensor, logprobs: Tensor, scores: Tensor) -> "Paths":
        """Add a token to every hypothesis: its id, its logprob and the new score, all (B, C)."""
        return self._replace(
            tokens=torch.cat((self.tokens, ids.unsqueeze(-1)), -1),  # (B, C, t + 1)
            logprobs=torch.cat((self.logprobs, logprobs.unsqueeze(-1)), -1),  # (B, C, t + 1)
            scores=scores,
        )

    def join(self, other: "Paths") -> "Paths":
        """The sentences of both. Those of the other begin now: their past is padded."""
        later = self.tokens.shape[2] - other.tokens.shape[2]
        tokens = F.pad(other.tokens, (later, 0), value=-1)  # (B', C, t)
        logprobs = F.pad(other.logprobs, (later, 0))  # (B', C, t)
        return Paths(
            tokens=torch.cat((self.tokens, tokens)),  # (B + B', C, t)
            logprobs=torch.cat((self.logprobs, logprobs)),  # (B + B', C, t)
            scores=torch.cat((self.scores, other.scores)),  # (B + B', C)
            parents=torch.cat((self.parents, other.parents)),  # (B + B', C)
        )

    def without(self, dropped: Tensor) -> "Paths":
        """Empty the slots that are True in `dropped` (B, C)."""
        return self._replace(scores=self.scores.masked_fill(dropped, -torch.inf))

    def last(self, columns: int) -> "Paths":
        """Only the last columns: those before them held sentences that have left."""
        return self._replace(
            tokens=self.tokens[..., -columns:], logprobs=self.logprobs[..., -columns:]
        )


class Search(Protocol):
    """A search algorithm: how hypotheses are extended. The state of a sentence is in its Job."""

    copies: int
    """Hypotheses of each sentence."""
    apart: bool
    """Whether every hypothesis grows in a slot of its own, as samples do.

    Otherwise they compete for the slots, and a sentence begins with one.
    """
    length_penalty: float
    extra_length: int
    """How many more tokens an answer may need, for what is demanded of it."""
    plain: bool
    """Whether the answer is simply the best one: nothing is drawn, and nothing demanded.

    Only such an answer may be decoded again where it repeats itself.
    """

    def grow(self, live: Paths, logits: Tensor, jobs: Sequence[Job]) -> Paths:
        """Candidates (B, C) from masked logits (R, V).

        If the hypotheses are apart, C = K and each candidate is in the slot of its hypothesis. Else
        C >= K, best first.
        """
        ...

    def enough(self, job: Job) -> bool:
        """Whether the sentence stops though some of its hypotheses could go on."""
        ...

    def unmet(self, text: str) -> list[str]:
        """Which demands an answer does not meet, as warnings."""
        ...

    def retry(self) -> "Search | None":
        """The search to try next where an answer leaves something unmet; None: there is none."""
        ...

    def as_beam(self) -> "Beam | None":
        """The beam that finds the same hypotheses, for a captured graph; None: there is none."""
        ...


@torch.no_grad()
def decode(
    step: Step[S],
    begin: Callable[[Sequence[Job]], S],
    jobs: Iterable[Job],
    search: Search,
    rules: Rules,
    room: int = 0,
    most: Callable[[int], int] | None = None,
) -> Iterator[Job]:
    """Search all jobs, and yield each as soon as it is done.

    A sentence stops at its limit, when none of its hypotheses can go on, or when the search has
    found enough. At the limit, and where nothing at all may follow, the hypotheses that have not
    ended count as they are.

    begin: the decoder's state of new sentences, with one row each. room: how many source tokens,
    padding included, are decoded side by side. 0: all. most: how many sentences are, by the limit
    of the longest answer among them.
    """
    device = rules.device
    queue = _Queue(jobs, room, most)
    live: list[Job] = []
    started = 0  # how many were live when the last ones came
    state: S | None = None
    paths = Paths.begin(0, search.copies, 1, device)

    while queue or live:
        if queue and 4 * len(live) <= 3 * started:  # a quarter has left
            arrivals = queue.admit(live)
            if arrivals:
                state, paths = _enter(begin, arrivals, search, state, paths)
            live = [*live, *arrivals]
            started = len(live)

        assert state is not None
        logits, state = step(paths.tokens[..., -1].flatten(), state)  # (R, V)
        history = paths.tokens.flatten(0, 1)  # (R, t)
        logits = rules(logits, history, live, search.copies)  # (R, V)
        candidates = search.grow(paths, logits, live)  # (B, C)
        del logits  # the next step needs the memory
        for job in live:
            job.age += 1

        keep, candidates = _settle(search, paths, candidates, live)
        done = sorted(set(range(len(live))).difference(keep))

        if done or not search.apart:
            rows = torch.tensor(keep, device=device, dtype=torch.long)  # (B',)
            candidates = candidates.take(rows, _best_slots(search, candidates, rows))  # (B', K)
            state = state.select(rows if done else None, candidates.parents) if keep else None
            oldest = max((live[row].age for row in keep), default=0)
            candidates = candidates.last(oldest + 1)  # <bos> is a column, too
        paths = candidates

        for row in done:
            _finish(search, live[row])
            yield live[row]
        live = [live[row] for row in keep]


class _Queue:
    """The jobs that wait for a place; false when none is left. One is always read ahead."""

    def __init__(self, jobs: Iterable[Job], room: int, most: Callable[[int], int] | None) -> None:
        self._jobs = iter(jobs)
        self._next = next(self._jobs, None)
        self._room = room
        self._most = most

    def __bool__(self) -> bool:
        return self._next is not None

    def admit(self, live: Sequence[Job]) -> list[Job]:
        """The next jobs that fit beside the live ones; at least one if none is live."""
        admitted: list[Job] = []
        longest = max((len(job.source) for job in live), default=0)
        limit = max((job.limit for job in live), default=0)

        while self._next is not None:
            longest = max(longest, len(self._next.source))
            limit = max(limit, self._next.limit)
            count = len(live) + len(admitted) + 1
            if self._room and count > 1 and longest * count > self._room:
                break
            if self._most is not None and count > max(1, self._most(limit)):
                break
            admitted.append(self._next)
            self._next = next(self._jobs, None)

        return admitted


def _enter(
    begin: Callable[[Sequence[Job]], S],
    arrivals: Sequence[Job],
    search: Search,
    state: S | None,
    paths: Paths,
) -> tuple[S, Paths]:
    """State and hypotheses (B, K) of the live sentences and, behind them, of those that arrive.

    state, paths: of the live sentences; the state is None where there are none.
    """
    alive = search.copies if search.apart else 1
    first = torch.tensor([job.first for job in arrivals], device=paths.tokens.device)  # (B,)
    new_paths = Paths.begin(len(arrivals), search.copies, alive, paths.tokens.device, first)
    new_state = begin(arrivals)  # one row a sentence
    if search.copies > 1:
        new_state = new_state.select(None, torch.zeros_like(new_paths.parents))  # K rows a sentence

    if state is None:
        return new_state, new_paths
    return state.join(new_state), paths.join(new_paths)


def _settle(
    search: Search, before: Paths, candidates: Paths, live: Sequence[Job]
) -> tuple[list[int], Paths]:
    """Note in the jobs which hypotheses have ended.

    Returns the rows of the sentences that go on, and the candidates (B, C) that have not ended.
    before: the hypotheses (B, K) from which the candidates grew.
    """
    at_limit = [job.age == job.limit for job in live]
    stopped = torch.tensor(at_limit, device=candidates.scores.device)  # (B,)
    ended = (candidates.tokens[..., -1] == EOS) | stopped[:, None]  # (B, C)
    real = ~candidates.scores.isneginf()  # (B, C)

    ages = [job.age for job in live]
    ages_before = [age - 1 for age in ages]
    # A candidate that has ended, but is not among the best K, does not count.
    counted = (ended & real)[:, : search.copies]  # (B, K)
    _note_ended(search, candidates, counted, live, ages)
    if not real.all():
        _note_ended(search, before, _stuck(search, before, real), live, ages_before)

    goes_on = (real & ~ended).any(-1).tolist()  # (B,)
    keep = [row for row, job in enumerate(live) if goes_on[row] and not search.enough(job)]
    return keep, candidates.without(ended)


def _stuck(search: Search, before: Paths, real: Tensor) -> Tensor:
    """The hypotheses (B, K) that nothing may follow; real (B, C): which candidates there are.

    Where hypotheses compete, those of a sentence that has some candidate are not stuck: they have
    lost.
    """
    alive = ~before.scores.isneginf()  # (B, K)
    followed = real if search.apart else real.any(-1, keepdim=True)  # (B, K) or (B, 1)
    return alive & ~followed


def _note_ended(
    search: Search, paths: Paths, ended: Tensor, live: Sequence[Job], lengths: Sequence[int]
) -> None:
    """Add the hypotheses that are True in `ended` (B, K) to their jobs.

    lengths: tokens after <bos> of the hypotheses of each sentence.
    """
    if not ended.any():
        return
    rows, slots = ended.nonzero(as_tuple=True)  # (N,), (N,)
    tokens = paths.tokens[rows, slots]  # (N, t)
    logprobs = paths.logprobs[rows, slots]  # (N, t)

    columns = (rows.tolist(), slots.tolist(), tokens.tolist(), logprobs.tolist())
    for row, slot, row_tokens, row_logprobs in zip(*columns):
        start = len(row_tokens) - lengths[row]
        hypothesis = Hypothesis.build(
            row_tokens[start:], row_logprobs[start:], search.length_penalty
        )
        job = live[row]
        job.ended.append((slot, hypothesis))
        job.led |= slot == 0


def _best_slots(search: Search, candidates: Paths, rows: Tensor) -> Tensor:
    """The slots (B', K) of the candidates that go on, in the sentences `rows` (B',)."""
    if search.apart:
        slots = torch.arange(search.copies, device=rows.device)  # (K,)
        return slots.expand(len(rows), -1)  # (B', K)

    # Candidates come best first. A stable sort that only moves the empty slots to the end keeps
    # that order.
    empty = candidates.scores.isneginf().byte()  # (B, C)
    order = empty.argsort(dim=1, stable=True)  # (B, C)
    return order[rows, : search.copies]  # (B', K)


def _finish(search: Search, job: Job) -> None:
    """Put what has ended in order: by slot if the hypotheses are apart, else the best first."""
    if search.apart:
        job.ended.sort(key=lambda entry: entry[0])
    else:
        job.ended.sort(key=lambda entry: -entry[1].score)
    job.found = [hypothesis for _, hypothesis in job.ended]


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
    """Search the sentences of a state side by side.

    limit: for each sentence the most steps, <eos> counted. rules: further arguments of `Rules`.
    """
    demands = constraints or Constraints()
    limits = torch.as_tensor(limit).tolist()
    prefixes = demands.prefix or [[]] * batch
    if not batch == len(limits) == len(prefixes) or min(limits, default=1) < 1:
        raise UserError(
            f"each of {batch} sentences needs a prefix and a limit of at least 1; got "
            f"{len(prefixes)} prefixes, limits {limits}"
        )

    jobs = [
        Job(limit=steps, prefix=prefix, seed=seed)
        for steps, prefix, seed in zip(limits, prefixes, seeds or [0] * batch)
    ]
    for _ in decode(step, lambda _: state, jobs, search, Rules(demands, **rules)):
        pass

    return [job.found for job in jobs]
