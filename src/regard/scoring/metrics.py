"""Scores of outputs against references.

`references[i]` lists the acceptable answers to `hypotheses[i]`, one or more.
"""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from regard.errors import UserError

Texts = Sequence[str]
References = Sequence[Texts]


class CorpusScore(NamedTuple):
    """The score of a corpus."""

    score: float
    """From 0 to 100."""
    signature: str
    """How sacreBLEU counted, so that scores of other people can be compared with it."""


def bleu(hypotheses: Texts, references: References, tokenize: str = "13a") -> CorpusScore:
    """BLEU (Papineni et al. 2002): overlap of one to four words in a row.

    It is 0 if no output has four words. tokenize: sacreBLEU's tokenizer; "none" if the text is
    tokenised already.
    """
    return _corpus(sacre("bleu", tokenize=tokenize), hypotheses, references)


def bleu_applies(references: References, tokenize: str = "13a") -> bool:
    """Whether BLEU says anything about answers like these.

    It says nothing where nine in ten references are single words, or none has four tokens: then it
    is 0 or a second name for exact match.
    """
    texts = [text for answers in references for text in answers]
    single_words = sum(len(text.split()) <= 1 for text in texts)
    if single_words >= 0.9 * len(texts):
        return False
    tokens_of = sacre("bleu", tokenize=tokenize).tokenizer
    return any(len(tokens_of(text).split()) >= 4 for text in texts)


def chrf(hypotheses: Texts, references: References) -> CorpusScore:
    """Character n-gram F-score (Popović 2015): kinder than BLEU to rich word endings."""
    return _corpus(sacre("chrf"), hypotheses, references)


def sentence_chrfs(hypotheses: Texts, references: References) -> list[float]:
    """chrF of each output, from 0 to 100."""
    check(hypotheses, references)
    judge = sacre("chrf")
    return [
        judge.sentence_score(text, list(answers)).score
        for text, answers in zip(hypotheses, references, strict=True)
    ]


def ter(hypotheses: Texts, references: References) -> CorpusScore:
    """Translation edit rate (Snover et al. 2006): edits and moves per 100 reference words.

    Lower is better.
    """
    return _corpus(sacre("ter"), hypotheses, references)


def sacre(name: str, **options: Any) -> Any:
    """sacreBLEU's metric of that name: bleu, chrf or ter."""
    # Imported when it is used, for it is slow to start.
    from sacrebleu import metrics

    if name == "bleu":
        options["force"] = True  # do not warn about text that is tokenised already
    return getattr(metrics, name.upper())(**options)


def _corpus(metric: Any, hypotheses: Texts, references: References) -> CorpusScore:
    """The score by a metric of sacreBLEU."""
    check(hypotheses, references)
    score = metric.corpus_score(list(hypotheses), columns(references)).score
    return CorpusScore(float(score), str(metric.get_signature()))


def columns(references: References) -> list[tuple[str | None, ...]]:
    """The first reference of every line, then the second, …, or None: as sacreBLEU wants them."""
    return list(zip_longest(*references))


def check(hypotheses: Texts, references: References, sources: Texts | None = None) -> None:
    """Refuse what cannot be scored with a clear message, before a library fails on it."""
    counts = [len(side) for side in (hypotheses, references, sources) if side is not None]
    if 0 in counts or len(set(counts)) > 1:
        raise UserError(
            f"outputs, references and sources must have the same length and not be empty; got "
            f"{counts}"
        )
    for i, answers in enumerate(references):
        if isinstance(answers, str) or not answers:
            raise UserError(
                f"output {i + 1} needs a list of at least one reference text, not {answers!r:.40}"
            )


def accuracy(predicted: ArrayLike, target: ArrayLike, ignore: int | None = None) -> float:
    """Share of the target tokens that were predicted, as ids of the same shape.

    ignore: an id that does not count, such as that of padding. nan where no token counts.

    >>> accuracy([[5, 6, 7]], [[5, 9, 0]], ignore=0)
    0.5
    """
    found = np.asarray(predicted)
    wanted = np.asarray(target)
    if found.shape != wanted.shape:
        raise UserError(
            f"predicted has the shape {found.shape} and target {wanted.shape}: they must be equal"
        )
    counted = np.ones(wanted.shape, bool) if ignore is None else wanted != ignore
    if not counted.any():
        return float("nan")
    return float((found == wanted)[counted].mean())


def exact_match(hypotheses: Texts, references: References) -> float:
    """Share of outputs, 0 to 1, that equal one of their references."""
    check(hypotheses, references)
    hits = sum(hypothesis in answers for hypothesis, answers in zip(hypotheses, references))
    return hits / len(hypotheses)


def sequence_error(hypotheses: Texts, references: References) -> float:
    """Share of outputs, 0 to 1, that equal none of their references: one minus exact match.

    Papers on pronunciation call this the word error rate, since each of their outputs is one word.
    """
    return 1.0 - exact_match(hypotheses, references)


def wer(hypotheses: Texts, references: References) -> float:
    """Word error rate: word edits to the nearest reference, per word of that reference.

    Words are separated by white space, so for phonemes written "K AE T" this is the phoneme error
    rate. It may exceed 1.
    """
    return _error_rate(word_edits(hypotheses, references))


def cer(hypotheses: Texts, references: References) -> float:
    """Character error rate: character edits to the nearest reference, per character of it.

    Spaces count. It may exceed 1.
    """
    return _error_rate(character_edits(hypotheses, references))


Sequences = Sequence[Sequence[Hashable]]
Edits = list[tuple[int, int]]
"""Of each output, the edits to its nearest reference, and the length of that reference."""


def word_edits(hypotheses: Texts, references: References) -> Edits:
    """Of each output, the word edits to its nearest reference, and the words of that."""
    check(hypotheses, references)
    return [
        _nearest(hypothesis.split(), [answer.split() for answer in answers])
        for hypothesis, answers in zip(hypotheses, references)
    ]


def character_edits(hypotheses: Texts, references: References) -> Edits:
    """Of each output, the character edits to its nearest reference, and its characters."""
    check(hypotheses, references)
    return [_nearest(*pair) for pair in zip(hypotheses, references)]


def _error_rate(lines: Edits) -> float:
    """Edits over the whole corpus, divided by the length of the references."""
    edits = sum(distance for distance, _ in lines)
    length = sum(length for _, length in lines)
    return edits / length if length else float(edits > 0)


def _nearest(hypothesis: Sequence[Hashable], answers: Sequences) -> tuple[int, int]:
    """The distance to the nearest answer, and the length of that answer."""
    # Among equally near answers the longest, so that their order does not matter.
    distance, negative_length = min(
        (edit_distance(hypothesis, answer), -len(answer)) for answer in answers
    )
    return distance, -negative_length


def edit_distance(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """The fewest insertions, deletions and substitutions that turn `a` into `b`.

    The textbook's table, a whole column at a time (Hyyrö 2003): neighbouring cells differ by at
    most one, so the bits of an integer hold a column's rises and falls, one bit for each of `b`.
    """
    places: dict[Hashable, int] = {}
    for i, y in enumerate(b):
        places[y] = places.get(y, 0) | 1 << i

    every_bit = (1 << len(b)) - 1
    last_bit = 1 << len(b) >> 1
    rises = every_bit  # from each cell of the column to the one below it
    falls = 0
    distance = len(b)
    for x in a:
        same = places.get(x, 0)
        diagonal = (((same & rises) + rises) ^ rises) | same | falls  # where it costs nothing
        row_rises = falls | (every_bit & ~(diagonal | rises))  # from the column before this one
        row_falls = rises & diagonal
        distance += bool(row_rises & last_bit) - bool(row_falls & last_bit)

        row_rises = row_rises << 1 | 1  # the first row counts the deletions of all of `a`
        row_falls <<= 1
        rises = every_bit & (row_falls | ~(diagonal | row_rises))
        falls = every_bit & row_rises & diagonal
    return distance if b else len(a)


def sentence_bleu(hypothesis: Sequence[str], reference: Sequence[str], order: int = 4) -> float:
    """BLEU of one sentence, 0 to 1, as in *Dive into Deep Learning*.

    It is exp(min(0, 1 - |ref| / |hyp|)) · Π p_n^(1/2^n) for n = 1 … order. p_n is the share of the
    output's n-grams found in the reference, each found at most as often as it is there. Orders
    longer than the output are left out.
    """
    if not hypothesis:
        return 0.0
    score = math.exp(min(0.0, 1 - len(reference) / len(hypothesis)))
    for n in range(1, min(order, len(hypothesis)) + 1):
        ours = _ngrams(hypothesis, n)
        theirs = _ngrams(reference, n)
        score *= ((ours & theirs).total() / ours.total()) ** (0.5**n)
    return score


def _ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    """How often each n words in a row occur."""
    return Counter(zip(*(words[i:] for i in range(n))))
