"""What may be produced next: masks over the logits, the same for every search."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.errors import UserError
from regard.text.vocabulary import BOS, EOS, PAD


@dataclass(frozen=True)
class Constraints:
    """What a caller demands of the output.

    A forced token has log-probability 0, so a score counts the free tokens only (its length counts all, as in
    CTranslate2). The prefix wins over every ban: a language tag may be forced though it is never produced freely.
    """

    prefix: list[list[int]] | None = None
    """for each sentence the tokens it begins with (maybe none)"""
    no_repeat: int = 0
    """no n-gram of this size twice in one hypothesis; 0: anything goes"""
    forbid: list[int] = field(default_factory=list)
    """ids never produced"""

    def __post_init__(self) -> None:
        if self.no_repeat < 0:
            raise UserError(f"no_repeat is the size of an n-gram, or 0 for none; it cannot be {self.no_repeat}")
        if any(token in (PAD, BOS, EOS) for prefix in self.prefix or [] for token in prefix):
            raise UserError("a forced prefix cannot contain <pad>, <bos> or <eos>")


class Rules:
    """Every ban of one search, ready to apply: constraints, suppressed ids (V,) and the minimum length."""

    def __init__(
        self, batch: int, constraints: Constraints | None, suppress: Tensor | None, minimum: int, device: torch.device
    ) -> None:
        self.constraints = constraints or Constraints()
        self.minimum = minimum
        self.suppress = suppress
        self.device = device
        self.bans: Tensor | None = None
        prefix = self.constraints.prefix or [[]] * batch
        if len(prefix) != batch:
            raise UserError(f"{len(prefix)} forced prefixes for a batch of {batch} sentences")
        self.longest = max(map(len, prefix), default=0)
        # -1 marks the free positions after a sentence's prefix
        padded = [tokens + [-1] * (self.longest - len(tokens)) for tokens in prefix]
        self.prefix = torch.tensor(padded, dtype=torch.long, device=device)

    def __call__(self, logits: Tensor, history: Tensor, sentences: Tensor) -> Tensor:
        """Logits (R, V) in fp32, -inf for what may not follow `history` (R, t); row r is of sentence `sentences[r]`.

        Masking comes before normalisation, so the probabilities of what is left sum to one.
        """
        if self.bans is None:
            self.bans = self._bans(logits.shape[-1])
        bans, step = self.bans, history.shape[1]
        if step < self.minimum:
            bans = bans.clone()
            bans[EOS] = -torch.inf
        logits = (logits + bans).float()
        if 0 < self.constraints.no_repeat <= step:
            logits = logits.masked_fill(repeats(history, self.constraints.no_repeat, logits.shape[-1]), -torch.inf)
        if step < self.longest:
            logits = force(logits, self.prefix[sentences, step])
        return logits

    def _bans(self, vocabulary: int) -> Tensor:
        """-inf (V,) for ids that are never produced, else 0: to add is twice as fast as to fill by a mask.

        <pad> and <bos> are no output of any model, so they are always among them.
        """
        used = [*self.constraints.forbid, *(token for prefix in self.constraints.prefix or [] for token in prefix)]
        strangers = [token for token in used if not 0 <= token < vocabulary]
        if strangers:
            raise UserError(f"a constraint names id {strangers[0]}, but the vocabulary has {vocabulary} ids")
        if self.suppress is not None and self.suppress.shape != (vocabulary,):
            raise UserError(f"suppress has shape {tuple(self.suppress.shape)}; the vocabulary has {vocabulary} ids")
        bans = torch.zeros(vocabulary, device=self.device)
        bans[[PAD, BOS, *self.constraints.forbid]] = -torch.inf
        return bans if self.suppress is None else bans.masked_fill(self.suppress.to(self.device), -torch.inf)


def repeats(history: Tensor, size: int, vocabulary: int) -> Tensor:
    """True (R, V) where a token would end an n-gram of `size` that `history` (R, t), t >= size, already holds."""
    grams = history.unfold(1, size, 1)  # (R, t-size+1, size)
    tail = history[:, history.shape[1] - size + 1 :].unsqueeze(1)  # (R, 1, size-1): empty for size 1, which all match
    seen = (grams[..., :-1] == tail).all(-1)
    # what was not seen goes to one column too many, so that it cannot unset what was
    columns = torch.where(seen, grams[..., -1], vocabulary)
    mask = torch.zeros(len(history), vocabulary + 1, dtype=torch.bool, device=history.device)
    return mask.scatter_(1, columns, True)[:, :vocabulary]


def force(logits: Tensor, tokens: Tensor) -> Tensor:
    """Leave `tokens` (R,) as the only choice of their rows; -1 leaves the row (R, V) as it is."""
    ids = torch.arange(logits.shape[-1], device=logits.device)
    only = torch.zeros_like(logits).masked_fill(ids != tokens.unsqueeze(-1), -torch.inf)
    return torch.where(tokens.unsqueeze(-1) >= 0, only, logits)
