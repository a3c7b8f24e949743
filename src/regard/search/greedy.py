"""Searches that follow one path: greedy, and the loop it shares with sampling."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.search.constraints import Rules
from regard.search.hypothesis import Hypothesis, S, Step
from regard.text.vocabulary import BOS, EOS, PAD

Pick = Callable[[Tensor, Tensor, int], Tensor]  # (logits (R, V), sentences (B,) still running, step) -> ids (R,)


@torch.no_grad()
def greedy(step: Step[S], state: S, **rules: Any) -> list[Hypothesis]:
    """The likeliest token at every step, a tie to the lower id; one hypothesis for each sentence.

    `rules` are the keywords of `Rules`: batch, limit, minimum, …  The score is the mean log-probability.
    """
    return [only for [only] in follow(step, state, lambda logits, sentences, t: logits.argmax(-1), Rules(**rules), copies=1)]


def follow(step: Step[S], state: S, pick: Pick, rules: Rules, copies: int) -> list[list[Hypothesis]]:
    """Let `pick` choose every token, in K = `copies` paths of each sentence, which leaves when all of its paths ended.

    `state` has K hypotheses already. The host waits for the device once a step.
    """
    sentences = torch.arange(rules.batch, device=rules.device)
    running = torch.ones(rules.batch, copies, dtype=torch.bool, device=rules.device)
    ids, lengths = torch.full_like(running, BOS, dtype=torch.long), torch.zeros_like(running, dtype=torch.long)
    tokens = torch.full((rules.batch, copies, rules.longest), PAD, device=rules.device)
    logprobs = torch.zeros_like(tokens, dtype=torch.float)
    for t in range(rules.longest):
        logits, state = step(ids.flatten(), state)
        logits = rules(logits, tokens[sentences, :, :t].flatten(0, 1), sentences.repeat_interleave(copies))
        ids, total = pick(logits, sentences, t).view_as(running), logits.logsumexp(-1, keepdim=True)
        # where every id is forbidden, the path ends unfinished, before this step
        running = running & (total != -torch.inf).view_as(running)
        tokens[sentences, :, t] = ids.where(running, PAD)
        logprobs[sentences, :, t] = (logits.gather(-1, ids.view(-1, 1)) - total).view_as(running).where(running, 0.0)
        lengths[sentences] += running
        running = running & (ids != EOS) & (t + 1 < rules.limits[sentences]).unsqueeze(-1)
        keep = running.any(1).nonzero().squeeze(1)
        if len(keep) == 0:
            break
        if len(keep) < len(sentences):
            state = state.select(keep, torch.arange(copies, device=rules.device).expand(len(keep), -1))
            sentences, running, ids = sentences[keep], running[keep], ids[keep]
    return [
        [Hypothesis.build(one[:length], its[:length]) for one, its, length in zip(*sentence)]
        for sentence in zip(tokens.tolist(), logprobs.tolist(), lengths.tolist())
    ]
