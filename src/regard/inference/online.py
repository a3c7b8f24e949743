"""Text while it is being written -> text: wait-k simultaneous translation (Ma et al. 2019), greedy,
nothing computed twice.
"""

import codecs
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from regard.config import SearchConfig
from regard.errors import UserError
from regard.models import Seq2Seq
from regard.models.seq2seq import Memory
from regard.models.transformer import TransformerDecoder, TransformerEncoder
from regard.search import Job, Rules
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import BOS, EOS

WORD = re.compile(r"\s*\S+(?=\s)")
"""A word is complete when white space follows it; it is cut together with what stands before it, as
the tokenizers do.
"""


def check_online(model: Seq2Seq) -> None:
    """Refuse a model that must know the whole source before it can read any of it."""
    if not model.encoder.causal:
        advice = "train one with model.causal=true (and model.wait=3)"
        raise UserError(
            f"this model reads the source from both ends, so it cannot begin before the source "
            f"has ended; {advice}"
        )


class Sentence:
    """One sentence: source tokens come in, target tokens are written as soon as `wait` + t source
    tokens are there.
    """

    def __init__(self, model: Seq2Seq, rules: Rules, wait: float) -> None:
        self.model, self.rules, self.wait = model, rules, wait
        self.tokens = [BOS]
        self.heard = 0
        self.past: tuple[Any, ...] = ()  # what each block of the encoder has read
        self.state: Any = None

    @property
    def done(self) -> bool:
        return self.tokens[-1] == EOS

    @torch.inference_mode()
    def read(self, token: int) -> None:
        """One more source token, and at most one target token."""
        if self.done:
            return
        encoder, decoder, self.heard = self.model.encoder, self.model.decoder, self.heard + 1
        assert isinstance(encoder, TransformerEncoder)
        assert isinstance(decoder, TransformerDecoder)
        states, self.past = encoder.extend(
            torch.tensor([[token]], device=self.rules.device), self.past
        )
        if self.state is None:  # what has not come cannot be seen: no other mask is needed
            self.state = replace(
                decoder.start(Memory(states, torch.ones_like(states[:, 0, 0], dtype=torch.long))),
                wait=0,
            )
        else:
            self.state = decoder.extend(self.state, states)
        if self.heard >= self.wait + len(self.tokens) - 1:
            self._write()

    @torch.inference_mode()
    def end(self, limit: int) -> None:
        """The source has ended: write the rest, up to so many tokens."""
        self.read(EOS)
        while not self.done and len(self.tokens) <= limit:
            self._write()

    def _write(self) -> None:
        history = torch.tensor([self.tokens], device=self.rules.device)
        logits, self.state = self.model.step(history[:, -1], self.state)
        logits = self.rules(logits, history, [Job(age=len(self.tokens) - 1)], 1)
        self.tokens.append(int(logits.argmax(-1)))


class Online:
    """Pieces of text in, pieces of text out; `end` ends a sentence, and the next may begin."""

    def __init__(
        self,
        model: Seq2Seq,
        source: Tokenizer,
        target: Tokenizer,
        search: SearchConfig,
        rules: Rules,
        wait: float,
    ):
        check_online(model)
        if wait < 1:
            raise UserError(
                f"wait={wait}: must be at least 1, the source tokens before the first target token"
            )
        self.model, self.source, self.target, self.search, self.rules, self.wait = (
            model,
            source,
            target,
            search,
            rules,
            wait,
        )
        self._begin()

    def _begin(self) -> None:
        self.sentence, self.rest, self.said = Sentence(self.model, self.rules, self.wait), "", ""

    def read(self, piece: str) -> str:
        """More of the source -> more of the target. A word counts when the white space after it has
        come.
        """
        self.rest += piece
        while word := WORD.match(self.rest):
            self._hear(word[0])
            self.rest = self.rest[word.end() :]
        return self._say(
            self.target.decode(self.sentence.tokens).rstrip("\ufffd")
        )  # half a character waits

    def end(self) -> str:
        """The sentence has ended -> the rest of the target."""
        self._hear(self.rest)
        if self.sentence.heard:
            self.sentence.end(
                int((self.sentence.heard + 1) * self.search.limit_ratio) + self.search.limit_extra
            )
        new = self._say(self.target.decode(self.sentence.tokens))
        self._begin()
        return new

    def _hear(self, text: str) -> None:
        for token in self.source.encode(text):
            self.sentence.read(token)

    def _say(self, text: str) -> str:
        new, self.said = text[len(self.said) :], text
        return new


def follow(online: Online, blocks: Iterable[bytes]) -> None:
    """Print the answer while the text is still being written, one sentence a line."""
    decoder, begun = codecs.getincrementaldecoder("utf-8")("replace"), False
    for block in blocks:
        *ended, rest = decoder.decode(block).replace("\r", "").split("\n")
        for line in ended:
            print(online.read(line) + online.end(), flush=True)
        print(online.read(rest), end="", flush=True)
        begun = bool(rest) or (begun and not ended)
    if begun:  # the last line may lack its end
        print(online.end(), flush=True)
