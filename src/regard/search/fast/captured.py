"""Beam search on a GPU, where each step is one CUDA graph.

The host only asks now and then whether all sentences are done.

Shapes: B sentences of S tokens, K hypotheses of each, R = B*K rows, C candidates of a sentence, M
hypotheses that have finished, T steps, V vocabulary.
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
"""(source (B, S), lengths (B,), hypotheses, steps) -> the decoder's state.

Its `at` (B,) and `seen` (B, K, slots) are written in place.
"""
Work = Callable[[], object]
"""Something that is done again and again on the same memory, by a graph or without one."""
PART = 128
"""Logits among which one maximum is told."""
ASKED = 4
"""Steps between two questions whether all are done: a question costs as much as a few kernels."""
KEPT = 16
"""Shapes whose graphs are kept."""


@dataclass
class Board:
    """Everything that a step reads and writes."""

    source: Tensor  # (B, S)
    lengths: Tensor  # (B,)
    limits: Tensor  # (B,) the most steps
    tokens: Tensor  # (B, K, T + 1), <bos> first
    logprobs: Tensor  # (B, K, T + 1)
    scores: Tensor  # (B, K), -inf: no hypothesis
    ended: Tensor  # (B, M + 1, T + 1) what has ended; the last row takes what has not
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
        """A board for so many sentences of so many tokens, before `clear`."""

        def full(*shape: int, value: float = 0, kind: torch.dtype = torch.long) -> Tensor:
            return torch.full(shape, value, dtype=kind, device=device)

        width = search.width
        columns = steps + 1
        # Without a length penalty many may end before one that leads.
        finished = search.most + width - 1 if search.length_penalty else width * steps  # M
        return cls(
            source=full(sentences, length, value=PAD),
            lengths=full(sentences, value=1),
            limits=full(sentences, value=1),
            tokens=full(sentences, width, columns),
            logprobs=full(sentences, width, columns, kind=torch.float),
            scores=full(sentences, width, kind=torch.float),
            ended=full(sentences, finished + 1, columns),
            ended_logprobs=full(sentences, finished + 1, columns, kind=torch.float),
            ended_scores=full(sentences, finished + 1, kind=torch.float),
            count=full(sentences),
            led=full(sentences, kind=torch.bool),
            done=full(sentences, kind=torch.bool),
            all_done=full(kind=torch.bool),
        )

    def clear(self) -> None:
        """Begin again: one hypothesis of each sentence, and nothing has ended."""
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


class CapturedSearch:
    """The same hypotheses as `decode` with Greedy or Beam, but without Python inside a step.

    It knows no rules but `suppress` (V,), True for ids that are never produced, and `minimum`, the
    fewest tokens. On a CPU it runs the same functions without graphs, which is only good for tests.
    """

    def __init__(
        self,
        begin: Begin,
        step: Callable[[Tensor, Any], tuple[Tensor, Any]],
        search: Beam,
        suppress: Tensor,
        minimum: int,
    ) -> None:
        self.begin = begin
        self.step = step
        self.search = search
        self.minimum = minimum
        self.device = suppress.device
        self.suppress = suppress.nonzero().squeeze(1)  # (N,) ids
        self.graphs: dict[tuple[int, ...], tuple[Board, Work, Work]] = {}
        """By shape, the one used last at the end: see `_ready`."""

    def decode(self, jobs: Iterable[Job], room: int = 0) -> Iterator[Job]:
        """Search all jobs, neighbours side by side; it is fastest if they are sorted by length.

        room: how many source tokens are decoded side by side, as in `engine.decode`. 0: all.
        """
        group: list[Job] = []
        longest = 0
        for job in jobs:
            longest = max(longest, len(job.source))
            if room and group and _up(longest) * _up(len(group) + 1) > room:
                yield from self._together(group)
                group = []
                longest = len(job.source)
            group.append(job)

        if group:
            yield from self._together(group)

    @torch.inference_mode()
    def _together(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Search these jobs side by side."""
        length = max(len(job.source) for job in jobs)
        steps = max(job.limit for job in jobs)
        board, start, step = self._ready(_up(len(jobs)), _up(length), _up(steps))

        rows = np.full((len(jobs), board.source.shape[1]), PAD)  # (B, S)
        for row, job in zip(rows, jobs):
            row[: len(job.source)] = job.source
        board.source[: len(jobs)].copy_(torch.from_numpy(rows))

        # The other rows only fill the shape: one token, one step.
        fillers = [1] * (len(board.lengths) - len(jobs))
        board.lengths.copy_(torch.tensor([len(job.source) for job in jobs] + fillers))
        board.limits.copy_(torch.tensor([job.limit for job in jobs] + fillers))

        start()
        taken = 0
        while taken < steps:
            step()
            taken += 1
            if taken % ASKED == 0 and taken < steps and bool(board.all_done):
                break

        return self._collect(board, jobs, taken)

    def _collect(self, board: Board, jobs: Sequence[Job], taken: int) -> Sequence[Job]:
        """Fill what each job has found.

        taken: how many steps were taken, which may be fewer than the board has room for.
        """
        if self.search.width == 1:
            tokens = board.tokens
            logprobs = board.logprobs
            counts = [1] * len(jobs)
        else:
            order = board.ended_scores[:, :-1].sort(stable=True, dim=-1, descending=True)  # (B, M)
            best = order.indices[:, : self.search.n_best]  # (B, N)
            tokens = _rows(board.ended, best)  # (B, N, T + 1)
            logprobs = _rows(board.ended_logprobs, best)  # (B, N, T + 1)
            counts = board.count.tolist()

        token_lists = tokens[: len(jobs), :, : taken + 1].tolist()
        logprob_lists = logprobs[: len(jobs), :, : taken + 1].tolist()
        for job, job_tokens, job_logprobs, count in zip(jobs, token_lists, logprob_lists, counts):
            for produced, likely in zip(job_tokens[:count], job_logprobs[:count]):
                end = produced.index(EOS) + 1 if EOS in produced else job.limit + 1
                job.found.append(
                    Hypothesis.build(produced[1:end], likely[1:end], self.search.length_penalty)
                )

        return jobs

    def _ready(self, *shape: int) -> tuple[Board, Work, Work]:
        """The board of a shape, what begins a search on it, and what takes a step.

        shape: sentences, tokens of their sources, and steps.
        """
        if shape not in self.graphs:
            sentences, length, steps = shape
            board = Board.make(sentences, length, self.search, steps, self.device)
            states: list[Any] = []

            def start() -> None:
                board.clear()
                states[:] = [self.begin(board.source, board.lengths, self.search.width, steps)]

            def step() -> None:
                self._step(board, states[0])

            if len(self.graphs) >= KEPT:
                oldest = next(iter(self.graphs))
                del self.graphs[oldest]

            graph = _graph if self.device.type == "cuda" else (lambda work: work)
            start_graph = graph(start)
            start_graph()  # a step needs a state to be tried on
            self.graphs[shape] = (board, start_graph, graph(step))

        self.graphs[shape] = self.graphs.pop(shape)  # the one used last stands last
        return self.graphs[shape]

    def _step(self, board: Board, state: Any) -> None:
        """Add one token to every hypothesis, and note what has ended."""
        _, width = board.scores.shape
        at = state.at[:, None, None]  # (B, 1, 1) the column of the last token
        last = board.tokens.gather(2, at.expand(-1, width, -1)).flatten()  # (R,)
        logits, new = self.step(last, state)  # (R, V)

        logits.index_fill_(1, self.suppress, -torch.inf)
        if self.minimum:
            too_short = (state.at < self.minimum).repeat_interleave(width)  # (R,)
            logits[:, EOS].masked_fill_(too_short, -torch.inf)

        if width == 1:
            logprobs, ids = _top(logits, 1)  # (R, 1)
            self._walk(board, logprobs, ids, new.at)
        else:
            logprobs, ids = _top(logits, 2 * width)  # (R, 2K)
            parents = self._choose(board, logprobs, ids, at)  # (B, K)
            state.seen.copy_(_rows(new.seen, parents))

        torch.all(board.done, out=board.all_done)
        state.at.copy_(new.at)

    def _walk(self, board: Board, logprobs: Tensor, ids: Tensor, at: Tensor) -> None:
        """Add the likeliest token to the only hypothesis of each sentence.

        logprobs, ids: (B, 1), at: the column in which the token stands (B,).
        """
        place = at[:, None, None]  # (B, 1, 1)
        ids_or_pad = ids.masked_fill(board.done[:, None], PAD)  # (B, 1)
        board.tokens.scatter_(2, place, ids_or_pad[:, None])
        board.logprobs.scatter_(2, place, logprobs[:, None])
        board.done |= (ids[:, 0] == EOS) | (at == board.limits)

    def _choose(self, board: Board, logprobs: Tensor, ids: Tensor, at: Tensor) -> Tensor:
        """The parents (B, K) of the hypotheses that go on.

        Of the best C = 2K candidates of each sentence those that end are noted; the best K of the
        others go on. logprobs, ids: (R, C), at: (B, 1, 1).
        """
        sentences, width = board.scores.shape
        candidates = logprobs.shape[1]  # C
        logprobs = logprobs.view(sentences, -1)  # (B, K·C)
        ids = ids.view(sentences, -1)  # (B, K·C)

        sums = board.scores.repeat_interleave(candidates, 1) + logprobs  # (B, K·C)
        ranked = sums.sort(stable=True, dim=-1, descending=True)
        scores = ranked.values[:, :candidates]  # (B, C)
        order = ranked.indices[:, :candidates]  # (B, C)
        parents = order // candidates  # (B, C)
        tokens = ids.gather(1, order)  # (B, C)
        logprobs = logprobs.gather(1, order)  # (B, C)

        place = (at + 1).expand(-1, candidates, -1)  # (B, C, 1)
        all_tokens = _rows(board.tokens, parents).scatter_(2, place, tokens[..., None])
        all_logprobs = _rows(board.logprobs, parents).scatter_(2, place, logprobs[..., None])
        ended = (tokens == EOS) | (at[:, 0] + 1 == board.limits[:, None])  # (B, C)
        scores = self._note(board, all_tokens, all_logprobs, scores, ended, at)  # (B, C)

        best = scores.sort(stable=True, dim=-1, descending=True)
        chosen = best.indices[:, :width]  # (B, K)
        board.tokens.copy_(_rows(all_tokens, chosen))
        board.logprobs.copy_(_rows(all_logprobs, chosen))
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
        """Note which of the best K candidates have ended, and which sentences are done.

        Returns the scores (B, C) of the candidates that go on, -inf for the others. tokens,
        logprobs: (B, C, T + 1), scores, ended: (B, C), at: (B, 1, 1).
        """
        search = self.search
        counted = (ended & (scores > -torch.inf))[:, : search.width]  # (B, K)

        # Those that have ended go behind those that ended before, all others into the last row.
        behind = board.count[:, None] + counted.cumsum(1) - 1  # (B, K)
        last_row = board.ended.shape[1] - 1
        place = torch.where(counted, behind, last_row)  # (B, K)
        lengths = (at[:, 0] + 1).float()  # (B, 1)
        final_scores = scores[:, : search.width] / lengths**search.length_penalty  # (B, K)
        board.ended_scores.scatter_(1, place, final_scores)
        place = place[..., None].expand(-1, -1, tokens.shape[2])  # (B, K, T + 1)
        board.ended.scatter_(1, place, tokens[:, : search.width])
        board.ended_logprobs.scatter_(1, place, logprobs[:, : search.width])

        board.count += counted.sum(1)
        board.led |= counted[:, 0]
        if search.length_penalty:
            enough = board.count >= search.most  # (B,)
        else:
            enough = board.led & (board.count >= search.n_best)  # (B,)

        scores = scores.masked_fill(ended, -torch.inf)
        board.done.copy_(enough | ~(scores > -torch.inf).any(1))
        return scores


def _top(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities and ids (R, C) of the `count` best of each row (R, V), best first.

    Which of several equals is the last one in is left open. They are sought among the `count` parts
    of the row that have the largest maxima: one pass over all, then little.
    """
    highest, places, total = _scan(logits)  # (R, P), (R, P), (R, 1)
    if count == 1:
        best, part = highest.max(-1, keepdim=True)  # (R, 1)
        return best - total, places.gather(1, part)

    size = logits.shape[-1]
    parts = highest.topk(min(count, highest.shape[1])).indices  # (R, C), or (R, P)
    inside = torch.arange(PART, device=logits.device)  # (PART,)
    ids = (parts[..., None] * PART + inside).flatten(1)  # (R, C·PART)
    values = logits.gather(1, ids.clamp(max=size - 1)).float()  # (R, C·PART)
    values.masked_fill_(ids >= size, -torch.inf)  # the last part may be longer than what is left

    # Sorted by id first: a stable sort by value then puts the lower id first among equals.
    values, order = values.topk(count)  # (R, C)
    ids, order = ids.gather(1, order).sort(-1)  # (R, C)
    values, order = values.gather(1, order).sort(stable=True, dim=-1, descending=True)  # (R, C)
    return values - total, ids.gather(1, order).clamp_(max=size - 1)


def _scan(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest of every 128 logits, its id, and log Σ exp of the row.

    Of logits (R, V) these are (R, P), (R, P) and (R, 1), with P = V / 128, rounded up.
    """
    if logits.is_cuda and TRITON:
        from regard.nn.fast import gpu

        return gpu.scan(logits, PART)

    missing = -logits.shape[1] % PART
    padded = torch.nn.functional.pad(logits.float(), (0, missing), value=-torch.inf)
    parts = padded.unflatten(1, (-1, PART))  # (R, P, PART)
    highest, inside = parts.max(-1)  # (R, P)
    starts = PART * torch.arange(len(inside[0]), device=inside.device)  # (P,)
    total = parts.flatten(1).logsumexp(-1, keepdim=True)  # (R, 1)
    return highest, inside + starts, total


def _rows(x: Tensor, chosen: Tensor) -> Tensor:
    """Of each sentence in `x` (B, C, N) the rows `chosen` (B, K): (B, K, N)."""
    return x.gather(1, chosen[..., None].expand(-1, -1, x.shape[2]))


def _graph(work: Work) -> Work:
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
    power = 1 << max(0, n - 1).bit_length()
    three_quarters = power // 4 * 3
    if power >= 16 and n <= three_quarters:
        return three_quarters
    return power
