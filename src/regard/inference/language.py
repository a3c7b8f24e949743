"""A causal language model: prompt -> text."""

import math
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import overload

import torch

from regard.bounds import Bounded, setting
from regard.config import SearchConfig
from regard.data.batches import collate
from regard.errors import UserError, counted
from regard.inference.decoding import DecodingModel, check_texts, never_written
from regard.inference.likelihoods import Reading, read_texts
from regard.inspection.look import look
from regard.models import Seq2Seq
from regard.nn.positions import Learned
from regard.records.attention import AttentionRecord
from regard.records.generation import Generation
from regard.records.likelihood import Likelihood
from regard.records.result import Alternative, Option
from regard.search import Beam, Greedy, Job, Sample, Sampling, Search
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import BOS, EOS, UNK

WINDOW = 1024
"""How many prompts are read, sorted by length and continued together."""
TOKENS = 100
"""Tokens that are written at most, if nobody says."""


@dataclass(frozen=True)
class _Counts(Bounded):
    """Whole numbers that `generate` and `options` take."""

    tokens: int = setting(TOKENS, "Tokens to write at most.", least=1, most=10**6)
    n_best: int = setting(1, "Texts for each prompt.", least=1, most=10**4)
    n: int = setting(5, "Tokens that may come next.", least=1, most=10**6)


class LanguageModel(DecodingModel):
    """A trained language model that writes from left to right (train.objective=causal).

    Call it with a prompt to get a Generation, or with a list of prompts to get a list of them. Use
    `regard.load` to make one from a run.
    """

    def __init__(
        self,
        model: Seq2Seq,
        tokenizer: Tokenizer,
        search: SearchConfig | None = None,
        *,
        max_length: int = 0,
        auto: bool = False,
    ) -> None:
        super().__init__(model, never_written(tokenizer), search or SearchConfig(), auto=auto)
        self.tokenizer = tokenizer
        self.max_length = max_length
        """Tokens that a row had in training, at most (data.max_length). 0: unknown.

        A longer text is scored in rows, as in training; one that is written gets a warning.
        """

    def __repr__(self) -> str:
        return f"LanguageModel({counted(self._parameters(), 'parameter')}, {self.device})"

    @overload
    def __call__(
        self,
        prompt: str = "",
        *,
        tokens: int = TOKENS,
        n_best: int = 1,
        sampling: Sampling | None = None,
    ) -> Generation: ...

    @overload
    def __call__(
        self,
        prompt: list[str] | tuple[str, ...],
        *,
        tokens: int = TOKENS,
        n_best: int = 1,
        sampling: Sampling | None = None,
    ) -> list[Generation]: ...

    def __call__(
        self,
        prompt: str | list[str] | tuple[str, ...] = "",
        *,
        tokens: int = TOKENS,
        n_best: int = 1,
        sampling: Sampling | None = None,
    ) -> Generation | list[Generation]:
        """Continue a prompt, or each of a list of prompts; the options are those of `generate`."""
        if not isinstance(prompt, str):
            prompts = list(prompt)
            return list(self.generate(prompts, tokens=tokens, n_best=n_best, sampling=sampling))
        [text] = self.generate([prompt], tokens=tokens, n_best=n_best, sampling=sampling)
        return text

    def generate(
        self,
        prompts: Iterable[str],
        *,
        tokens: int = TOKENS,
        n_best: int = 1,
        sampling: Sampling | None = None,
    ) -> Iterator[Generation]:
        """Continue a stream of prompts, in order and in constant memory.

        An empty prompt begins a text. tokens: the most that are written. n_best: texts for each
        prompt; all but the best are in `alternatives`. sampling: draw at random, instead of a
        search by `search.width`.

        A text longer than any row in training gets a warning. With model.position=learned, a text
        ends at the last position at the latest.
        """
        check_texts(prompts, "generate")
        return self._generate(prompts, _Counts(tokens, n_best), sampling)

    def _generate(
        self, prompts: Iterable[str], counts: _Counts, sampling: Sampling | None
    ) -> Iterator[Generation]:
        """Continue a stream of prompts."""
        search = self._search(counts.n_best, sampling)
        positions = self._positions()
        stream = iter(prompts)
        while chunk := list(islice(stream, WINDOW)):
            encoded = self.tokenizer.encode_batch(chunk)
            self._count(sum(len(ids) + counts.tokens for ids in encoded))
            jobs = []
            for text, ids in zip(chunk, encoded):
                room = max(0, positions - len(ids))  # the last token is written, but not read
                jobs.append(self._job(text, ids, min(counts.tokens, room), sampling))
            possible = [job for job in jobs if job.limit]
            self._decode(sorted(possible, key=lambda job: -len(job.source)), search)
            for text, ids, job in zip(chunk, encoded, jobs):
                yield self._generation(text, ids, job, counts)

    def _job(self, prompt: str, ids: Sequence[int], limit: int, sampling: Sampling | None) -> Job:
        """What to search for a prompt of these ids: the last of them is read by the first step."""
        read = [BOS, *ids]
        job = Job(read[:-1], limit=limit, first=read[-1])
        if sampling:  # the same draw in any company
            job.seed = zlib.crc32(f"{sampling.seed} {prompt}".encode(errors="replace"))
        return job

    def _positions(self) -> int:
        """How many tokens the model can read, where it has learned their positions."""
        modules = self.model.modules()
        learned = [module.max_positions for module in modules if isinstance(module, Learned)]
        return min(learned, default=sys.maxsize)

    def _search(self, n_best: int, sampling: Sampling | None) -> Search:
        """The search that gives so many texts."""
        penalty = self.search.length_penalty
        if sampling is not None:
            if sampling.risk:
                raise UserError(
                    "risk chooses among translations of a source, and a language model has none: "
                    "leave it out"
                )
            return Sample(
                n_best,
                sampling.temperature,
                sampling.top_k,
                sampling.top_p,
                length_penalty=penalty,
            )
        width = max(self.search.width, n_best)
        self._check_width(width)
        if width == 1:
            return Greedy(length_penalty=penalty)
        return Beam(width, n_best, penalty, self.search.patience, self.search.diversity)

    def _generation(self, prompt: str, ids: Sequence[int], job: Job, counts: _Counts) -> Generation:
        """What came of a prompt of these ids."""
        warnings = []
        if UNK in ids:
            unknown = [piece.text for piece in self.tokenizer.pieces(prompt) if piece.id == UNK]
            few = ", ".join(dict.fromkeys(unknown[:5]))
            warnings.append(f"not in the vocabulary: {few}")
        warnings += self._length_warnings(ids, job, counts)
        if not job.found:
            return Generation(prompt, prompt, [], [], 0.0, False, warnings=warnings, look=self.look)

        best = job.found[0]
        others = [
            Alternative(self.tokenizer.decode([*ids, *other.tokens]), other.score)
            for other in job.found[1 : counts.n_best]
        ]
        return Generation(
            prompt,
            self.tokenizer.decode([*ids, *best.tokens]),
            self.tokenizer.token_texts(best.tokens),
            best.logprobs,
            best.score,
            best.finished,
            others,
            warnings,
            self.look,
        )

    def _length_warnings(self, ids: Sequence[int], job: Job, counts: _Counts) -> list[str]:
        """What there is to say about the length of what came of a prompt of these ids."""
        best = job.found[0] if job.found else None
        if job.limit < counts.tokens and not (best and best.finished):
            where = f"the {self._positions():,} learned positions (model.max_positions)"
            if not job.limit:
                prompt = f"the prompt of {counted(len(ids), 'token')}"
                return [f"nothing written: {prompt} fills {where}"]
            return [f"stopped after {counted(job.limit, 'token')}, at the end of {where}"]
        if best is None:
            return []

        length = len(ids) + len(best.logprobs)  # with <eos>, if the text has ended
        if not 0 < self.max_length < length:
            return []
        longest = f"data.max_length={self.max_length}"
        return [f"longer than any row in training ({length:,} tokens; {longest})"]

    @torch.inference_mode()
    def options(self, prompt: str = "", n: int = 5) -> list[Option]:
        """The `n` tokens that most likely come next, each with the text that it makes."""
        n = _Counts(n=n).n
        ids = self.tokenizer.encode(prompt)
        placed = self._placed
        batch = collate([([EOS], [BOS, *ids, EOS])]).to(placed.device)
        last = placed.model.predict(batch)[0, -1].float()  # (V,)
        last = last.masked_fill(self.suppress.to(last.device), -torch.inf)

        allowed = int((~self.suppress).sum())
        likeliest = last.softmax(-1).topk(min(n, allowed))  # (n,)
        next_ids = likeliest.indices.tolist()
        texts = [self.tokenizer.decode([*ids, id]) for id in next_ids]
        tokens = self.tokenizer.token_texts(next_ids)
        return [Option(*fields) for fields in zip(tokens, likeliest.values.tolist(), texts)]

    def score(self, text: str) -> Likelihood:
        """How likely a text is: in total, and token by token."""
        [likelihood] = self.scores([text])
        return likelihood

    def scores(self, texts: Iterable[str]) -> Iterator[Likelihood]:
        """How likely each text is, in order and in constant memory.

        One with more than data.max_length tokens is read in rows, as `regard.evaluate_texts` does.
        """
        check_texts(texts, "scores")
        return (reading.likelihood(self.tokenizer) for reading in self._read(texts))

    def _read(self, texts: Iterable[str]) -> Iterator[Reading]:
        """What is predicted for each text."""
        return read_texts(
            self._placed.model,
            self.tokenizer,
            texts,
            self.search.batch_tokens,
            max_length=self.max_length,
            is_causal=True,
        )

    def bits_per_character(self, texts: Iterable[str]) -> float | None:
        """How many bits a character of these texts takes; the end of a text counts as one.

        None where a token is not in the vocabulary: <unk> takes fewer bits than what it replaces.
        """
        check_texts(texts, "bits_per_character")
        nats = 0.0
        characters = 0
        for reading in self._read(texts):
            if UNK in reading.ids:
                return None
            nats -= sum(reading.prediction.logprobs)
            characters += len(self.tokenizer.normalise(reading.text)) + 1
        if not characters:
            raise UserError("bits_per_character: there are no texts")
        return nats / math.log(2) / characters

    def look(self, text: str, candidates: int = 5) -> AttentionRecord:
        """The attention weights of a text: which earlier tokens each token was predicted from.

        The record also has the most likely tokens at each step.
        """
        placed = self._placed
        sides = (self.tokenizer, self.tokenizer)
        suppress = self.suppress.to(placed.device)
        return look(placed.model, sides, "", self.tokenizer.encode(text), suppress, candidates)
