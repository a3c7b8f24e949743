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
    """Constraints on the output: a forced prefix, no repeated n-grams, banned ids.

    A forced token has log-probability 0, so a score counts the free tokens only (its length counts
    all, as in CTranslate2). The prefix wins over every ban: a language tag may be forced though it
    is never produced freely.
    """

    prefix: list[list[int]] | None = None
    """The tokens that each sentence starts with, possibly none."""
    no_repeat: int = 0
    """Never repeat an n-gram of this size in a hypothesis. 0: repetitions are allowed."""
    forbid: list[int] = field(default_factory=list)
    """Ids that are never produced."""

    def __post_init__(self) -> None:
        if self.no_repeat < 0:
            raise UserError(
                f"no_repeat={self.no_repeat}: must be the size of an n-gram, or 0 to allow "
                f"repetitions"
            )
        for prefix in self.prefix or []:
            if not {PAD, BOS, EOS}.isdisjoint(prefix):
                raise UserError("a forced prefix cannot contain <pad>, <bos> or <eos>")


@dataclass
class Rules:
    """Rules that every search applies to its logits."""

    demands: Constraints = field(default_factory=Constraints)
    minimum: int = 0  # the fewest tokens, <eos> not counted
    suppress: Tensor | None = None  # (V,) True for ids never produced, beside <pad> and <bos>
    device: torch.device | str = "cpu"
    bans: Tensor | None = None  # (N,) the ids never produced; None until the first call

    def __call__(self, logits: Tensor, history: Tensor, jobs: Sequence[Job], copies: int) -> Tensor:
        """Logits (R, V), at least fp32, with -inf for what may not follow `history` (R, t).

        There are `copies` rows of each job. Masking comes before normalisation, so the
        probabilities of what is left sum to one. Writes into the logits it is given.
        """
        if self.bans is None:
            self.bans = self._bans(logits.shape[1])

        at_least_fp32 = torch.promote_types(logits.dtype, torch.float32)
        logits = logits.to(at_least_fp32).index_fill_(1, self.bans, -torch.inf)  # (R, V)
        by_job = logits.view(len(jobs), copies, -1)  # (B, K, V), the same memory

        too_short = [row for row, job in enumerate(jobs) if job.age < self.minimum]
        if too_short:
            by_job[too_short, :, EOS] = -torch.inf

        if 0 < self.demands.no_repeat < history.shape[1]:
            logits[repeats(history, self.demands.no_repeat, logits.shape[1])] = -torch.inf

        for row, job in enumerate(jobs):
            if job.age < len(job.prefix):
                by_job[row] = -torch.inf
                by_job[row, :, job.prefix[job.age]] = 0.0

        return logits

    def _bans(self, vocabulary: int) -> Tensor:
        """The ids (N,) that are never produced, whatever came before."""
        if self.suppress is None:
            banned = torch.zeros(vocabulary, dtype=torch.bool)  # (V,)
        else:
            banned = self.suppress.clone()  # (V,)
        banned[[PAD, BOS, *self.demands.forbid]] = True
        return banned.nonzero().squeeze(1).to(self.device)


def repeats(history: Tensor, size: int, vocabulary: int) -> Tensor:
    """True (R, V) where a token would repeat an n-gram of `history` (R, t).

    size: of the n-gram, with the token; at most t.
    """
    grams = history.unfold(1, size, 1)  # (R, t-size+1, size)
    before = grams[..., :-1]  # (R, t-size+1, size-1)
    last = grams[..., -1]  # (R, t-size+1), -1 in the columns before the sentence began

    # The tail is empty where the size is 1, and then every n-gram matches it.
    tail = history[:, history.shape[1] - size + 1 :].unsqueeze(1)  # (R, 1, size-1)
    seen = (before == tail).all(-1) & (last >= 0)  # (R, t-size+1)

    # What was not seen goes to one column too many, so that it cannot unset what was.
    columns = torch.where(seen, last, vocabulary)  # (R, t-size+1)
    mask = torch.zeros(len(history), vocabulary + 1, dtype=torch.bool, device=history.device)
    return mask.scatter_(1, columns, True)[:, :vocabulary]
