"""Text -> text: the thing a user loads."""

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

from regard.config import SearchConfig
from regard.data.batches import collate
from regard.errors import UserError
from regard.models import Seq2Seq
from regard.models.fixed import fits, reserve
from regard.nn import watch
from regard.nn.layers import read_only
from regard.pictures.page import write_page
from regard.run import Parts, Run
from regard.search import Beam, Captured, Constraints, Greedy, Job, Rules, Sample, Search, decode
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import BOS, EOS, FIRST, PAD, UNK, normalise
from regard.trust import cut, overlooked, stuck


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
            return self.parts[0].write_page(path)
        seen = self.attention
        return write_page(path, seen.source, seen.target, seen.blocks, text_in=self.source, text_out=self.text)


@dataclass(eq=False)
class Part(Job):
    """A text, or a part of a long one, to be decoded."""

    text: str = ""
    gap: str = ""  # the white space between this part and the next
    notes: list[str] = field(default_factory=list)


class Translator:
    """A model with its tokenizers and search settings. Call it with a text, or a list of texts."""

    def __init__(
        self, model: Seq2Seq, source: Tokenizer, target: Tokenizer, search: SearchConfig | None = None, *, seen: int = 0,
        characters: str = "",
    ) -> None:  # fmt: skip
        self.model, self.source, self.target = model.eval(), source, target
        self.search = search or SearchConfig()
        self.seen = seen
        """Longest source in training, in tokens; beyond it a text is split, or a warning given. 0: not known."""
        self.characters = frozenset(characters)
        """All that stood in a source in training; none: not known."""
        self.suppress = torch.arange(target.size) < FIRST
        self.suppress[[EOS]] = False
        self._captured: dict[tuple[str, int], Captured] = {}

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def __call__(
        self, text: str | Sequence[str], *, n_best: int = 1, prefix: str = "", sampling: Sampling | None = None
    ) -> Result | list[Result]:
        texts = [text] if isinstance(text, str) else list(text)
        results = list(self.translate(texts, n_best=n_best, prefix=prefix, sampling=sampling))
        return results[0] if isinstance(text, str) else results

    @torch.inference_mode()
    def translate(
        self, texts: Iterable[str], *, n_best: int = 1, prefix: str = "", sampling: Sampling | None = None, window: int = 1024
    ) -> Iterator[Result]:
        """Answers in the order of the texts, in constant memory: `window` texts at a time are read, sorted and decoded."""
        stream, c = iter(texts), self.search
        search = self._search(n_best, sampling)
        forced = self.target.encode(prefix) if prefix else []
        rules = Rules(Constraints(no_repeat=c.no_repeat), c.minimum, self.suppress, self.device)
        while chunk := list(islice(stream, window)):
            rows = [self._parts(text, ids) for text, ids in zip(chunk, self.source.encode_batch(chunk))]
            for parts in rows:
                next((part for part in parts if len(part.source) > 1), parts[0]).prefix = forced
            jobs = [part for parts in rows for part in parts]
            for job in jobs:
                job.limit = int(len(job.source) * c.limit_ratio) + c.limit_extra
                job.seed = zlib.crc32(
                    f"{sampling.seed if sampling else 0} {job.text}".encode(errors="replace")
                )  # whatever stands beside it
            waiting = sorted((job for job in jobs if len(job.source) > 1), key=lambda job: -len(job.source))  # the rest is empty
            for _ in self._decode(waiting, search, rules):
                pass
            self._free(waiting, search, rules)
            for text, parts in zip(chunk, rows):
                results = [self._result(part, n_best) for part in parts]
                yield results[0] if len(parts) == 1 else _joined(text, results, [part.gap for part in parts])

    def _parts(self, text: str, ids: list[int]) -> list[Part]:
        """The text whole, or split where it is longer than anything in training."""
        long, most = self.search.split and 0 < self.seen <= len(ids), max(self.search.batch_tokens, self.seen)
        cuts, rows = [(text, "")], [ids]
        if long and len(found := cut(text, lambda some: [*map(len, self.source.encode_batch(some))], self.seen - 1, most)) > 1:
            cuts, rows = found, self.source.encode_batch([part for part, _ in found])
        parts = [Part([*row, EOS], text=part, gap=gap) for row, (part, gap) in zip(rows, cuts)]
        for part in parts if long else ():
            if len(part.source) > most + 1:
                part.notes = [f"not answered: {len(part.source):,} tokens without a space, over search.batch_tokens={most:,}"]
                part.source = [EOS]
        return parts

    def _free(self, jobs: list[Part], search: Search, rules: Rules) -> None:
        """Decode again what is stuck, with just enough no_repeat to break its loop; the new answer counts if it is free."""
        units = {job: unit for job in jobs if (unit := stuck(job.source, job.found[0].tokens, job.found[0].logprobs))}
        sizes = {job: max(4, len(unit) + 1) for job, unit in units.items() if not rules.demands.no_repeat}
        for job, unit in units.items():
            job.notes.append(f"repeats {self.target.decode(unit)!r} over and over")
        for size in set(sizes.values()):
            again = {job: replace(job, age=0, led=False, ended=[], found=[]) for job in sizes if sizes[job] == size}
            for _ in self._decode([*again.values()], search, replace(rules, demands=Constraints(no_repeat=size))):
                pass
            for job, new in again.items():
                caught = stuck(new.source, new.found[0].tokens, new.found[0].logprobs)
                job.found = job.found if caught else new.found
                job.notes[-1] += f": decoded again with search.no_repeat={size}{', in vain' if caught else ''}"

    def _decode(self, jobs: Sequence[Job], search: Search, rules: Rules) -> Iterator[Job]:
        """By graphs where there is a GPU and nothing is demanded that they do not know."""
        bare = not rules.demands.no_repeat and not any(job.prefix for job in jobs) and not isinstance(search, Sample)
        if self.device.type != "cuda" or not bare or not fits(self.model):
            return decode(self.model.step, self._begin, jobs, search, rules, self.search.batch_tokens)
        wanted = search if isinstance(search, Beam) else Beam(1)
        key = repr(wanted), rules.minimum
        if key not in self._captured:
            banned = self.suppress.clone()
            banned[[PAD, BOS]] = True
            begin = partial(reserve, self.model)
            self._captured[key] = Captured(begin, self.model.step, wanted, banned.to(self.device), rules.minimum)
        return self._captured[key].decode(jobs, self.search.batch_tokens)

    def _search(self, n_best: int, sampling: Sampling | None) -> Search:
        c = self.search
        if sampling is not None:
            return Sample(n_best, sampling.temperature, sampling.top_k, sampling.top_p)
        if c.width == 1 and n_best == 1:
            return Greedy()
        return Beam(max(c.width, n_best), n_best, c.length_penalty, c.patience)

    def _begin(self, jobs: Sequence[Job]) -> Any:
        made = collate([(job.source, [BOS, EOS]) for job in jobs])
        return self.model.decoder.start(self.model.encoder(made.source.to(self.device), made.source_lengths.to(self.device)))

    def _result(self, part: Part, n_best: int) -> Result:
        text, ids, found, warnings = part.text, part.source, part.found[:n_best], part.notes
        if not found:
            return Result(text, "", [], 0.0, [], [], warnings, translator=self)
        best = found[0]
        if not best.finished:
            warnings.append(f"stopped at the length limit of {len(best.tokens)} tokens (search.limit_ratio, search.limit_extra)")
        if unknown := [p.text for p in self.source.pieces(text) if p.id == UNK] if UNK in ids else []:
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
    run: str | Path | Run, *, checkpoint: str = "best", beam: int | None = None, device: str = "cpu", parts: Parts = None
) -> Translator:
    """Open a run for translating. parts: your own classes, where the config says custom:Name."""
    run = run if isinstance(run, Run) else Run.open(run)
    search = run.config.search if beam is None else replace(run.config.search, width=beam)
    model = run.model(checkpoint, parts).to(device)
    read_only(model)
    seen, characters = run.manifest.get("longest_source", 0), run.manifest.get("characters", "")
    return Translator(model, run.source, run.target, search, seen=seen, characters=characters)
