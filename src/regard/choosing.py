"""Which hypothesis to give, where the likeliest is not what is wanted: what a search cannot judge, since it knows no text."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from regard.errors import UserError
from regard.scoring.metrics import sacre
from regard.search import Hypothesis, Phrase, Words
from regard.search.lexical import LETTER
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import UNK, normalise

Weights = npt.NDArray[np.float32]


def least_risk(found: Sequence[Hypothesis], texts: Sequence[str]) -> list[Hypothesis]:
    """Samples by how much they agree with the others: the mean chrF with each, highest first (Freitag et al. 2022).

    A text that was drawn twice counts twice; it is given once, with that mean (0 to 100) as its score.
    """
    metric, kinds = sacre("chrf"), list(dict.fromkeys(texts))
    counts = np.array([texts.count(kind) for kind in kinds])
    alike = np.array([[metric.sentence_score(one, [other]).score for other in kinds] for one in kinds])
    worth = dict(zip(kinds, (alike @ counts) / counts.sum(), strict=True))
    first = {kind: found[texts.index(kind)] for kind in kinds}
    return [replace(first[kind], score=float(worth[kind])) for kind in sorted(kinds, key=lambda kind: -worth[kind])]


def covered(
    found: Sequence[Hypothesis], weights: Callable[[Hypothesis], npt.NDArray[np.float32]], beta: float
) -> list[Hypothesis]:
    """Scores with the coverage penalty β Σ_j log min(Σ_t a_tj, 1) (Wu et al. 2016, as CTranslate2 adds it); best first.

    weights: the attention (T, S) with which a hypothesis was written.
    """
    sums = (np.minimum(weights(one).sum(0), 1.0) for one in found)
    scored = [replace(one, score=one.score + beta * float(np.log(seen[seen > 0]).sum())) for one, seen in zip(found, sums)]
    return sorted(scored, key=lambda one: -one.score)


def words(tokenizer: Tokenizer, must: str | Sequence[str], forbid: str | Sequence[str], prefix: str = "") -> Words:
    """The phrases as texts and tokens; what the vocabulary cannot write, or what contradicts itself, is refused."""
    must, forbid = ([side] if isinstance(side, str) else side for side in (must, forbid))
    must, forbid = ([" ".join(normalise(text).split()) for text in texts] for texts in (must, forbid))
    if not all((*must, *forbid)):
        raise UserError("an empty text can be neither demanded nor forbidden")
    whole = tokenizer.kind == "words"
    spaced = not whole and UNK not in tokenizer.encode(" ")
    later = {text: f" {text}" if spaced and re.match(LETTER, text) else text for text in must}
    phrases = [Phrase(text, tokenizer.encode(text), tokenizer.encode(later[text])) for text in must]
    for phrase in phrases:
        if UNK in phrase.later:
            raise UserError(f"{phrase.text!r} cannot be demanded: it is not in the target's vocabulary")
    found = Words(phrases, forbid, tokenizer.decode, bounded=spaced or whole, whole=whole)
    for text in (*must, normalise(prefix)):
        if broken := found.broken(text):
            raise UserError(f"{text!r} must come, but {broken[0]!r} in it is forbidden: one of them has to go")
    return found


def unmet(demands: Words, text: str) -> list[str]:
    """What an answer does not keep, in words."""
    return [
        *(f"could not hold {phrase.text!r} within its length limit" for phrase in demands.missing(text)),
        *(f"could not avoid {phrase!r}" for phrase in dict.fromkeys(demands.broken(text))),
    ]
