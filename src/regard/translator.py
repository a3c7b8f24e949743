"""Text -> text: the thing a user loads."""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
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
from regard.nn import watch
from regard.pictures.page import write_page
from regard.run import Parts, Run
from regard.search import Constraints, Hypothesis, beam, greedy, sample
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import BOS, EOS, FIRST, UNK


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

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def __call__(
        self, text: str | Sequence[str], *, n_best: int = 1, prefix: str = "", sampling: Sampling | None = None
    ) -> Result | list[Result]:
        texts = [text] if isinstance(text, str) else list(text)
        results = list(self.translate(texts, n_best=n_best, prefix=prefix, sampling=sampling))
        return results[0] if isinstance(text, str) else results

    def translate(
        self, texts: Iterable[str], *, n_best: int = 1, prefix: str = "", sampling: Sampling | None = None, window: int = 512
    ) -> Iterator[Result]:
        """Answers in the order of the texts, in constant memory: `window` texts at a time are read, sorted and decoded."""
        stream, number = iter(texts), 0
        while chunk := list(islice(stream, window)):
            ids = [[*row, EOS] for row in self.source.encode_batch(chunk)]
            found: dict[int, list[Hypothesis]] = {}
            for group in self._groups([len(row) for row in ids]):
                seeds = [number + i for i in group]
                answers = self._decode([ids[i] for i in group], seeds, n_best, prefix, sampling)
                found.update(zip(group, answers, strict=True))
            for i, text in enumerate(chunk):
                yield self._result(text, ids[i], found.get(i, []))
            number += len(chunk)

    def _groups(self, lengths: list[int]) -> Iterator[list[int]]:
        """Texts of like length together, up to search.batch_tokens; an empty text (its <eos> alone) is not decoded."""
        group: list[int] = []
        for i in sorted((i for i, n in enumerate(lengths) if n > 1), key=lambda i: -lengths[i]):
            if group and lengths[group[0]] * (len(group) + 1) > self.search.batch_tokens:
                yield group
                group = []
            group.append(i)
        if group:
            yield group

    @torch.inference_mode()
    def _decode(
        self, sources: list[list[int]], seeds: list[int], n_best: int, prefix: str, sampling: Sampling | None
    ) -> list[list[Hypothesis]]:
        c, device, batch = self.search, self.device, len(sources)
        made = collate([(row, [BOS, EOS]) for row in sources])
        memory = self.model.encoder(made.source.to(device), made.source_lengths.to(device))
        state = self.model.decoder.start(memory)
        forced = self.target.encode(prefix) if prefix else []
        constraints = Constraints(prefix=[forced] * batch if forced else None, no_repeat=c.no_repeat)
        limit = [int(len(row) * c.limit_ratio) + c.limit_extra for row in sources]
        rules: dict[str, Any] = {"batch": batch, "limit": limit, "minimum": c.minimum, "constraints": constraints}
        rules |= {"suppress": self.suppress, "device": device}
        if sampling is not None:
            how = asdict(sampling)
            seed = how.pop("seed")
            own = [zlib.crc32(f"{seed} {s}".encode()) for s in seeds]
            return sample(self.model.step, state, seeds=own, n=n_best, **how, **rules)
        if c.width == 1 and n_best == 1:
            return [[found] for found in greedy(self.model.step, state, **rules)]
        width, bounds = max(c.width, n_best), {"length_penalty": c.length_penalty, "patience": c.patience}
        return beam(self.model.step, state, width=width, n_best=n_best, **bounds, **rules)

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


def load(
    run: str | Path | Run, *, checkpoint: str = "best", beam: int | None = None, device: str = "cpu", parts: Parts = None
) -> Translator:
    """Open a run for translating. parts: your own classes, where the config says custom:Name."""
    run = run if isinstance(run, Run) else Run.open(run)
    search = run.config.search if beam is None else replace(run.config.search, width=beam)
    model = run.model(checkpoint, parts).to(device)
    return Translator(model, run.source, run.target, search, seen=int(run.manifest.get("longest_source", 0)))
