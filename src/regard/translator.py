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
from regard.models import Seq2Seq
from regard.models.fixed import fits, reserve
from regard.nn import watch
from regard.nn.layers import read_only
from regard.online import Online
from regard.pictures.page import write_page
from regard.run import Parts, Run
from regard.search import Beam, Captured, Constraints, Greedy, Hypothesis, Job, Rules, Sample, Search, decode
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import BOS, EOS, FIRST, PAD, UNK


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

    def __str__(self) -> str:
        return self.text

    @cached_property
    def attention(self) -> AttentionRecord:
        """Computed when first asked for, by reading the answer once more with eyes open."""
        assert self.translator is not None
        return self.translator.look(self.source, self.ids)

    def write_page(self, path: Path) -> Path:
        """One HTML file that shows the attention."""
        seen = self.attention
        return write_page(path, seen.source, seen.target, seen.blocks, text_in=self.source, text_out=self.text)


class Translator:
    """A model with its tokenizers and search settings. Call it with a text, or a list of texts."""

    def __init__(
        self, model: Seq2Seq, source: Tokenizer, target: Tokenizer, search: SearchConfig | None = None, *, seen: int = 0
    ) -> None:
        self.model, self.source, self.target = model.eval(), source, target
        self.search = search or SearchConfig()
        self.seen = seen
        """Longest source in training, in tokens; beyond it a warning is given. 0: not known."""
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
            jobs = [Job([*ids, EOS], prefix=forced, number=i) for i, ids in enumerate(self.source.encode_batch(chunk))]
            for text, job in zip(chunk, jobs):
                job.limit = int(len(job.source) * c.limit_ratio) + c.limit_extra
                job.seed = zlib.crc32(f"{sampling.seed if sampling else 0} {text}".encode())  # whatever stands beside it
            waiting = sorted((job for job in jobs if len(job.source) > 1), key=lambda job: -len(job.source))  # the rest is empty
            for _ in self._decode(waiting, search, rules):
                pass
            for text, job in zip(chunk, jobs):
                yield self._result(text, list(job.source), job.found[:n_best])

    def _decode(self, jobs: list[Job], search: Search, rules: Rules) -> Iterator[Job]:
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

    def _result(self, text: str, ids: list[int], found: list[Hypothesis]) -> Result:
        if not found:
            return Result(text, "", [], 0.0, [], translator=self)
        best, warnings = found[0], []
        if not best.finished:
            warnings.append(f"stopped at the length limit of {len(best.tokens)} tokens (search.limit_ratio, search.limit_extra)")
        if unknown := [p.text for p in self.source.pieces(text) if p.id == UNK]:
            warnings.append(f"not in the vocabulary: {' '.join(unknown[:5])}")
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


def load(
    run: str | Path | Run, *, checkpoint: str = "best", beam: int | None = None, device: str = "cpu", parts: Parts = None
) -> Translator:
    """Open a run for translating. parts: your own classes, where the config says custom:Name."""
    run = run if isinstance(run, Run) else Run.open(run)
    search = run.config.search if beam is None else replace(run.config.search, width=beam)
    model = run.model(checkpoint, parts).to(device)
    read_only(model)
    return Translator(model, run.source, run.target, search, seen=int(run.manifest.get("longest_source", 0)))
