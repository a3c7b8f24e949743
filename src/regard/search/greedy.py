"""Searches that follow one path: greedy, and the loop it shares with sampling."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from regard.search.constraints import Constraints, Rules
from regard.search.hypothesis import Hypothesis, S, Step, limits
from regard.text.vocabulary import BOS, EOS, PAD

Pick = Callable[[Tensor, Tensor, int], Tensor]
"""(logits (R, V), sentences (B,) still running, step) -> ids (R,)."""


@torch.no_grad()
def greedy(
    step: Step[S],
    state: S,
    *,
    batch: int,
    limit: Tensor | Sequence[int],
    minimum: int = 0,
    constraints: Constraints | None = None,
    suppress: Tensor | None = None,
    device: torch.device | str = "cpu",
) -> list[Hypothesis]:
    """The likeliest token at every step, a tie to the lower id; one hypothesis for each of the `batch` sentences.

    `limit` (B,) is the most steps of each sentence, <eos> counted; `minimum` the fewest tokens, <eos> not counted;
    `suppress` (V,) is True for ids never produced, beside <pad> and <bos>. The score is the mean log-probability.
    """
    rules = Rules(batch, constraints, suppress, minimum, torch.device(device))

    def pick(logits: Tensor, sentences: Tensor, t: int) -> Tensor:
        return logits.argmax(-1)

    return [only for [only] in follow(step, state, pick, rules, limits(limit, batch), copies=1)]


def follow(step: Step[S], state: S, pick: Pick, rules: Rules, limit: Sequence[int], copies: int) -> list[list[Hypothesis]]:
    """Let `pick` choose every token, in K = `copies` paths of each sentence, which leaves when all of its paths ended.

    `state` has K hypotheses already. The host waits for the device once a step.
    """
    batch, longest, device = len(limit), max(limit, default=0), rules.device
    tokens = torch.full((batch, copies, longest), PAD, device=device)
    logprobs = torch.zeros(batch, copies, longest, device=device)
    lengths = torch.zeros(batch, copies, dtype=torch.long, device=device)
    last_step = torch.tensor(limit, dtype=torch.long, device=device) - 1
    sentences = torch.arange(batch, device=device)
    running = torch.ones(batch, copies, dtype=torch.bool, device=device)
    ids = torch.full((batch, copies), BOS, device=device)
    for t in range(longest):
        logits, state = step(ids.flatten(), state)
        rows = sentences.repeat_interleave(copies)
        logits = rules(logits, tokens[sentences, :, :t].flatten(0, 1), rows)
        chosen = pick(logits, sentences, t)
        total = logits.logsumexp(-1)
        ids = chosen.view_as(running)
        # where every id is forbidden, the path ends unfinished, before this step
        running = running & (total != -torch.inf).view_as(running)
        tokens[sentences, :, t] = ids.where(running, PAD)
        logprob = (logits.gather(-1, chosen.unsqueeze(-1)).squeeze(-1) - total).view_as(running)
        logprobs[sentences, :, t] = logprob.where(running, 0.0)
        lengths[sentences] += running
        running = running & (ids != EOS) & (t < last_step[sentences]).unsqueeze(-1)
        keep = running.any(1).nonzero().squeeze(1)
        if len(keep) == 0:
            break
        if len(keep) < len(sentences):
            state = state.select(keep, torch.arange(copies, device=device).expand(len(keep), -1))
            sentences, running, ids = sentences[keep], running[keep], ids[keep]
    return [
        [Hypothesis.build(one[:length], its[:length]) for one, its, length in zip(*sentence)]
        for sentence in zip(tokens.tolist(), logprobs.tolist(), lengths.tolist())
    ]
