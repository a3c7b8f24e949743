"""Text -> text: the thing a user loads."""

import sys
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from typing import Any, get_type_hints, overload

import numpy as np
import numpy.typing as npt
import torch

from regard.bounds import Bounded, setting, specs_of
from regard.config import SearchConfig
from regard.data.batches import collate
from regard.data.pairs import read_positions
from regard.errors import UserError, counted, nearest
from regard.inference.contrasts import judge_contrasts
from regard.inference.decoding import (
    DecodingModel,
    never_written,
)
from regard.inference.demands import words
from regard.inference.likelihoods import likelihoods
from regard.inference.loops import free
from regard.inference.online import Online
from regard.inference.reranking import covered, least_risk
from regard.inference.vectors import TextVectors, Vectors, text_vectors
from regard.inspection.look import look
from regard.inspection.page import answer_page
from regard.models import Seq2Seq
from regard.models.ensemble import Encoders
from regard.records.attention import AttentionRecord
from regard.records.contrast import Contrast, ContrastItem
from regard.records.likelihood import Likelihood
from regard.records.result import Alternative, Option, Result, joined
from regard.records.tree import Node
from regard.search import (
    Beam,
    Greedy,
    Hypothesis,
    Job,
    Lexical,
    Sample,
    Sampling,
    Search,
    Traced,
)
from regard.text.missing import BLANK, WithMasks
from regard.text.positions import Located, positions_in
from regard.text.sentences import cut
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import BOS, EOS, UNK


@dataclass(frozen=True)
class _Counts(Bounded):
    """Whole numbers that `translate` and `options` take."""

    n_best: int = setting(1, "Answers per text.", least=1, most=10**4)
    window: int = setting(0, "Texts that are decoded together. 0: automatic.", least=0, most=10**6)
    n: int = setting(5, "Tokens at a position of an answer.", least=1, most=10**6)


WINDOW = {"cpu": 1024, "gpu": 32_768}
"""How many texts are read, sorted by length and decoded together.

A GPU wants more of them side by side.
"""
LONG = 100_000
"""Characters from which a text is cut without counting its tokens first."""
PARTS = 2
"""How many times as many sentences are decoded together, where texts are split into sentences."""


class Translator(DecodingModel, TextVectors):
    """A trained model with its tokenizers and search settings.

    Call it with a text to get a Result, or with a list of texts to get a list of them. Use
    `regard.load` to make one from a run.
    """

    def __init__(
        self,
        model: Seq2Seq,
        source: Tokenizer,
        target: Tokenizer,
        search: SearchConfig | None = None,
        *,
        seen: int = 0,
        characters: str = "",
        packs: bool = True,
        auto: bool = False,
        positions: str = "",
        max_length: int = 0,
    ) -> None:
        suppress = never_written(target)
        super().__init__(model, suppress, search or SearchConfig(), auto=auto)
        self.source = source
        self.target = target
        self.seen = seen
        """Longest source in training, in tokens. 0: unknown.

        A longer text is split, or gets a warning.
        """
        self.characters = frozenset(characters)
        """All characters of the training sources. Empty: unknown."""
        self.packs = packs
        """Whether training sources had several sentences."""
        self.positions = positions
        """The setting data.positions of the run: if not empty, every text needs positions."""
        self.max_length = max_length
        """Tokens that a row of a text had in training, at most; 0: training had pairs."""
        self.most = sys.maxsize
        """Maximum source length in tokens; longer sources are not translated."""
        if self.search.split and seen:
            self.most = max(self.search.batch_tokens, seen)
        self._has_warned = not source.tags  # of a text without tags, which this run should have
        self._ids = list(range(target.size))  # shared by all results: a number takes 28 bytes

    def __repr__(self) -> str:
        size = counted(self._parameters(), "parameter")
        return f"{type(self).__name__}({size}, beam {self.search.width}, {self.device})"

    def _text_vectors(self, texts: Iterable[str]) -> Iterator[Vectors]:
        encoder = self.model.encoder
        if isinstance(encoder, Encoders):
            raise UserError("an ensemble has several encoders: load one of its runs alone")
        if self.positions:
            raise UserError("embed() knows no positions of the words, which this run needs")
        return text_vectors(
            encoder,
            self.source,
            texts,
            self.search.batch_tokens,
            self.device,
            self.max_length,
        )

    @overload
    def __call__(self, text: str, **wishes: Any) -> Result: ...

    @overload
    def __call__(self, text: Sequence[str], **wishes: Any) -> list[Result]: ...

    def __call__(self, text: str | Sequence[str], **wishes: Any) -> Result | list[Result]:
        """Translate a text, or a list of texts; the options are those of `translate`."""
        _check_wishes(wishes)
        if isinstance(text, str):
            if wishes.get("positions") is not None:
                wishes["positions"] = [wishes["positions"]]
            [result] = self.translate([text], **wishes)
            return result
        if not isinstance(text, Iterable):
            raise UserError(f"pass a text or a list of texts, not {type(text).__name__}")
        return list(self.translate(list(text), **wishes))

    def translate(
        self,
        texts: Iterable[str],
        *,
        n_best: int = 1,
        prefix: str = "",
        must: str | Sequence[str] = (),
        forbid: str | Sequence[str] = (),
        sampling: Sampling | None = None,
        window: int = 0,
        positions: Iterable[Sequence[int]] | None = None,
    ) -> Iterator[Result]:
        """Translate a stream of texts, in order and in constant memory.

        n_best: number of answers per text; all but the best are in `result.alternatives`.
        prefix: text that each answer starts with.
        must, forbid: words and phrases that each answer must, or must not, contain.
        sampling: draw answers at random instead of beam search.
        window: number of texts to read, sort by length and decode together. 0: 1,024 on a CPU,
        8,192 on a GPU.
        positions: for each text, where its words stand: a whole number for each. A run that was
        trained with data.positions needs them; instead they may also stand in the text, after a
        tab: "the old cat\\t1 2 1".

        If the run was trained with data.features, a text has its tags after a tab:
        "kedi\\tN;DAT;SG".

        A text longer than any in training is split at sentence ends (search.split), unless it has a
        prefix or required words.
        """
        counts = _Counts(n_best, window)
        n_best = counts.n_best
        window = counts.window
        if sampling and (must or forbid):
            raise UserError(
                "required and forbidden words do not work with sampling: use beam search"
            )
        search = self._search(n_best, sampling, must, forbid, prefix)
        forced = self.target.encode(prefix) if prefix else []
        if UNK in forced:
            raise UserError(
                f"no answer can start with {prefix!r}: it is not in the target vocabulary"
            )
        if 0 < self.search.limit <= len(forced):
            raise UserError(
                f"no answer of at most {counted(self.search.limit, 'token')} (search.limit) can "
                f"start with {prefix!r} and go on: it has {counted(len(forced), 'token')}"
            )

        def answers(parts: list[str], encoded: list[list[int]]) -> Iterator[Result]:
            return self._answers(parts, encoded, n_best, forced, search, sampling)

        stream = map(self._prepared, _with_positions(texts, positions))
        while chunk := list(islice(stream, window or self._window())):
            encoded = self._encoded(chunk, uncut=bool(prefix or must))
            self._count(
                sum(
                    len(text) // 4 if ids is None else len(ids) for text, ids in zip(chunk, encoded)
                )
            )

            rows = [self._cut(text, ids, bool(prefix or must)) for text, ids in zip(chunk, encoded)]
            group = PARTS * (window or self._window())
            results = self._in_groups(rows, encoded, group, answers)

            for text, row in zip(chunk, rows):
                if len(row) == 1:
                    yield next(results)
                else:
                    yield joined(text, list(islice(results, len(row))), [gap for _, gap in row])

    def _prepared(self, text: str) -> str:
        """The text as this run needs it; that its tags are missing is told once."""
        if not self._has_warned and "\t" not in text and text.strip():
            self._has_warned = True
            warnings.warn(
                f"{text[:40]!r} has no tags, but this run was trained with data.features: write "
                f"them after a tab, such as 'kedi\\tN;DAT;SG', or with --features",
                stacklevel=2,
            )
        return self._located(text)

    def _located(self, text: str) -> str:
        """The text with the positions of its words, if this run needs them."""
        if not self.positions or isinstance(text, Located) or not text.strip():
            return text
        words, tab, positions = text.rpartition("\t")
        if not tab:
            raise UserError(
                f"{text[:40]!r}: this run was trained with data.positions={self.positions}; write "
                f"a tab and a number for each word behind the text, or pass positions=[…]"
            )
        return Located(words, read_positions(positions, repr(words[:40])))

    def _encoded(self, texts: list[str], uncut: bool) -> list[list[int] | None]:
        """The ids of each text; None: it is so long that it will be cut, and encoded in parts.

        While it works, a tokenizer takes some 300 bytes of memory a token. uncut: whether texts
        must stay in one part.
        """
        uncut = uncut or not self.search.split or self.seen == 0
        least = max(LONG, 20 * self.seen)  # tokens of 20 characters: none has so long ones
        is_long = [
            len(text) >= least and not uncut and not isinstance(text, Located) for text in texts
        ]
        others = [text for text, long in zip(texts, is_long) if not long]
        ids = iter(self.source.encode_batch(others))
        return [None if long else next(ids) for long in is_long]

    def _in_groups(
        self,
        rows: Iterable[list[tuple[str, str]]],
        encoded: Iterable[list[int] | None],
        size: int,
        answers: Callable[[list[str], list[list[int]]], Iterator[Result]],
    ) -> Iterator[Result]:
        """The answers to the parts of all texts, of which at most `size` are decoded at a time.

        A text may have a hundred thousand sentences. One that was not cut is not encoded again.
        """
        parts = chain.from_iterable(
            [(row[0][0], ids)] if len(row) == 1 else [(part, None) for part, _ in row]
            for row, ids in zip(rows, encoded)
        )
        while group := list(islice(parts, size)):
            texts = [text for text, _ in group]
            new = iter(self.source.encode_batch([text for text, ids in group if ids is None]))
            yield from answers(texts, [next(new) if ids is None else ids for _, ids in group])

    def _window(self) -> int:
        return WINDOW["cpu" if self.device.type == "cpu" else "gpu"]

    def _cut(self, text: str, ids: list[int] | None, uncut: bool) -> list[tuple[str, str]]:
        """The text in parts, each with the gap behind it.

        There is only one part unless the text is longer than anything in training. ids: of the
        text, or None if it surely is longer. uncut: whether it must stay in one part.
        """
        uncut = uncut or not self.search.split or isinstance(text, Located)
        if uncut or (ids is not None and not 0 < self.seen <= len(ids)):
            return [(text, "")]

        def count(part: str) -> int:
            return len(self.source.encode(part))

        without_tags = self.source.text_of(text)
        tags = text[len(without_tags) :]  # with the tab before them
        room = self.seen - 1 - count(tags)
        most = self.most - 1 - count(tags)
        parts = cut(without_tags, count, room, most, self.packs)
        if len(parts) == 1:
            return [(text, "")]
        return [(part + tags if part else part, gap) for part, gap in parts]  # tags for each

    def _answers(
        self,
        texts: list[str],
        encoded: list[list[int]],
        n: int,
        forced: list[int],
        search: Search,
        sampling: Sampling | None,
    ) -> Iterator[Result]:
        """Search the answers of texts that need not be cut, and judge them.

        encoded: the ids of the texts, without <eos>. n: how many answers each is given. forced: the
        ids with which every answer begins.
        """
        jobs = [Job([*ids, EOS], prefix=forced, number=i) for i, ids in enumerate(encoded)]
        for text, job in zip(texts, jobs):
            job.positions = positions_in(self.source, text)
        if sampling:
            for text, job in zip(texts, jobs):  # the same draw in any company
                job.seed = zlib.crc32(f"{sampling.seed} {text}".encode(errors="replace"))

        self._run(jobs, search)
        retry = search.retry()
        if retry is not None:
            self._try_again(jobs, retry)
        for text, job in zip(texts, jobs):
            job.found = self._ranked(text, job.found, sampling)

        def decode_again(stuck: list[Job], no_repeat: int) -> None:
            self._run(stuck, search, no_repeat)

        # An answer that is not plain would no longer be what was drawn, or demanded.
        may = not self.search.no_repeat and search.plain
        notes = free(jobs, decode_again, self.target.decode, may)

        for text, job in zip(texts, jobs):
            note, no_repeat = notes.get(job, ("", 0))
            hypotheses = job.found
            if no_repeat:  # decoded again
                hypotheses = self._ranked(text, hypotheses, None)
            more = [note] if note else []
            result = self._result(text, job.source, hypotheses[:n], more, no_repeat)
            if job.found:
                result.warnings.extend(search.unmet(result.text))
            yield result

    def _try_again(self, jobs: Sequence[Job], search: Search) -> None:
        """Search again where a demand is unmet; the better of both answers stays."""

        def unmet(job: Job) -> int:
            if not job.found:
                return sys.maxsize
            return len(search.unmet(self.target.decode(job.found[0].tokens)))

        first = {job: (unmet(job), job.found) for job in jobs if job.found and unmet(job)}
        self._run(list(first), search)
        for job, (first_unmet, first_hypotheses) in first.items():
            if unmet(job) >= first_unmet:
                job.found = first_hypotheses

    def _run(self, jobs: Sequence[Job], search: Search, no_repeat: int = 0) -> None:
        """Fill what each job has found: nothing for an empty source, or one that is too long."""
        settings = self.search
        for job in jobs:
            limit = settings.most_tokens(len(job.source), search.extra_length)
            job.limit = max(limit, len(job.prefix) + 1)
            job.restart()

        waiting = [job for job in jobs if 1 < len(job.source) <= self.most]
        waiting.sort(key=lambda job: -len(job.source))
        self._decode(waiting, search, no_repeat)

    def _ranked(
        self, text: str, hypotheses: list[Hypothesis], sampling: Sampling | None
    ) -> list[Hypothesis]:
        """The hypotheses in another order than the model's, where the settings ask for one."""
        if not hypotheses:
            return hypotheses

        if sampling and sampling.risk:
            texts = [self.target.decode(hypothesis.tokens) for hypothesis in hypotheses]
            return least_risk(hypotheses, texts)

        if self.search.coverage:
            return covered(
                hypotheses,
                lambda hypothesis: self._attention(text, hypothesis),
                self.search.coverage,
            )

        return hypotheses

    def _attention(self, text: str, hypothesis: Hypothesis) -> npt.NDArray[np.float32]:
        """How a hypothesis looks at the source: (T, S), the mean of the last block's heads."""
        blocks = self.look(text, hypothesis.tokens).blocks
        if "cross" not in blocks:
            raise UserError(
                "search.coverage needs a model with attention, and this one has none: set "
                "search.coverage=0"
            )
        return np.asarray(blocks["cross"][-1].mean(0))

    def options(self, result: Result, position: int, n: int = 5) -> list[Option]:
        """The `n` most likely tokens at a position of an answer, each with the resulting answer.

        Positions count from 0.
        """
        if result.parts:
            raise UserError(
                f"the text was split into {len(result.parts)} parts: ask for the options of one of "
                f"them, such as result.parts[0]"
            )
        n = _Counts(n=n).n
        if not 0 <= position <= len(result.ids):
            raise UserError(
                f"no position {position}: the answer has {counted(len(result.ids), 'token')}, so "
                f"positions go from 0 to {len(result.ids)}"
            )
        before = result.ids[:position]
        source = [*self.source.encode(result.source), EOS]
        positions = positions_in(self.source, result.source)
        probabilities, ids = self._likeliest(source, positions, before, n)

        jobs: list[Job] = []
        for id in ids:
            prefix = before if id == EOS else [*before, id]
            jobs.append(Job(source, prefix=prefix, positions=positions))
        unended = [job for job in jobs if len(job.prefix) > position]
        self._run(unended, self._search(1, None), result.no_repeat)

        tokens = self.target.token_texts(ids)
        answers = [self.target.decode(job.found[0].tokens if job.found else before) for job in jobs]
        return [Option(*fields) for fields in zip(tokens, probabilities, answers)]

    @torch.inference_mode()
    def _likeliest(
        self, source: list[int], positions: list[int], before: list[int], n: int
    ) -> tuple[list[float], list[int]]:
        """Probabilities and ids of the `n` likeliest tokens that may follow `before`."""
        placed = self._placed
        row = (source, [BOS, *before, EOS])
        batch = collate([(*row, positions) if positions else row]).to(placed.device)
        logits = placed.model.predict(batch)  # (1, T, V)
        last = logits[0, -1].float()  # (V,)
        last = last.masked_fill(self.suppress.to(last.device), -torch.inf)

        allowed = int((~self.suppress).sum())
        likeliest = last.softmax(-1).topk(min(n, allowed))  # (n,)
        return likeliest.values.tolist(), likeliest.indices.tolist()

    @torch.inference_mode()
    def tree(self, text: str, width: int = 0, no_repeat: int = 0) -> list[Node]:
        """The search tree of a beam search: its best 2 × width candidates at each step.

        width: 0 means search.width.
        """
        text = self._located(text)
        job = Job([*self.source.encode(text), EOS], positions=positions_in(self.source, text))
        width = width or self.search.width
        self._check_width(width)
        traced = Traced(Beam(width, length_penalty=self.search.length_penalty))
        self._run([job], traced, no_repeat)
        return traced.nodes(job.found, self.target.token_texts)

    def _search(
        self,
        n: int,
        sampling: Sampling | None,
        must: str | Sequence[str] = (),
        forbid: str | Sequence[str] = (),
        prefix: str = "",
    ) -> Search:
        """The search that gives `n` answers as they are wanted."""
        penalty = self.search.length_penalty
        patience = self.search.patience
        width = max(self.search.width, n)

        if sampling is not None:
            return Sample(
                max(n, sampling.risk),
                sampling.temperature,
                sampling.top_k,
                sampling.top_p,
                length_penalty=penalty,
            )
        self._check_width(width)
        if must or forbid:
            demands = words(self.target, must, forbid, prefix)
            return Lexical(max(width, 5), n, penalty, patience, words=demands)
        if width == 1:
            return Greedy(length_penalty=penalty)
        return Beam(width, n, penalty, patience, self.search.diversity)

    def _result(
        self,
        text: str,
        ids: Sequence[int],
        hypotheses: list[Hypothesis],
        notes: list[str],
        no_repeat: int,
    ) -> Result:
        """The answer to a text, with what speaks against it.

        ids: of the text, with <eos>. hypotheses: best first. notes: further warnings. no_repeat:
        with which it was decoded again; 0: it was not.
        """
        if not hypotheses:
            if len(ids) > self.most:
                limit = f"more than search.batch_tokens={self.search.batch_tokens}"
                notes = [f"not translated: {len(ids):,} tokens without a space ({limit})", *notes]
            return Result(text, "", [], 0.0, [], [], notes, translator=self)

        best = hypotheses[0]
        answer, *others = map(self._alternative, hypotheses)
        return Result(
            source=text,
            text=answer.text,
            tokens=self.target.token_texts(best.tokens),
            score=best.score,
            logprobs=best.logprobs,
            alternatives=others,
            warnings=[*self._doubts(text, ids, best), *notes],
            ids=[self._ids[id] for id in best.tokens],
            translator=self,
            no_repeat=no_repeat,
            agreement=best.agreement,
            coverage_penalty=best.coverage_penalty,
        )

    def _alternative(self, hypothesis: Hypothesis) -> Alternative:
        """A hypothesis as a text."""
        return Alternative(
            self.target.decode(hypothesis.tokens),
            hypothesis.score,
            hypothesis.agreement,
            hypothesis.coverage_penalty,
        )

    def _doubts(self, text: str, ids: Sequence[int], best: Hypothesis) -> list[str]:
        """What speaks against an answer."""
        doubts: list[str] = []
        if not best.finished:
            settings = "search.limit_ratio, search.limit_extra"
            if len(best.tokens) == self.search.limit:
                settings = "search.limit"
            length = counted(len(best.tokens), "token")
            doubts.append(f"stopped at the length limit of {length} ({settings})")

        unknown: list[str] = []
        if UNK in ids:
            unknown = [piece.text for piece in self.source.pieces(text) if piece.id == UNK]
            doubts.append(f"not in the vocabulary: {_few(unknown)}")

        if self.characters and self.source.kind != "words":  # whose white space is no token
            written = text.replace(BLANK, "") if isinstance(self.source, WithMasks) else text
            read = self.source.text_of(self.source.normalise(written))
            strange = set(read).difference(self.characters, *unknown)
            if strange:
                names = [_character_name(character) for character in sorted(strange)[:5]]
                doubts.append(f"never seen in training: {' '.join(names)}")

        if self.seen and len(ids) > self.seen:
            doubts.append(
                f"longer than any source in training ({len(ids)} tokens; longest: {self.seen})"
            )

        return doubts

    def score(self, source: str, target: str) -> Likelihood:
        """How likely a given target is for a source: in total, and token by token.

        >>> likelihood = translator.score("go .", "va !")  # doctest: +SKIP
        >>> likelihood.total, likelihood.logprobs, likelihood.predicted  # doctest: +SKIP
        """
        [likelihood] = self.scores([(source, target)])
        return likelihood

    def scores(self, pairs: Iterable[tuple[str, str]]) -> Iterator[Likelihood]:
        """How likely the target of each (source, target) is, in order and in constant memory."""
        sides = (self.source, self.target)
        budget = self.search.batch_tokens
        located = ((self._prepared(source), target) for source, target in pairs)
        return likelihoods(self._placed.model, sides, located, budget)

    def contrasts(self, items: Iterable[ContrastItem | tuple[str, ...]]) -> Iterator[Contrast]:
        """Which of two targets is the more likely one, for each (source, right, wrong, kind).

        The kind, the name of what is wrong, may be left out. The log-probabilities are those of
        whole targets: the two should differ in one word. `regard.scoring.scores_by_kind` counts.

        >>> item = ("i'm home .", "je suis chez moi .", "je suis chez lui .", "pronoun")
        >>> [contrast] = translator.contrasts([item])  # doctest: +SKIP
        >>> contrast.correct, contrast.margin  # doctest: +SKIP
        """
        return judge_contrasts(self.scores, items)

    def look(self, text: str, target: Sequence[int], candidates: int = 5) -> AttentionRecord:
        """The attention weights for producing `target` (token ids) from `text`.

        The record also has the most likely tokens at each step.
        """
        placed = self._placed
        sides = (self.source, self.target)
        suppress = self.suppress.to(placed.device)
        return look(placed.model, sides, self._located(text), target, suppress, candidates)

    def page(self, result: Result, *, evidence: bool = True) -> str:
        """The HTML of a page about an answer.

        `result.page()` and `result.write_page(path)` are the usual ways to ask for it.
        """
        tree = self.tree(result.source, no_repeat=result.no_repeat)
        return answer_page(self, result, tree, evidence=evidence)

    def online(self, wait: float = 3) -> Online:
        """Simultaneous translation, `wait` source tokens behind.

        `.read(piece)` takes more of the source; it and `.end()` return the new part of the answer.
        """
        if self.positions:
            raise UserError(
                f"this run was trained with data.positions={self.positions}: a text that is still "
                f"being written has none, so translate it as a whole"
            )
        if self.source.tags:
            raise UserError(
                "this run was trained with data.features: a text that is still being written has "
                "no tags, so translate it as a whole"
            )
        placed = self._placed
        return Online(
            placed.model, self.source, self.target, self.search, self._rules(placed.device), wait
        )


def _with_positions(
    texts: Iterable[str], positions: Iterable[Sequence[int]] | None
) -> Iterator[str]:
    """The texts, each with its positions, if there are any."""
    if positions is None:
        yield from texts
        return
    for text, numbers in zip_longest(texts, positions):
        if text is None or numbers is None:
            raise UserError("positions: give one list of numbers for each text")
        yield Located(text, read_positions(numbers, repr(text[:40])))


def _check_wishes(wishes: Iterable[str]) -> None:
    """Refuse an option that `translate` does not have, and say where it belongs."""
    known = get_type_hints(Translator.translate).keys() - {"self", "texts", "return"}
    for name in wishes:
        if name in specs_of(Sampling):
            raise UserError(
                f"translate() has no option {name}: pass sampling=regard.Sampling({name}=…)"
            )
        if name in specs_of(SearchConfig) or name == "beam":
            raise UserError(f"translate() has no option {name}: pass it to regard.load(run, …)")
        if name not in known:
            raise UserError(f"translate() has no option {name}{nearest(name, sorted(known))}")


def _few(words: Sequence[str]) -> str:
    """The first five words, shortened."""
    shortened = [word if len(word) <= 24 else f"{word[:23]}…" for word in words[:5]]
    more = ["…"] if len(words) > 5 else []
    return ", ".join([*shortened, *more])


def _character_name(character: str) -> str:
    """The character itself, or its number where nobody would see it."""
    if character.isprintable() and character != " ":
        return character
    return f"U+{ord(character):04X}"
