"""Beam search on a GPU, each step one CUDA graph: the host only asks now and then whether all
sentences are done.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.nn.fast.choose import TRITON
from regard.search.beam import Beam
from regard.search.hypothesis import Hypothesis, Job
from regard.text.vocabulary import BOS, EOS, PAD

Begin = Callable[[Tensor, Tensor, int, int], Any]
"""(source (B, S), lengths (B,), hypotheses, steps) -> a state whose `at` (B,) and `seen` (B, K,
slots) are written in place.
"""
PART = 128
"""Logits among which one maximum is told."""
ASKED = 4
"""Steps between two questions whether all are done: a question costs as much as a few kernels."""
KEPT = 16
"""Shapes whose graphs are kept."""


@dataclass
class Board:
    """Everything a step reads and writes, for B sentences, K hypotheses, M finished ones, T
    steps.
    """

    source: Tensor  # (B, S)
    lengths: Tensor  # (B,)
    limits: Tensor  # (B,) the most steps
    tokens: Tensor  # (B, K, T + 1), <bos> first
    logprobs: Tensor  # (B, K, T + 1)
    scores: Tensor  # (B, K), -inf: no hypothesis
    ended: Tensor  # (B, M + 1, T + 1) the tokens of what has ended; the last row takes what has not
    ended_logprobs: Tensor  # (B, M + 1, T + 1)
    ended_scores: Tensor  # (B, M + 1), -inf: none
    count: Tensor  # (B,) how many have ended
    led: Tensor  # (B,) whether the best candidate was one of them
    done: Tensor  # (B,)
    all_done: Tensor  # ()

    @classmethod
    def make(
        cls, sentences: int, length: int, search: Beam, steps: int, device: torch.device
    ) -> "Board":
        def full(*shape: int, value: float = 0, kind: torch.dtype = torch.long) -> Tensor:
            return torch.full(shape, value, dtype=kind, device=device)

        b, k, t = sentences, search.width, steps + 1
        m = (
            search.most + k - 1 if search.length_penalty else k * steps
        )  # without penalty many may end before one that led
        return cls(
            full(b, length, value=PAD),
            full(b, value=1),
            full(b, value=1),
            full(b, k, t),
            full(b, k, t, kind=torch.float),
            full(b, k, kind=torch.float),
            full(b, m + 1, t),
            full(b, m + 1, t, kind=torch.float),
            full(b, m + 1, kind=torch.float),
            full(b),
            *(full(*n, kind=torch.bool) for n in ((b,), (b,), ())),
        )

    def clear(self) -> None:
        self.tokens.zero_()[..., 0] = BOS
        self.scores.fill_(-torch.inf)[:, 0] = 0
        self.ended_scores.fill_(-torch.inf)
        for part in (
            self.logprobs,
            self.ended,
            self.ended_logprobs,
            self.count,
            self.led,
            self.done,
        ):
            part.zero_()


class Captured:
    """The same hypotheses as `decode` with Greedy or Beam and bare Rules, without a word from
    Python inside a step.

    On a CPU it runs the same functions without graphs, which is only good for tests.
    """

    def __init__(
        self,
        begin: Begin,
        step: Callable[[Tensor, Any], tuple[Tensor, Any]],
        search: Beam,
        suppress: Tensor,
        minimum: int,
    ) -> None:
        self.begin, self.step, self.search, self.minimum = begin, step, search, minimum
        self.device, self.suppress = suppress.device, suppress.nonzero().squeeze(1)
        self.made: dict[
            tuple[int, ...], tuple[Board, Callable[[], object], Callable[[], object]]
        ] = {}

    def decode(self, jobs: Iterable[Job], room: int = 0) -> Iterator[Job]:
        """Search all jobs, those that stand together side by side; room as in `engine.decode`. Best
        sorted by length.
        """
        group, longest = list[Job](), 0
        for job in jobs:
            longest = max(longest, len(job.source))
            if room and group and _up(longest) * _up(len(group) + 1) > room:
                yield from self._together(group)
                group, longest = [], len(job.source)
            group.append(job)
        yield from self._together(group) if group else ()

    @torch.inference_mode()
    def _together(self, jobs: Sequence[Job]) -> Sequence[Job]:
        length, steps = max(len(job.source) for job in jobs), max(job.limit for job in jobs)
        board, start, step = self._ready(_up(len(jobs)), _up(length), _up(steps))
        more = len(board.lengths) - len(jobs)  # rows that only fill the shape: one token, one step
        rows = np.full((len(jobs), board.source.shape[1]), PAD)
        for row, job in zip(rows, jobs):
            row[: len(job.source)] = job.source
        board.source[: len(jobs)].copy_(torch.from_numpy(rows))
        board.lengths.copy_(torch.tensor([len(job.source) for job in jobs] + [1] * more))
        board.limits.copy_(torch.tensor([job.limit for job in jobs] + [1] * more))
        start()
        taken = 0
        while taken < steps:
            step()
            taken += 1
            if taken % ASKED == 0 and taken < steps and bool(board.all_done):
                break
        return self._collect(board, jobs, taken)

    def _collect(self, board: Board, jobs: Sequence[Job], taken: int) -> Sequence[Job]:
        """Fill what each job has found; `taken`: how many steps were taken, of those there is room
        for.
        """
        if self.search.width == 1:
            tokens = board.tokens
            logprobs = board.logprobs
            counts = [1] * len(jobs)
        else:
            order = board.ended_scores[:, :-1].sort(stable=True, dim=-1, descending=True)
            best = order.indices[:, : self.search.n_best]
            tokens = _rows(board.ended, best)
            logprobs = _rows(board.ended_logprobs, best)
            counts = board.count.tolist()

        token_lists = tokens[: len(jobs), :, : taken + 1].tolist()
        logprob_lists = logprobs[: len(jobs), :, : taken + 1].tolist()
        for job, *found, count in zip(jobs, token_lists, logprob_lists, counts):
            for produced, likely in list(zip(*found))[:count]:
                end = produced.index(EOS) + 1 if EOS in produced else job.limit + 1
                job.found.append(
                    Hypothesis.build(produced[1:end], likely[1:end], self.search.length_penalty)
                )
        return jobs

    def _ready(self, *shape: int) -> tuple[Board, Callable[[], object], Callable[[], object]]:
        """The board of a shape, and what begins a search on it and takes a step."""
        if shape not in self.made:
            sentences, length, steps = shape
            board = Board.make(sentences, length, self.search, steps, self.device)
            states: list[Any] = []

            def start() -> None:
                board.clear()
                states[:] = [self.begin(board.source, board.lengths, self.search.width, steps)]

            def step() -> None:
                self._step(board, states[0])

            if len(self.made) >= KEPT:
                del self.made[next(iter(self.made))]
            graph = _graph if self.device.type == "cuda" else (lambda work: work)
            first = graph(start)
            first()  # a step needs a state to be tried on
            self.made[shape] = board, first, graph(step)
        self.made[shape] = self.made.pop(shape)  # the one used last stands last
        return self.made[shape]

    def _step(self, board: Board, state: Any) -> None:
        (_, width), at = board.scores.shape, state.at[:, None, None]
        last = board.tokens.gather(2, at.expand(-1, width, -1)).flatten()
        logits, new = self.step(last, state)
        logits.index_fill_(1, self.suppress, -torch.inf)
        if self.minimum:
            logits[:, EOS].masked_fill_(
                (state.at < self.minimum).repeat_interleave(width), -torch.inf
            )
        likely, ids = _top(logits, 1 if width == 1 else 2 * width)
        if width == 1:
            self._walk(board, likely, ids, new.at)
        else:
            state.seen.copy_(_rows(new.seen, self._choose(board, likely, ids, at)))
        torch.all(board.done, out=board.all_done)
        state.at.copy_(new.at)

    def _walk(self, board: Board, likely: Tensor, ids: Tensor, at: Tensor) -> None:
        """One hypothesis each: the likeliest token, which stands at `at`."""
        place = at[:, None, None]
        board.tokens.scatter_(2, place, ids.masked_fill(board.done[:, None], PAD)[:, None])
        board.logprobs.scatter_(2, place, likely[:, None])
        board.done |= (ids[:, 0] == EOS) | (at == board.limits)

    def _choose(self, board: Board, likely: Tensor, ids: Tensor, at: Tensor) -> Tensor:
        """The best 2 · K candidates; those that end are written down, the best of the others go on.
        Their parents (B, K).
        """
        (sentences, width), candidates = board.scores.shape, likely.shape[1]
        likely, ids = likely.view(sentences, -1), ids.view(sentences, -1)
        sums = (board.scores.repeat_interleave(candidates, 1) + likely).sort(
            stable=True, dim=-1, descending=True
        )
        scores, order = sums.values[:, :candidates], sums.indices[:, :candidates]
        parents, tokens, likely = order // candidates, ids.gather(1, order), likely.gather(1, order)
        place = (at + 1).expand(-1, candidates, -1)
        written = _rows(board.tokens, parents).scatter_(2, place, tokens[..., None])
        weighed = _rows(board.logprobs, parents).scatter_(2, place, likely[..., None])
        ended = (tokens == EOS) | (at[:, 0] + 1 == board.limits[:, None])
        scores = self._note(board, written, weighed, scores, ended, at)
        best = scores.sort(stable=True, dim=-1, descending=True)
        chosen = best.indices[:, :width]
        board.tokens.copy_(_rows(written, chosen))
        board.logprobs.copy_(_rows(weighed, chosen))
        board.scores.copy_(best.values[:, :width].masked_fill(board.done[:, None], -torch.inf))
        return parents.gather(1, chosen)

    def _note(
        self,
        board: Board,
        tokens: Tensor,
        logprobs: Tensor,
        scores: Tensor,
        ended: Tensor,
        at: Tensor,
    ) -> Tensor:
        """Write down what has ended among the best, and who is done; the scores of those that go
        on.
        """
        search = self.search
        over = (ended & (scores > -torch.inf))[:, : search.width]
        place = torch.where(
            over, board.count[:, None] + over.cumsum(1) - 1, board.ended.shape[1] - 1
        )
        board.ended_scores.scatter_(
            1, place, scores[:, : search.width] / (at[:, 0] + 1).float() ** search.length_penalty
        )
        place = place[..., None].expand(-1, -1, tokens.shape[2])
        board.ended.scatter_(1, place, tokens[:, : search.width])
        board.ended_logprobs.scatter_(1, place, logprobs[:, : search.width])
        board.count += over.sum(1)
        board.led |= over[:, 0]
        enough = (
            board.count >= search.most
            if search.length_penalty
            else board.led & (board.count >= search.n_best)
        )
        scores = scores.masked_fill(ended, -torch.inf)
        board.done.copy_(enough | ~(scores > -torch.inf).any(1))
        return scores


def _top(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities and ids (R, C) of the `count` best of each row (R, V); equals at the end
    may come in any choice.

    They are sought among the `count` parts of the row that have the largest maxima: one pass over
    all, then little.
    """
    highest, places, total = _scan(logits)
    if count == 1:
        best, part = highest.max(-1, keepdim=True)
        return best - total, places.gather(1, part)
    size, parts = logits.shape[-1], highest.topk(min(count, highest.shape[1])).indices
    ids = (parts[..., None] * PART + torch.arange(PART, device=logits.device)).flatten(1)
    values = logits.gather(1, ids.clamp(max=size - 1)).float().masked_fill_(ids >= size, -torch.inf)
    values, order = values.topk(count)
    ids, order = ids.gather(1, order).sort(-1)
    values, order = values.gather(1, order).sort(stable=True, dim=-1, descending=True)
    return values - total, ids.gather(1, order).clamp_(max=size - 1)


def _scan(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest of every 128 (R, V / 128) and its id, and log Σ exp (R, 1)."""
    if logits.is_cuda and TRITON:
        from regard.nn.fast import gpu

        return gpu.scan(logits, PART)
    filled = torch.nn.functional.pad(
        logits.float(), (0, -logits.shape[1] % PART), value=-torch.inf
    ).unflatten(1, (-1, PART))
    highest, inside = filled.max(-1)
    return (
        highest,
        inside + PART * torch.arange(len(inside[0]), device=inside.device),
        filled.flatten(1).logsumexp(-1, keepdim=True),
    )


def _rows(x: Tensor, chosen: Tensor) -> Tensor:
    """Of each sentence (B, C, …) the hypotheses (B, K)."""
    return x.gather(1, chosen[..., None].expand(-1, -1, x.shape[2]))


def _graph(work: Callable[[], object]) -> Callable[[], object]:
    """`work` as a CUDA graph, after one run in which libraries make what they will keep."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may go on
        work()
    return graph.replay


def _up(n: int) -> int:
    """The next of 1, 2, 4, 8, 12, 16, 24, 32, 48, 64 …: few shapes, little waste."""
    whole = 1 << max(0, n - 1).bit_length()
    return whole // 4 * 3 if whole >= 16 and n <= whole // 4 * 3 else whole
