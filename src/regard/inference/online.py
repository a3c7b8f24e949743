"""Translation of a text while it is being written: wait-k (Ma et al. 2019).

It is greedy, and computes nothing twice.
"""

import codecs
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from regard.bounds import shown
from regard.config import SearchConfig
from regard.display import say_answer
from regard.errors import UserError
from regard.models import Seq2Seq
from regard.search import Job, Rules
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import BOS, EOS

WORD = re.compile(r"\s*\S+(?=\s)")
"""A word is complete when white space follows it.

It is cut together with what stands before it, as the tokenizers do.
"""


def check_online(model: Seq2Seq) -> None:
    """Refuse a model that must know the whole source before it can read any of it."""
    if not model.encoder.causal:
        raise UserError(model.encoder.needs_end)


class Sentence:
    """One sentence, whose target is written while its source tokens come in.

    Target token t (from 0) is written as soon as `wait` + t source tokens are there. limit: the
    most target tokens. 0: any number.
    """

    def __init__(self, model: Seq2Seq, rules: Rules, wait: float, limit: int = 0) -> None:
        self.model = model
        self.rules = rules
        self.wait = wait
        self.limit = limit
        self.tokens = [BOS]  # of the target
        self.heard = 0  # source tokens
        self.past: Any = None  # what the encoder has read
        self.state: Any = None  # the decoder's; None before the first source token

    @property
    def done(self) -> bool:
        """Whether <eos> was written, or all tokens that may be."""
        return self.tokens[-1] == EOS or len(self.tokens) - 1 == self.limit > 0

    @torch.inference_mode()
    def read(self, token: int) -> None:
        """One more source token, and at most one target token."""
        if self.done:
            return

        decoder = self.model.decoder
        self.heard += 1
        source = torch.tensor([[token]], device=self.rules.device)  # (1, 1)
        memory, self.past = self.model.encoder.extend(source, self.past)  # of one state (1, 1, D)
        if self.state is None:
            # What has not come cannot be seen: no mask of wait-k is needed.
            self.state = replace(decoder.start(memory), wait=0)
        else:
            self.state = decoder.extend(self.state, memory)

        if self.heard >= self.wait + len(self.tokens) - 1:
            self._write()

    @torch.inference_mode()
    def end(self, limit: int) -> None:
        """Write the rest, up to `limit` tokens: the source has ended."""
        self.read(EOS)
        while not self.done and len(self.tokens) <= limit:
            self._write()

    def _write(self) -> None:
        """Add the likeliest token to the target."""
        history = torch.tensor([self.tokens], device=self.rules.device)  # (1, t)
        logits, self.state = self.model.step(history[:, -1], self.state)  # (1, V)
        job = Job(age=len(self.tokens) - 1)
        logits = self.rules(logits, history, [job], 1)  # (1, V)
        self.tokens.append(int(logits.argmax(-1)))


class Online:
    """Simultaneous translation: takes pieces of the source and returns pieces of the answer.

    Made by `translator.online(wait=3)`. After `end()`, the next sentence may start.
    """

    def __init__(
        self,
        model: Seq2Seq,
        source: Tokenizer,
        target: Tokenizer,
        search: SearchConfig,
        rules: Rules,
        wait: float,
    ) -> None:
        check_online(model)
        if isinstance(wait, bool) or not isinstance(wait, int | float) or not wait >= 1:
            raise UserError(
                f"wait={shown(wait)}: must be a number of at least 1 (source tokens to read before "
                f"the first target token)"
            )
        self.model = model
        self.source = source
        self.target = target
        self.search = search
        self.rules = rules
        self.wait = wait
        self._begin()

    def _begin(self) -> None:
        """Be ready for the next sentence."""
        self.sentence = Sentence(self.model, self.rules, self.wait, self.search.limit)
        self.rest = ""  # of the source, whose last word is not complete yet
        self.said = ""  # the target, as far as it was given out

    def read(self, piece: str) -> str:
        """Read more of the source and return the new part of the answer.

        A word is read once it is followed by whitespace.
        """
        self.rest += piece
        while word := WORD.match(self.rest):
            self._hear(word[0])
            self.rest = self.rest[word.end() :]

        text = self.target.decode(self.sentence.tokens)
        return self._say(text.rstrip("\ufffd"))  # half a character waits

    def end(self) -> str:
        """End the sentence and return the rest of the answer."""
        self._hear(self.rest)
        if self.sentence.heard:
            length = self.sentence.heard + 1  # with <eos>
            self.sentence.end(self.search.most_tokens(length))

        new = self._say(self.target.decode(self.sentence.tokens))
        self._begin()
        return new

    def _hear(self, text: str) -> None:
        """Give the tokens of a text to the sentence."""
        for token in self.source.encode(text):
            self.sentence.read(token)

    def _say(self, text: str) -> str:
        """What is new in the target, of which `text` is all that there is."""
        new = text[len(self.said) :]
        self.said = text
        return new


def follow(online: Online, blocks: Iterable[bytes]) -> None:
    """Print the answer while the text is still being written, one sentence a line."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    begun = False  # whether something of a line without an end has come
    for block in blocks:
        *ended, rest = decoder.decode(block).replace("\r", "").split("\n")
        for line in ended:
            say_answer(online.read(line) + online.end(), flush=True)
        say_answer(online.read(rest), end="", flush=True)
        begun = bool(rest) or (begun and not ended)

    if begun:  # the last line may lack its end
        say_answer(online.end(), flush=True)
