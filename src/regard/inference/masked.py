"""A masked language model: fills in what is missing, and gives texts vectors."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Self

import torch
from torch import Tensor

from regard.bounds import Bounded, setting
from regard.config import SearchConfig
from regard.data.documents import text_rows
from regard.errors import UserError, counted
from regard.inference.decoding import check_texts, never_written, put
from regard.inference.placed import WORTH
from regard.inference.vectors import TextVectors, Vectors, text_vectors
from regard.inspection.look import look_at_text
from regard.models import MaskedEncoder
from regard.nn.devices import cpu_has_bf16, pick_device
from regard.nn.kernels import writable
from regard.nn.precision import at_least_single
from regard.records.attention import AttentionRecord
from regard.records.generation import Filling
from regard.records.likelihood import Likelihood
from regard.records.result import Option
from regard.text.missing import BLANK, WithMasks
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import EOS, MASK, UNK

MOST_MASKS = 500
"""Masks of a text. Each of its options has the whole text, so work and words grow with the square.
"""
WINDOW = 256
"""Texts that are read together."""


@dataclass(frozen=True)
class _Counts(Bounded):
    """Whole numbers that `fill` takes."""

    n: int = setting(5, "Tokens to list for each mask.", least=1, most=10**6)


class MaskedLanguageModel(TextVectors):
    """A trained language model that looks both ways (train.objective=masked).

    Call it with a text that has `<mask>` where something is missing, or with a list of texts. Use
    `regard.load` to make one from a run.
    """

    def __init__(
        self,
        model: MaskedEncoder,
        tokenizer: Tokenizer,
        search: SearchConfig | None = None,
        *,
        max_length: int = 0,
        auto: bool = False,
    ) -> None:
        self.model = model
        self.max_length = max_length
        """Tokens that a row had in training, at most (data.max_length); 0: unknown.

        A longer text is read in rows, as in training.
        """
        self.auto = auto
        """Whether to move to a GPU, if there is one, as soon as there is enough to do."""
        self.tokenizer = WithMasks(tokenizer)
        self.search = search or SearchConfig()
        self.suppress = never_written(tokenizer)  # (V,)
        self.suppress[EOS] = True  # which is no part of a text

    def __repr__(self) -> str:
        parameters = sum(weight.numel() for weight in self.model.parameters())
        return f"MaskedLanguageModel({counted(parameters, 'parameter')}, {self.device})"

    @property
    def device(self) -> torch.device:
        """The current device of the model."""
        return next(self.model.parameters()).device

    def to(self, device: str | torch.device) -> Self:
        """Move the model to a device: `cpu`, `cuda`, `cuda:1` or `mps`."""
        self.auto = False
        place = pick_device(str(device), "device")
        if place != self.device:
            writable(self.model)
            put(self.model, place, self._kind(place))
        return self

    def _kind(self, place: torch.device) -> torch.dtype:
        """The dtype of the weights there, by search.precision."""
        has_bf16 = place.type != "cpu" or cpu_has_bf16()
        return torch.bfloat16 if self.search.precision == "bf16" and has_bf16 else torch.float32

    def expect(self, tokens: float) -> None:
        """Announce how many tokens will be read.

        With device="auto", this moves the model to a GPU, if there is one and it is worth it.
        """
        parameters = sum(weight.numel() for weight in self.model.parameters())
        if self.auto and tokens * parameters >= WORTH:
            self.to("auto")

    def __call__(self, text: str | Sequence[str], n: int = 5) -> Filling | list[Filling]:
        """Fill in the masks of a text, or of each of a list of texts; n as in `fill`."""
        if isinstance(text, str):
            return self.fill(text, n)
        return [self.fill(one, n) for one in text]

    @torch.inference_mode()
    def fill(self, text: str, n: int = 5) -> Filling:
        """Find the tokens behind each `<mask>` of a text, each by itself.

        n: how many are listed for each mask. A mask stands for one token: a word or a part of one,
        or with text.tokenizer=characters a letter.
        """
        n = _Counts(n).n
        ids = self.tokenizer.encode(text)
        places = [place for place, id in enumerate(ids) if id == MASK]
        if not places:
            raise UserError(f"{text[:40]!r} has no {BLANK}: write it where a token is missing")
        if len(places) > MOST_MASKS:
            raise UserError(
                f"{text[:40]!r} has {len(places):,} times {BLANK}: at most {MOST_MASKS} of a text "
                f"are filled, so cut it into parts"
            )

        logits = self._logits(ids)  # (M, V)
        logits = logits.masked_fill(self.suppress.to(logits.device), -torch.inf)
        allowed = int((~self.suppress).sum())
        likeliest = logits.softmax(-1).topk(min(n, allowed))  # (M, n)
        best = dict(zip(places, likeliest.indices[:, 0].tolist()))

        options = []
        for row, place in enumerate(places):
            found = likeliest.indices[row].tolist()
            tokens = self.tokenizer.token_texts(found)
            texts = [self._filled(ids, {**best, place: id}) for id in found]
            probabilities = likeliest.values[row].tolist()
            options.append([Option(*fields) for fields in zip(tokens, probabilities, texts)])
        warnings = []
        if UNK in ids:
            warnings.append("a part of the text is not in the vocabulary")
        return Filling(text, self._filled(ids, best), options, warnings)

    def _filled(self, ids: Sequence[int], found: dict[int, int]) -> str:
        """The text of the ids, with these ids in some places."""
        return self.tokenizer.decode([found.get(place, id) for place, id in enumerate(ids)])

    def _rows(self, ids: Sequence[int]) -> Iterator[Tensor]:
        """The rows (S,) of a text, as they are read: each ends with <eos>."""
        for row in text_rows(ids, self.max_length, is_causal=False):
            yield torch.from_numpy(row[1:]).long().to(self.device)

    def _logits(self, ids: Sequence[int]) -> Tensor:
        """Logits (M, V) of the tokens behind the masks of a text."""
        found = []
        for row in self._rows(ids):
            asked = (row == MASK).nonzero().squeeze(1)  # (M',)
            if len(asked):
                found.append(self._logits_at(row[None], torch.zeros_like(asked), asked))
        return torch.cat(found)

    def _logits_at(self, rows: Tensor, numbers: Tensor, places: Tensor) -> Tensor:
        """Logits (N, V) of the tokens at places (N,) of the rows (B, S) with these numbers (N,)."""
        lengths = torch.full((len(rows),), rows.shape[1], device=self.device)  # (B,)
        states = self.model.encoder(rows, lengths).states  # (B, S, D)
        logits = self.model.output(states[numbers, places])  # (N, V)
        return logits.to(at_least_single(logits.dtype))

    def score(self, text: str) -> Likelihood:
        """The pseudo-log-likelihood of a text (Salazar et al. 2020).

        Each token is predicted from all others, with only itself masked; of a text with more than
        data.max_length tokens, from the others of its row. Neither `<eos>` nor a `<mask>` of the
        text is predicted.
        """
        [likelihood] = self.scores([text])
        if not likelihood.tokens:
            raise UserError(f"{text[:40]!r} has no tokens to predict: give a text with some")
        return likelihood

    def scores(self, texts: Iterable[str]) -> Iterator[Likelihood]:
        """The pseudo-log-likelihood of each text, in order; of an empty one, without tokens."""
        check_texts(texts, "scores")
        return self._scores(texts)

    def _scores(self, texts: Iterable[str]) -> Iterator[Likelihood]:
        stream = iter(texts)
        while chunk := list(islice(stream, WINDOW)):
            for text, ids in zip(chunk, self.tokenizer.encode_batch(chunk)):
                yield self._likelihood(text, ids)

    @torch.inference_mode()
    def _likelihood(self, text: str, ids: Sequence[int]) -> Likelihood:
        """Predict each token of a text from all others of its row."""
        targets: list[int] = []
        chosen: list[float] = []
        best: list[int] = []
        best_logprobs: list[float] = []
        for row in self._rows(ids):
            known = (row[:-1] != MASK).nonzero().squeeze(1)  # (N,)
            for places in known.split(max(1, self.search.batch_tokens // len(row))):
                if not len(places):  # all are masks
                    continue
                rows = row.repeat(len(places), 1)  # (B, S)
                numbers = torch.arange(len(places), device=self.device)  # (B,)
                rows[numbers, places] = MASK
                logprobs = self._logits_at(rows, numbers, places).log_softmax(-1)  # (B, V)
                asked = row[places]  # (B,)
                likeliest = logprobs.max(-1)
                targets += asked.tolist()
                chosen += logprobs.gather(-1, asked[:, None])[:, 0].tolist()
                best += likeliest.indices.tolist()
                best_logprobs += likeliest.values.tolist()
        return Likelihood(
            "",
            text,
            tokens=self.tokenizer.token_texts(targets),
            logprobs=chosen,
            predicted=self.tokenizer.token_texts(best),
            predicted_logprobs=best_logprobs,
            correct=[id == found for id, found in zip(targets, best)],
        )

    def _text_vectors(self, texts: Iterable[str]) -> Iterator[Vectors]:
        return text_vectors(
            self.model.encoder,
            self.tokenizer,
            texts,
            self.search.batch_tokens,
            self.device,
            self.max_length,
        )

    def look(self, text: str) -> AttentionRecord:
        """The attention weights of every layer and head, for a text that may have masks."""
        return look_at_text(self.model, self.tokenizer, self.tokenizer.encode(text))
