"""Beam search on a GPU, each step one CUDA graph: the host only asks now and then whether all sentences are done."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.search.beam import Beam, ranked
from regard.search.hypothesis import Hypothesis, Job
from regard.text.vocabulary import BOS, EOS, PAD

Begin = Callable[[Tensor, Tensor, int, int], Any]
"""(source (B, S), lengths (B,), hypotheses, steps) -> a state whose `at` (B,) and `seen` (B, K, slots) are written in place."""
ASKED = 4
"""Steps between two questions whether all are done: a question costs as much as a few kernels."""
KEPT = 16
"""Shapes whose graphs are kept."""


@dataclass
class Board:
    """Everything a step reads and writes, for B sentences, K hypotheses, M finished ones, T steps."""

    source: Tensor  # (B, S)
    lengths: Tensor  # (B,)
    limits: Tensor  # (B,) the most steps
    tokens: Tensor  # (B, K, T + 1), <bos> first
    logprobs: Tensor  # (B, K, T + 1)
    scores: Tensor  # (B, K), -inf: no hypothesis
    ended: Tensor  # (B, M + 1, T + 1) the tokens of what has ended; the last row takes what has not
    ended_logprobs: Tensor  # (B, M + 1, T + 1)
    count: Tensor  # (B,) how many have ended
    led: Tensor  # (B,) whether the best candidate was one of them
    done: Tensor  # (B,)

    @classmethod
    def make(cls, sentences: int, length: int, search: Beam, steps: int, device: torch.device) -> "Board":
        def full(*shape: int, value: float = 0, kind: torch.dtype = torch.long) -> Tensor:
            return torch.full(shape, value, dtype=kind, device=device)

        b, k, t = sentences, search.width, steps + 1
        m = search.most + k - 1 if search.length_penalty else k * steps  # without penalty many may end before one that led
        return cls(
            full(b, length, value=PAD), full(b, value=1), full(b, value=1), full(b, k, t), full(b, k, t, kind=torch.float),
            full(b, k, kind=torch.float), full(b, m + 1, t), full(b, m + 1, t, kind=torch.float),
            full(b), full(b, kind=torch.bool), full(b, kind=torch.bool),
        )  # fmt: skip

    def clear(self) -> None:
        self.tokens.zero_()[..., 0] = BOS
        self.scores.fill_(-torch.inf)[:, 0] = 0
        for part in (self.logprobs, self.ended, self.ended_logprobs, self.count, self.led, self.done):
            part.zero_()


class Captured:
    """The same hypotheses as `decode` with Greedy or Beam and bare Rules, without a word from Python inside a step.

    On a CPU it runs the same functions without graphs, which is only good for tests.
    """

    def __init__(
        self, begin: Begin, step: Callable[[Tensor, Any], tuple[Tensor, Any]], search: Beam, suppress: Tensor, minimum: int
    ) -> None:
        self.begin, self.step, self.search, self.minimum = begin, step, search, minimum
        self.device, self.suppress = suppress.device, suppress.nonzero().squeeze(1)
        self.made: dict[tuple[int, ...], tuple[Board, Callable[[], object], Callable[[], object]]] = {}

    @torch.inference_mode()
    def decode(self, jobs: Iterable[Job], room: int = 0) -> Iterator[Job]:
        """Search all jobs, those that stand together side by side; room as in `engine.decode`. Best sorted by length."""
        group: list[Job] = []
        for job in jobs:
            longest = max(len(one.source) for one in (*group, job))
            if room and group and _up(longest) * _up(len(group) + 1) > room:
                yield from self._together(group)
                group = []
            group.append(job)
        yield from self._together(group) if group else ()

    def _together(self, jobs: Sequence[Job]) -> Sequence[Job]:
        length, steps = max(len(job.source) for job in jobs), max(job.limit for job in jobs)
        board, start, step = self._ready(_up(len(jobs)), _up(length), _up(steps))
        rows = torch.full(board.source.shape, PAD)
        lengths, limits = torch.ones(len(rows), dtype=torch.long), torch.ones(len(rows), dtype=torch.long)
        for i, job in enumerate(jobs):
            rows[i, : len(job.source)] = torch.tensor(job.source)
            lengths[i], limits[i] = len(job.source), job.limit
        for there, here in ((board.source, rows), (board.lengths, lengths), (board.limits, limits)):
            there.copy_(here)
        start()
        for number in range(steps):
            step()
            if number % ASKED == ASKED - 1 and number + 1 < steps and bool(board.done.all()):
                break
        counts, tokens, logprobs = board.count.tolist(), board.ended.tolist(), board.ended_logprobs.tolist()
        for i, job in enumerate(jobs):
            for produced, sums in zip(tokens[i][: counts[i]], logprobs[i]):
                end = produced.index(EOS) + 1 if EOS in produced else job.limit + 1
                job.found.append(Hypothesis.build(produced[1:end], sums[1:end], self.search.length_penalty))
            job.found.sort(key=lambda one: -one.score)
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
        return self.made[shape]

    def _step(self, board: Board, state: Any) -> None:
        (sentences, width), at = board.scores.shape, state.at[:, None, None]
        last = board.tokens.gather(2, at.expand(-1, width, -1)).flatten()
        logits, new = self.step(last, state)
        logits = logits.float().index_fill_(1, self.suppress, -torch.inf)
        if self.minimum:
            early = (state.at < self.minimum).repeat_interleave(width)
            logits[:, EOS].masked_fill_(early, -torch.inf)
        candidates = 1 if width == 1 else 2 * width
        logprobs, ids = (table.view(sentences, -1) for table in ranked(logits, candidates, ties=False))
        sums = (board.scores.repeat_interleave(candidates, 1) + logprobs).sort(stable=True, dim=-1, descending=True)
        scores, order = sums.values[:, :candidates], sums.indices[:, :candidates]
        tokens, parents = ids.gather(1, order), order // candidates
        past = parents[..., None].expand(-1, -1, board.tokens.shape[2])
        place = (at + 1).expand(-1, candidates, -1)
        written = board.tokens.gather(1, past).scatter_(2, place, tokens[..., None])
        likely = board.logprobs.gather(1, past).scatter_(2, place, logprobs.gather(1, order)[..., None])
        ended = (tokens == EOS) | (state.at + 1 == board.limits)[:, None]
        scores = self._note(board, written, likely, scores, ended)
        best = scores.sort(stable=True, dim=-1, descending=True)
        chosen = best.indices[:, :width]
        board.tokens.copy_(_rows(written, chosen))
        board.logprobs.copy_(_rows(likely, chosen))
        board.scores.copy_(best.values[:, :width].masked_fill(board.done[:, None], -torch.inf))
        state.seen.copy_(_rows(new.seen, parents.gather(1, chosen)))
        state.at.copy_(new.at)

    def _note(self, board: Board, tokens: Tensor, logprobs: Tensor, scores: Tensor, ended: Tensor) -> Tensor:
        """Write down what has ended among the best, and who is done; the scores of those that go on."""
        search = self.search
        over = (ended & (scores > -torch.inf))[:, : search.width]
        place = torch.where(over, board.count[:, None] + over.cumsum(1) - 1, board.ended.shape[1] - 1)
        place = place[..., None].expand(-1, -1, tokens.shape[2])
        board.ended.scatter_(1, place, tokens[:, : search.width])
        board.ended_logprobs.scatter_(1, place, logprobs[:, : search.width])
        board.count += over.sum(1)
        board.led |= over[:, 0]
        enough = board.count >= search.most if search.length_penalty else board.led & (board.count >= search.n_best)
        scores = scores.masked_fill(ended, -torch.inf)
        board.done.copy_(enough | ~(scores > -torch.inf).any(1))
        return scores


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
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def _up(n: int) -> int:
    """The next of 1, 2, 4, 8, 12, 16, 24, 32, 48, 64 …: few shapes, little waste."""
    whole = 1 << max(0, n - 1).bit_length()
    return whole // 4 * 3 if whole >= 16 and n <= whole // 4 * 3 else whole
