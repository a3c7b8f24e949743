"""What may be produced next: masks over the logits, the same for every search."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.errors import UserError
from regard.search.hypothesis import Job
from regard.text.vocabulary import BOS, EOS, PAD


@dataclass(frozen=True)
class Constraints:
    """What a caller demands of the output.

    A forced token has log-probability 0, so a score counts the free tokens only (its length counts
    all, as in CTranslate2). The prefix wins over every ban: a language tag may be forced though it
    is never produced freely.
    """

    prefix: list[list[int]] | None = (
        None  # for each sentence the tokens it begins with (maybe none)
    )
    no_repeat: int = 0  # no n-gram of this size twice in one hypothesis; 0: anything goes
    forbid: list[int] = field(default_factory=list)  # ids never produced

    def __post_init__(self) -> None:
        if self.no_repeat < 0:
            raise UserError(
                f"no_repeat is the size of an n-gram, or 0 for none; it cannot be {self.no_repeat}"
            )
        if any(token in (PAD, BOS, EOS) for prefix in self.prefix or [] for token in prefix):
            raise UserError("a forced prefix cannot contain <pad>, <bos> or <eos>")


@dataclass
class Rules:
    """What every search applies to its logits."""

    demands: Constraints = field(default_factory=Constraints)
    minimum: int = 0  # the fewest tokens, <eos> not counted
    suppress: Tensor | None = None  # (V,) True for ids never produced, beside <pad> and <bos>
    device: torch.device | str = "cpu"
    bans: Tensor | None = None

    def __call__(self, logits: Tensor, history: Tensor, jobs: Sequence[Job], copies: int) -> Tensor:
        """Logits (R, V), -inf for what may not follow `history` (R, t); there are `copies` rows of
        each job. At least fp32.

        Masking comes before normalisation, so the probabilities of what is left sum to one. Writes
        into the logits it is given.
        """
        if self.bans is None:
            banned = (
                torch.zeros(logits.shape[1], dtype=torch.bool)
                if self.suppress is None
                else self.suppress.clone()
            )
            banned[[PAD, BOS, *self.demands.forbid]] = True
            self.bans = banned.nonzero().squeeze(1).to(self.device)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).index_fill_(
            1, self.bans, -torch.inf
        )
        each = logits.view(len(jobs), copies, -1)
        if early := [row for row, job in enumerate(jobs) if job.age < self.minimum]:
            each[early, :, EOS] = -torch.inf
        if 0 < self.demands.no_repeat < history.shape[1]:
            logits[repeats(history, self.demands.no_repeat, logits.shape[1])] = -torch.inf
        for row, job in enumerate(jobs):
            if job.age < len(job.prefix):
                each[row] = -torch.inf
                each[row, :, job.prefix[job.age]] = 0.0
        return logits


def repeats(history: Tensor, size: int, vocabulary: int) -> Tensor:
    """True (R, V) where a token would end an n-gram of `size` that `history` (R, t), t >= size,
    already holds.
    """
    grams = history.unfold(1, size, 1)  # (R, t-size+1, size)
    tail = history[:, history.shape[1] - size + 1 :].unsqueeze(
        1
    )  # (R, 1, size-1): empty for size 1, which all match
    seen = (grams[..., :-1] == tail).all(-1) & (
        grams[..., -1] >= 0
    )  # -1: before the sentence began
    # what was not seen goes to one column too many, so that it cannot unset what was
    columns = torch.where(seen, grams[..., -1], vocabulary)
    mask = torch.zeros(len(history), vocabulary + 1, dtype=torch.bool, device=history.device)
    return mask.scatter_(1, columns, True)[:, :vocabulary]
