"""Text -> text: the thing a user loads."""

import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, get_type_hints, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.choosing import covered, least_risk, unmet, words
from regard.config import SearchConfig, build, to_settings
from regard.data.batches import collate
from regard.errors import UserError, nearest
from regard.models import Seq2Seq
from regard.models.ensemble import Decoders, ensemble
from regard.models.fixed import fits, reserve
from regard.nn import watch
from regard.nn.kernels import cpu_has_bf16
from regard.nn.layers import read_only
from regard.online import Online
from regard.record import AttentionRecord, Node, block_of
from regard.result import Alternative, Option, Result, joined
from regard.run import Parts, Run
from regard.search import Beam, Captured, Constraints, Greedy, Hypothesis, Job, Lexical, Rules, Sample, Search, Traced, decode
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import BOS, EOS, FIRST, PAD, SPECIALS, UNK, normalise
from regard.trust import cut, free


@dataclass(frozen=True)
class Sampling:
    """Draw the answer instead of searching for the likeliest."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    risk: int = 0
    """Draw so many, and give the one that agrees best with the others (minimum Bayes risk). 0: give what was drawn."""


class Translator:
    """A model with its tokenizers and search settings. Call it with a text, or a list of texts."""

    def __init__(
        self, model: Seq2Seq, source: Tokenizer, target: Tokenizer, search: SearchConfig | None = None, *, seen: int = 0,
        characters: str = "", packs: bool = True,
    ) -> None:  # fmt: skip
        self.model, self.source, self.target = model.eval(), source, target
        self.search = search or SearchConfig()
        self.seen = seen
        """Longest source in training, in tokens; beyond it a text is split, or a warning given. 0: not known."""
        self.characters, self.packs = frozenset(characters), packs
        """All that stood in a source in training (none: not known), and whether several sentences stood in one."""
        self.most = max(self.search.batch_tokens, seen) if self.search.split and seen else sys.maxsize
        """Tokens of a source, beyond which it is not answered."""
        self.suppress = torch.arange(target.size) < FIRST
        self.suppress[[EOS]] = False
        self._captured: dict[tuple[str, int], Captured] = {}

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @overload
    def __call__(self, text: str, **wishes: Any) -> Result: ...

    @overload
    def __call__(self, text: Sequence[str], **wishes: Any) -> list[Result]: ...

    def __call__(self, text: str | Sequence[str], **wishes: Any) -> Result | list[Result]:
        """One answer for a text, a list for several; `wishes` as for `translate`."""
        results = list(self.translate([text] if isinstance(text, str) else list(text), **wishes))
        return results[0] if isinstance(text, str) else results

    @torch.inference_mode()
    def translate(
        self,
        texts: Iterable[str],
        *,
        n_best: int = 1,
        prefix: str = "",
        must: str | Sequence[str] = (),
        forbid: str | Sequence[str] = (),
        sampling: Sampling | None = None,
        window: int = 1024,
    ) -> Iterator[Result]:
        """Answers in the order of the texts, in constant memory: `window` texts at a time are read, sorted and decoded.

        prefix: how each answer begins. must, forbid: words and phrases that each holds, or does not. A text longer than any in
        training is split at sentence ends (search.split), but not if it has a prefix or must hold something.
        """
        stream = iter(texts)
        if sampling and (must or forbid):
            raise UserError("words are demanded and forbidden in a search, not in samples")
        search = self._search(n_best, sampling, must, forbid, prefix)
        forced = self.target.encode(prefix) if prefix else []
        if UNK in forced:
            raise UserError(f"no answer can begin with {prefix!r}: it is not in the target's vocabulary")
        while chunk := list(islice(stream, window)):
            rows = [self._cut(text, len(ids), bool(prefix or must)) for text, ids in zip(chunk, self.source.encode_batch(chunk))]
            results = self._answers([part for row in rows for part, _ in row], n_best, forced, search, sampling)
            for text, row in zip(chunk, rows):
                found = list(islice(results, len(row)))
                yield found[0] if len(row) == 1 else joined(text, found, [gap for _, gap in row])

    def _cut(self, text: str, length: int, whole: bool) -> list[tuple[str, str]]:
        """The text whole, or in parts with the gaps behind them where it is longer than anything in training."""
        if whole or not self.search.split or not 0 < self.seen <= length:
            return [(text, "")]
        parts = cut(text, lambda one: len(self.source.encode(one)), self.seen - 1, self.most - 1, self.packs)
        return parts if len(parts) > 1 else [(text, "")]

    def _answers(
        self, texts: list[str], n: int, forced: list[int], search: Search, sampling: Sampling | None
    ) -> Iterator[Result]:
        jobs = [Job([*ids, EOS], prefix=forced, number=i) for i, ids in enumerate(self.source.encode_batch(texts))]
        for text, job in zip(texts, jobs):
            job.seed = zlib.crc32(f"{sampling.seed if sampling else 0} {text}".encode(errors="replace"))  # in any company
        self._run(jobs, search)
        if isinstance(search, Lexical) and search.words.must:
            self._try_again(jobs, search)
        for text, job in zip(texts, jobs):
            job.found = self._ranked(text, job.found, sampling)
        may = not self.search.no_repeat and type(search) in (Greedy, Beam)  # else it would not be what was drawn, or demanded
        notes = free(jobs, lambda some, size: self._run(some, search, size), self.target.decode, may)
        for text, job in zip(texts, jobs):
            note, no_repeat = notes.get(job, ("", 0))
            found = self._ranked(text, job.found, None) if no_repeat else job.found
            result = self._result(text, list(job.source), found[:n])
            demanded = unmet(search.words, result.text) if isinstance(search, Lexical) and job.found else []
            yield replace(result, warnings=[*result.warnings, *filter(None, [note]), *demanded], no_repeat=no_repeat)

    def _try_again(self, jobs: Sequence[Job], search: Lexical) -> None:
        """Where something demanded is missing: what must come first. The better of both answers stays."""

        def lacks(job: Job) -> int:
            return len(unmet(search.words, self.target.decode(job.found[0].tokens))) if job.found else sys.maxsize

        before = {job: (lacks(job), job.found) for job in jobs if job.found and lacks(job)}
        self._run(list(before), replace(search, early=True))
        for job, (lacked, found) in before.items():
            job.found = job.found if lacks(job) < lacked else found

    def _run(self, jobs: Sequence[Job], search: Search, no_repeat: int = 0) -> None:
        """Fill what each has found; an empty source gets none, nor one that memory may not hold."""
        c = self.search
        demanded = sum(len(phrase.later) for phrase in search.words.must) if isinstance(search, Lexical) else 0
        for job in jobs:
            job.limit = int(len(job.source) * c.limit_ratio) + c.limit_extra + demanded
            job.limit = max(job.limit, len(job.prefix) + 1)
            job.age, job.led, job.ended, job.found = 0, False, [], []
        rules = Rules(Constraints(no_repeat=no_repeat or c.no_repeat), c.minimum, self.suppress, self.device)
        waiting = sorted((job for job in jobs if 1 < len(job.source) <= self.most), key=lambda job: -len(job.source))
        for _ in self._decode(waiting, search, rules):
            pass

    def _ranked(self, text: str, found: list[Hypothesis], sampling: Sampling | None) -> list[Hypothesis]:
        """By other than the model's probability, where that is wanted."""
        if sampling and sampling.risk and found:
            return least_risk(found, [self.target.decode(one.tokens) for one in found])
        if not self.search.coverage or not found:
            return found

        def weights(one: Hypothesis) -> npt.NDArray[np.float32]:
            blocks = self.look(text, one.tokens).blocks
            if "cross" not in blocks:
                raise UserError("search.coverage needs a model that looks at its source; this one has no attention")
            return np.asarray(blocks["cross"][-1].mean(0))

        return covered(found, weights, self.search.coverage)

    def options(self, result: Result, position: int, n: int = 5) -> list[Option]:
        """The `n` likeliest tokens that could stand at this position (from 0) of an answer, and where each would lead."""
        if result.parts:
            raise UserError(f"split into {len(result.parts)} parts: ask for the options of one, such as result.parts[0]")
        if not 0 <= position <= len(result.ids):
            raise UserError(f"the answer has {len(result.ids)} tokens: positions 0 to {len(result.ids)}, not {position}")
        before, source = result.ids[:position], [*self.source.encode(result.source), EOS]
        made = collate([(source, [BOS, *before, EOS])]).to(self.device)
        with torch.inference_mode():
            logits = self.model(made.source, made.source_lengths, made.target_in)[0, -1].float()
            allowed = int((~self.suppress).sum())
            likely = logits.masked_fill(self.suppress.to(self.device), -torch.inf).softmax(-1).topk(min(n, allowed))
            jobs = [Job(source, prefix=[*before, id] if id != EOS else before) for id in likely.indices.tolist()]
            self._run([job for job in jobs if len(job.prefix) > position], self._search(1, None), result.no_repeat)
        shown = self.target.token_texts(likely.indices.tolist())
        answers = [self.target.decode(job.found[0].tokens if job.found else before) for job in jobs]
        return [Option(*one) for one in zip(shown, likely.values.tolist(), answers)]

    @torch.inference_mode()
    def tree(self, text: str, width: int = 0, no_repeat: int = 0) -> list[Node]:
        """All that a beam of this width (0: the usual one) tries for a text: its best 2 × width candidates at each step."""
        job = Job([*self.source.encode(text), EOS])
        traced = Traced(Beam(width or self.search.width, length_penalty=self.search.length_penalty))
        self._run([job], traced, no_repeat)
        return traced.nodes(job.found, self.target.token_texts)

    def _decode(self, jobs: Sequence[Job], search: Search, rules: Rules) -> Iterator[Job]:
        """By graphs where there is a GPU and nothing is demanded that they do not know."""
        bare = not rules.demands.no_repeat and not any(job.prefix for job in jobs) and type(search) in (Greedy, Beam)
        bare = bare and not (self.search.diversity or self.search.coverage)
        if self.device.type != "cuda" or not bare or not fits(self.model):
            yield from decode(self.model.step, self._begin, jobs, search, rules, self.search.batch_tokens)
            return
        wanted = search if isinstance(search, Beam) else Beam(1, length_penalty=search.length_penalty)
        key = repr(wanted), rules.minimum
        if key not in self._captured:
            banned = self.suppress.clone()
            banned[[PAD, BOS]] = True
            begin = partial(reserve, self.model)
            self._captured[key] = Captured(begin, self.model.step, wanted, banned.to(self.device), rules.minimum)
        yield from self._captured[key].decode(jobs, self.search.batch_tokens)
        lost = [job for job in jobs if not job.found]  # numbers that are none: the ordinary way will say so
        yield from decode(self.model.step, self._begin, lost, search, rules, self.search.batch_tokens)

    def _search(
        self,
        n: int,
        sampling: Sampling | None,
        must: str | Sequence[str] = (),
        forbid: str | Sequence[str] = (),
        prefix: str = "",
    ) -> Search:
        c, width = self.search, max(self.search.width, n)
        if sampling is not None:
            count = max(n, sampling.risk)
            drawn = sampling.temperature, sampling.top_k, sampling.top_p
            return Sample(count, *drawn, length_penalty=c.length_penalty)
        if must or forbid:
            demands = words(self.target, must, forbid, prefix)
            return Lexical(max(width, 5), n, c.length_penalty, c.patience, words=demands)
        if width == 1:
            return Greedy(length_penalty=c.length_penalty)
        return Beam(width, n, c.length_penalty, c.patience, c.diversity)

    def _begin(self, jobs: Sequence[Job]) -> Any:
        made = collate([(job.source, [BOS, EOS]) for job in jobs])
        return self.model.decoder.start(self.model.encoder(made.source.to(self.device), made.source_lengths.to(self.device)))

    def _result(self, text: str, ids: list[int], found: list[Hypothesis]) -> Result:
        if not found:
            many = f"not answered: {len(ids):,} tokens without a space (more than search.batch_tokens={self.search.batch_tokens})"
            return Result(text, "", [], 0.0, [], [], [many] if len(ids) > self.most else [], translator=self)
        best, warnings = found[0], []
        if not best.finished:
            warnings.append(f"stopped at the length limit of {len(best.tokens)} tokens (search.limit_ratio, search.limit_extra)")
        if unknown := [p.text for p in self.source.pieces(text) if p.id == UNK]:
            named = [word if len(word) <= 24 else f"{word[:23]}…" for word in unknown[:5]]
            warnings.append(f"not in the vocabulary: {' '.join(named)}{' …' if len(unknown) > 5 else ''}")
        strange = set(normalise(text)).difference(self.characters, *unknown) if self.characters else set()
        if strange and self.source.kind != "words":  # whose white space is no token
            names = [c if c.isprintable() and c != " " else f"U+{ord(c):04X}" for c in sorted(strange)[:5]]
            warnings.append(f"never seen in training: {' '.join(names)}")
        if self.seen and len(ids) > self.seen:
            warnings.append(f"longer than anything in training ({len(ids)} tokens, {self.seen} seen)")
        answer, *others = [Alternative(self.target.decode(h.tokens), h.score, h.agreement, h.coverage_penalty) for h in found]
        return Result(
            source=text,
            text=answer.text,
            tokens=self.target.token_texts(best.tokens),
            score=best.score,
            logprobs=best.logprobs,
            alternatives=others,
            warnings=warnings,
            ids=best.tokens,
            translator=self,
            agreement=best.agreement,
            coverage_penalty=best.coverage_penalty,
        )

    @torch.inference_mode()
    def look(self, text: str, target: Sequence[int], candidates: int = 5) -> AttentionRecord:
        """The attention with which this model writes `target` for `text`, and the likeliest tokens at each step."""
        if isinstance(self.model.decoder, Decoders):
            raise UserError("several models look in several ways: load one of them alone to see its attention or coverage")
        pieces, text = self.source.pieces(text), normalise(text)
        made = collate([([*(piece.id for piece in pieces), EOS], [BOS, *target, EOS])]).to(self.device)
        with watch(self.model) as record:
            logits = self.model(made.source, made.source_lengths, made.target_in)[0].float()
        blocks: dict[str, list[Tensor]] = {"cross": [], "encoder": [], "decoder": []}
        norms: dict[str, list[Tensor]] = {name: [] for name in blocks}
        for name, calls in record.weights.items():
            block = block_of(name)
            blocks[block].append(torch.cat(calls, dim=2)[0])  # an attention called once per step left a piece per step
            norms[block].append(record.norms[name][0])
        likely = logits.masked_fill(self.suppress.to(self.device), -torch.inf).softmax(-1).topk(min(candidates, self.target.size))
        names = [self.target.token_texts(row) for row in likely.indices.tolist()]
        written, ends = self.target.decode(target), len(text)
        seen, lengths = ({k: torch.stack(w).float().cpu().numpy() for k, w in part.items() if w} for part in (blocks, norms))
        return AttentionRecord(
            source=[*(piece.text for piece in pieces), SPECIALS[EOS]],
            target=self.target.token_texts([*target, EOS]),
            blocks=seen,
            norms=lengths,
            text_in=text,
            text_out=written,
            source_spans=[*((piece.start, piece.end) for piece in pieces), (ends, ends)],
            target_spans=[*self.target.spans(target), (len(written), len(written))],
            candidates=[list(zip(*row)) for row in zip(names, likely.values.tolist())],
        )

    def online(self, wait: float = 3) -> Online:
        """Translate while the source is being written, so many tokens behind: `.read(piece)` and `.end()` give new text."""
        rules = Rules(Constraints(no_repeat=self.search.no_repeat), self.search.minimum, self.suppress, self.device)
        return Online(self.model, self.source, self.target, self.search, rules, wait)


def load(
    run: str | Path | Run,
    *others: str | Path | Run,
    checkpoint: str = "best",
    beam: int | None = None,
    device: str = "cpu",
    parts: Parts = None,
    **search: Any,
) -> Translator:
    """Open a run for translating. others: runs with the same vocabulary, to answer together with it (an ensemble).

    parts: your own classes, where the config says custom:Name. search: settings instead of the run's, such as no_repeat=3.
    """
    known = get_type_hints(SearchConfig)
    for name in search:
        if name not in known:
            options = ["checkpoint", "beam", "device", "parts", *known]
            raise UserError(f"load() has no option {name}{nearest(name, options)}")
    runs = [one if isinstance(one, Run) else Run.open(one) for one in (run, *others)]
    first = runs[0]
    for other in runs[1:]:
        if [side.to_json() for side in (other.source, other.target)] != [side.to_json() for side in (first.source, first.target)]:
            raise UserError(
                f"{other.path} has another vocabulary than {first.path}: train it with train.start_from, or on the same data"
            )
    settings = build({"search": {**to_settings(first.config)["search"], **({"width": beam} if beam else {}), **search}}).search
    models = [one.model(checkpoint, parts).to(device) for one in runs]
    kind = torch.bfloat16 if settings.precision == "bf16" else torch.float32
    if kind == torch.bfloat16 and device == "cpu" and not cpu_has_bf16():
        raise UserError("search.precision=bf16: this CPU does not run torch's bfloat16 products; use fp32")
    for model in models:
        if device == "cpu":
            read_only(model, kind)
        else:
            model.to(kind)
    whole = models[0] if len(models) == 1 else ensemble(models)
    seen, characters = first.manifest.get("longest_source", 0), first.manifest.get("characters", "")
    packs = first.manifest.get("several_sentences", 1.0) >= 0.05
    return Translator(whole, first.source, first.target, settings, seen=seen, characters=characters, packs=packs)
