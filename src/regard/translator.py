"""Text -> text: the thing a user loads."""

import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.choosing import covered, least_risk, unmet, words
from regard.config import SearchConfig, build, to_settings
from regard.data.batches import collate
from regard.errors import UserError
from regard.models import Seq2Seq
from regard.models.ensemble import ensemble
from regard.models.fixed import fits, reserve
from regard.nn import watch
from regard.nn.kernels import cpu_has_bf16
from regard.nn.layers import read_only
from regard.online import Online
from regard.pictures.page import write_page
from regard.run import Parts, Run
from regard.search import Beam, Captured, Constraints, Greedy, Hypothesis, Job, Lexical, Rules, Sample, Search, Words, decode
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import BOS, EOS, FIRST, PAD, UNK, normalise
from regard.trust import cut, free, overlooked


@dataclass(frozen=True)
class Alternative:
    """Another hypothesis of the search."""

    text: str
    score: float


@dataclass(frozen=True)
class Sampling:
    """Draw the answer instead of searching for the likeliest."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    risk: int = 0
    """Draw so many, and give the one that agrees best with the others (minimum Bayes risk). 0: give what was drawn."""


@dataclass(frozen=True)
class Option:
    """A token that could stand at a position, how likely it is there, and the answer it leads to."""

    token: str
    probability: float
    text: str


@dataclass(frozen=True)
class AttentionRecord:
    """Weights of every layer and head for one answer; cross (L, H, T, S), encoder (L, H, S, S), decoder (L, H, T, T).

    Row t belongs to the step that wrote target token t. An RNN has cross only, a model without attention nothing.
    """

    source: list[str]
    target: list[str]
    blocks: dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class Result:
    """An answer, with what there is to know about it."""

    source: str
    text: str
    tokens: list[str]
    score: float
    logprobs: list[float]
    alternatives: list[Alternative] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list, repr=False)
    translator: "Translator | None" = field(default=None, repr=False, compare=False)
    parts: list["Result"] = field(default_factory=list, repr=False)
    """Of a text that was split."""
    no_repeat: int = field(default=0, repr=False)
    """With which it was decoded again, to break a loop."""

    def __str__(self) -> str:
        return self.text

    @cached_property
    def attention(self) -> AttentionRecord:
        """Computed when first asked for, by reading the answer once more with eyes open."""
        assert self.translator is not None
        if self.parts:
            raise UserError(f"split into {len(self.parts)} parts: each has its own attention, such as result.parts[0].attention")
        return self.translator.look(self.source, self.ids)

    @cached_property
    def looked_at(self) -> npt.NDArray[np.float32]:
        """Attention that each source token but <eos> got over all steps: last layer, mean of heads. Empty without attention."""
        if self.parts:
            return np.concatenate([part.looked_at for part in self.parts])
        cross = self.attention.blocks.get("cross", np.zeros((1, 1, 1, 1), np.float32))
        return np.asarray(cross[-1].mean(0).sum(0)[:-1])

    @property
    def coverage(self) -> float | None:
        """The share of the source that was looked at, 0 to 1: the mean over its tokens, each at most 1."""
        return float(self.looked_at.clip(max=1).mean()) if len(self.looked_at) else None

    @property
    def overlooked(self) -> list[str]:
        """Source words that got hardly any attention."""
        if self.parts or not len(self.looked_at) or self.translator is None:
            return [word for part in self.parts for word in part.overlooked]
        spans = [(piece.start, piece.end) for piece in self.translator.source.pieces(self.source)]
        return overlooked(normalise(self.source), spans, self.looked_at)

    def write_page(self, path: Path) -> Path:
        """One HTML file that shows the attention; of a split text, that of its first part."""
        if self.parts:
            return next((part for part in self.parts if part.ids), self.parts[0]).write_page(path)
        seen = self.attention
        return write_page(path, seen.source, seen.target, seen.blocks, text_in=self.source, text_out=self.text)


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
        must: Sequence[str] = (),
        forbid: Sequence[str] = (),
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
        demands = words(self.target, must, forbid) if must or forbid else None
        search = self._search(n_best, sampling, demands)
        forced = self.target.encode(prefix) if prefix else []
        while chunk := list(islice(stream, window)):
            rows = [self._cut(text, len(ids), bool(prefix or must)) for text, ids in zip(chunk, self.source.encode_batch(chunk))]
            results = self._answers([part for row in rows for part, _ in row], n_best, forced, search, sampling)
            for text, row in zip(chunk, rows):
                found = list(islice(results, len(row)))
                yield found[0] if len(row) == 1 else _joined(text, found, [gap for _, gap in row])

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
        if isinstance(search, Lexical):
            again = [job for job in jobs if job.found and unmet(search.words, self.target.decode(job.found[0].tokens))]
            self._run(again, replace(search, early=True))
        may = not self.search.no_repeat and type(search) in (Greedy, Beam)  # else it would not be what was drawn, or demanded
        notes = free(jobs, lambda some, size: self._run(some, search, size), self.target.decode, may)
        for text, job in zip(texts, jobs):
            result = self._result(text, list(job.source), self._ranked(text, job.found, sampling)[:n])
            note, no_repeat = notes.get(job, ("", 0))
            demanded = unmet(search.words, result.text) if isinstance(search, Lexical) and job.found else []
            yield replace(result, warnings=[*result.warnings, *filter(None, [note]), *demanded], no_repeat=no_repeat)

    def _run(self, jobs: Sequence[Job], search: Search, no_repeat: int = 0) -> None:
        """Fill what each has found; an empty source gets none, nor one that memory may not hold."""
        c = self.search
        demanded = sum(len(phrase.later) for phrase in search.words.must) if isinstance(search, Lexical) else 0
        for job in jobs:
            job.limit = int(len(job.source) * c.limit_ratio) + c.limit_extra + demanded
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
        return covered(found, lambda one: self.look(text, one.tokens).blocks["cross"][-1].mean(0), self.search.coverage)

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
            likely = logits.masked_fill(self.suppress.to(self.device), -torch.inf).softmax(-1).topk(min(n, len(logits)))
            jobs = [Job(source, prefix=[*before, id] if id != EOS else before) for id in likely.indices.tolist()]
            self._run([job for job in jobs if len(job.prefix) > position], self._search(1, None), result.no_repeat)
        shown = self.target.token_texts(likely.indices.tolist())
        answers = [self.target.decode(job.found[0].tokens if job.found else before) for job in jobs]
        return [Option(*one) for one in zip(shown, likely.values.tolist(), answers)]

    def _decode(self, jobs: Sequence[Job], search: Search, rules: Rules) -> Iterator[Job]:
        """By graphs where there is a GPU and nothing is demanded that they do not know."""
        bare = not rules.demands.no_repeat and not any(job.prefix for job in jobs) and type(search) in (Greedy, Beam)
        bare = bare and not (self.search.diversity or self.search.coverage)
        if self.device.type != "cuda" or not bare or not fits(self.model):
            yield from decode(self.model.step, self._begin, jobs, search, rules, self.search.batch_tokens)
            return
        wanted = search if isinstance(search, Beam) else Beam(1)
        key = repr(wanted), rules.minimum
        if key not in self._captured:
            banned = self.suppress.clone()
            banned[[PAD, BOS]] = True
            begin = partial(reserve, self.model)
            self._captured[key] = Captured(begin, self.model.step, wanted, banned.to(self.device), rules.minimum)
        yield from self._captured[key].decode(jobs, self.search.batch_tokens)
        lost = [job for job in jobs if not job.found]  # numbers that are none: the ordinary way will say so
        yield from decode(self.model.step, self._begin, lost, search, rules, self.search.batch_tokens)

    def _search(self, n_best: int, sampling: Sampling | None, demands: Words | None = None) -> Search:
        c = self.search
        if sampling is not None:
            return Sample(max(n_best, sampling.risk), sampling.temperature, sampling.top_k, sampling.top_p)
        width = max(c.width, n_best)
        if demands is not None:
            return Lexical(max(width, 5), n_best, c.length_penalty, c.patience, words=demands)
        return Greedy() if width == 1 else Beam(width, n_best, c.length_penalty, c.patience, c.diversity)

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
            warnings.append(f"not in the vocabulary: {' '.join(unknown[:5])}")
        strange = set(normalise(text)).difference(self.characters, *unknown) if self.characters else set()
        if strange and self.source.kind != "words":  # whose white space is no token
            names = [c if c.isprintable() and c != " " else f"U+{ord(c):04X}" for c in sorted(strange)[:5]]
            warnings.append(f"never seen in training: {' '.join(names)}")
        if self.seen and len(ids) > self.seen:
            warnings.append(f"longer than anything in training ({len(ids)} tokens, {self.seen} seen)")
        answer, *others = [Alternative(self.target.decode(h.tokens), h.score) for h in found]
        tokens = self.target.token_texts(best.tokens)
        return Result(text, answer.text, tokens, best.score, best.logprobs, others, warnings, best.tokens, self)

    @torch.inference_mode()
    def look(self, text: str, target: Sequence[int]) -> AttentionRecord:
        """The attention with which this model writes `target` for `text`."""
        source = [*self.source.encode(text), EOS]
        made = collate([(source, [BOS, *target, EOS])]).to(self.device)
        with watch(self.model) as record:
            self.model(made.source, made.source_lengths, made.target_in)
        # An attention called once per step left a piece per step; together they are its rows.
        weights = {name: torch.cat(calls, dim=2)[0] for name, calls in record.weights.items()}
        blocks: dict[str, list[Tensor]] = {"cross": [], "encoder": [], "decoder": []}
        for name, w in weights.items():
            crossing = name.endswith("cross") or name == "decoder.attention"
            blocks["cross" if crossing else name.split(".")[0]].append(w)
        arrays = {name: torch.stack(w).float().cpu().numpy() for name, w in blocks.items() if w}
        return AttentionRecord(self.source.token_texts(source), self.target.token_texts([*target, EOS]), arrays)

    def online(self, wait: float = 3) -> Online:
        """Translate while the source is being written, so many tokens behind: `.read(piece)` and `.end()` give new text."""
        rules = Rules(Constraints(no_repeat=self.search.no_repeat), self.search.minimum, self.suppress, self.device)
        return Online(self.model, self.source, self.target, self.search, rules, wait)


def _joined(text: str, parts: list[Result], gaps: list[str]) -> Result:
    """The answer of a split text. A score is the mean of the parts' scores, weighted by the lengths of their answers."""
    lengths, most = [len(part.logprobs) for part in parts], max(1 + len(part.alternatives) for part in parts)
    ranked = [[Alternative(p.text, p.score), *p.alternatives] if p.logprobs else [Alternative("", 0.0)] * most for p in parts]
    ranks = list(zip(*ranked))  # as many as of the part with the fewest
    texts = ["".join(one.text + gap for one, gap in zip(rank, gaps)) for rank in ranks]
    scores = [sum(one.score * n for one, n in zip(rank, lengths)) / max(1, sum(lengths)) for rank in ranks]
    best, *others = map(Alternative, texts, scores)
    notes = [f"part {i}: {warning}" for i, part in enumerate(parts, 1) for warning in part.warnings]
    notes[5:] = [f"{len(notes) - 5:,} more about its parts"] if len(notes) > 5 else []
    warnings = [f"longer than anything in training: split into {len(parts)} parts (an attention page shows the first)", *notes]
    tokens, logprobs, ids = ([x for part in parts for x in getattr(part, name)] for name in ("tokens", "logprobs", "ids"))
    return Result(text, best.text, tokens, best.score, logprobs, others, warnings, ids, parts[0].translator, parts)


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
