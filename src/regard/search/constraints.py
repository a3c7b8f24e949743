"""What may be produced next: masks over the logits, the same for every search."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

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

    prefix: list[list[int]] | None = None  # for each sentence the tokens it begins with (maybe none)
    no_repeat: int = 0  # no n-gram of this size twice in one hypothesis; 0: anything goes
    forbid: list[int] = field(default_factory=list)  # ids never produced

    def __post_init__(self) -> None:
        if self.no_repeat < 0:
            raise UserError(f"no_repeat is the size of an n-gram, or 0 for none; it cannot be {self.no_repeat}")
        if any(token in (PAD, BOS, EOS) for prefix in self.prefix or [] for token in prefix):
            raise UserError("a forced prefix cannot contain <pad>, <bos> or <eos>")


@dataclass
class Rules:
    """The keywords that every search takes, checked and ready to apply to its logits."""

    batch: int
    limit: Tensor | Sequence[int]  # (B,) the most steps of each sentence, <eos> counted
    minimum: int = 0  # the fewest tokens, <eos> not counted
    constraints: Constraints | None = None
    suppress: Tensor | None = None  # (V,) True for ids never produced, beside <pad> and <bos>
    device: torch.device | str = "cpu"

    def __post_init__(self) -> None:
        self.demands = self.constraints or Constraints()
        self.limits = torch.as_tensor(self.limit, dtype=torch.long, device=self.device)
        self.longest = max(self.limits.tolist(), default=0)
        prefix = self.demands.prefix or [[]] * self.batch
        if not self.batch == len(self.limits) == len(prefix) or (self.limits < 1).any():
            got = f"{len(prefix)} prefixes, limits {self.limits.tolist()}"
            raise UserError(f"a batch of {self.batch} sentences needs a prefix and a limit of at least 1 for each; got {got}")
        self.forced = torch.tensor(list(zip_longest(*prefix, fillvalue=-1)), device=self.device)  # (steps, B), -1: free

    def __call__(self, logits: Tensor, history: Tensor, sentences: Tensor) -> Tensor:
        """Logits (R, V) in fp32, -inf for what may not follow `history` (R, t); row r is of sentence `sentences[r]`.

        Masking comes before normalisation, so the probabilities of what is left sum to one.
        """
        vocabulary, step = logits.shape[1], history.shape[1]
        if step == 0:
            self.bans = torch.zeros(vocabulary, device=self.device)  # to add is twice as fast as to fill by a mask
            self.bans[[PAD, BOS, *self.demands.forbid]] = -torch.inf
            if self.suppress is not None:
                self.bans[self.suppress] = -torch.inf
        logits = (logits + self.bans).float()
        if step < self.minimum:
            logits[:, EOS] = -torch.inf
        if 0 < self.demands.no_repeat <= step:
            logits[repeats(history, self.demands.no_repeat, vocabulary)] = -torch.inf
        if step < len(self.forced):
            tokens = self.forced[step, sentences]
            bound = tokens >= 0
            logits[bound] = -torch.inf
            logits[bound, tokens[bound]] = 0.0
        return logits


def repeats(history: Tensor, size: int, vocabulary: int) -> Tensor:
    """True (R, V) where a token would end an n-gram of `size` that `history` (R, t), t >= size, already holds."""
    grams = history.unfold(1, size, 1)  # (R, t-size+1, size)
    tail = history[:, history.shape[1] - size + 1 :].unsqueeze(1)  # (R, 1, size-1): empty for size 1, which all match
    seen = (grams[..., :-1] == tail).all(-1)
    # what was not seen goes to one column too many, so that it cannot unset what was
    columns = torch.where(seen, grams[..., -1], vocabulary)
    mask = torch.zeros(len(history), vocabulary + 1, dtype=torch.bool, device=history.device)
    return mask.scatter_(1, columns, True)[:, :vocabulary]
