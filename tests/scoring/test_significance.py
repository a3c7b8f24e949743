import random
import time
from typing import Any, get_args

import numpy as np
import pytest

from regard.errors import UserError
from regard.scoring import metrics, significance
from regard.scoring.significance import Metric, paired_bootstrap, sacre_scorer

WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "house",
    "sees",
    "runs",
    "quickly",
    "over",
    "under",
    "red",
    "blue",
    "big",
    "small",
]
METRICS: tuple[Metric, ...] = get_args(Metric)


def spoil(sentences: list[str], rate: float, seed: int) -> list[str]:
    """The sentences with a share of their words replaced."""
    rng = random.Random(seed)
    return [
        " ".join(rng.choice(WORDS) if rng.random() < rate else w for w in s.split())
        for s in sentences
    ]


RNG = random.Random(0)
TEXTS = [" ".join(RNG.choices(WORDS, k=RNG.randint(5, 15))) for _ in range(300)]
REFERENCES = [[t] for t in TEXTS]


@pytest.mark.parametrize("metric", METRICS)
def test_identical_systems_are_not_different(metric: Metric) -> None:
    system = spoil(TEXTS[:60], 0.2, 1)
    result = paired_bootstrap(system, list(system), REFERENCES[:60], metric=metric, samples=100)
    assert result.difference == result.low == result.high == 0
    assert result.p == 1


@pytest.mark.parametrize("metric", METRICS)
def test_a_clearly_better_system_is_found_either_way_round(metric: Metric) -> None:
    bad, good = spoil(TEXTS[:100], 0.5, 1), spoil(TEXTS[:100], 0.1, 2)
    there = paired_bootstrap(good, bad, REFERENCES[:100], metric=metric, samples=200)
    back = paired_bootstrap(bad, good, REFERENCES[:100], metric=metric, samples=200)
    assert there.difference == there.a - there.b
    assert (there.difference > 0) == (metric not in ("ter", "wer", "cer"))  # less is better
    assert there.p < 0.05
    assert back.p == there.p
    assert back.difference == -there.difference
    assert (-back.high, -back.low) == pytest.approx((there.low, there.high))
    assert there.low <= there.difference <= there.high
    assert not there.low <= 0 <= there.high


def test_equally_good_systems_are_rarely_told_apart() -> None:
    low = sum(
        paired_bootstrap(spoil(TEXTS, 0.3, s), spoil(TEXTS, 0.3, s + 50), REFERENCES, samples=200).p
        < 0.05
        for s in range(10)
    )
    assert low <= 3


def test_scores_are_those_of_the_metrics_and_the_seed_decides() -> None:
    a, b = spoil(TEXTS, 0.3, 1), spoil(TEXTS, 0.28, 2)
    start = time.process_time()
    one = paired_bootstrap(a, b, REFERENCES)
    assert time.process_time() - start < 5
    assert one.a == pytest.approx(metrics.bleu(a, REFERENCES).score)
    assert one.b == pytest.approx(metrics.bleu(b, REFERENCES).score)
    assert one == paired_bootstrap(a, b, REFERENCES)
    assert one != paired_bootstrap(a, b, REFERENCES, seed=1)


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
def test_the_public_way_gives_the_numbers_of_the_private_one(name: str) -> None:
    """sacreBLEU promises no statistics of a line: without them the lines of a sample are scored
    again.
    """

    class Public:
        """The metric as its documentation has it."""

        def __init__(self) -> None:
            self.metric = metrics.sacre(name)

        def corpus_score(self, *words: Any) -> Any:
            return self.metric.corpus_score(*words)

    several = [[text, *spoil([text], 0.5, i)][: 1 + i % 3] for i, text in enumerate(TEXTS[:30])]
    outputs = spoil(TEXTS[:30], 0.3, 1)
    fast = sacre_scorer(metrics.sacre(name), outputs, several)
    slow = sacre_scorer(Public(), outputs, several)
    rng = np.random.default_rng(1)
    for counts in [np.ones(30, dtype=int), *(rng.multinomial(30, [1 / 30] * 30) for _ in range(5))]:
        assert slow(counts) == pytest.approx(fast(counts), rel=1e-12)


def test_a_comparison_is_the_same_without_private_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = spoil(TEXTS[:40], 0.3, 1), spoil(TEXTS[:40], 0.2, 2)
    usual = paired_bootstrap(a, b, REFERENCES[:40], samples=30, tokenize="none")
    monkeypatch.setattr(significance, "_by_statistics", significance._by_repeated_lines)
    assert paired_bootstrap(a, b, REFERENCES[:40], samples=30, tokenize="none") == pytest.approx(
        usual
    )


def test_the_tokenizer_is_the_one_asked_for() -> None:
    texts = [f"{text}." for text in TEXTS[:40]]  # a last word and its full stop: one token or two
    a, b = spoil(texts, 0.3, 1), spoil(texts, 0.2, 2)
    references = [[text] for text in texts]
    for tokenize in ("13a", "none"):
        compared = paired_bootstrap(a, b, references, samples=10, tokenize=tokenize)
        assert compared.a == pytest.approx(metrics.bleu(a, references, tokenize).score)
        assert compared.b == pytest.approx(metrics.bleu(b, references, tokenize).score)


def test_mistakes_are_told_in_words() -> None:
    with pytest.raises(UserError, match="same length"):
        paired_bootstrap(["a"], ["b", "c"], [["a"]])


@pytest.mark.parametrize("rate", [0.105, 0.12, 0.3])
def test_p_is_about_that_of_sacrebleus_paired_test(rate: float) -> None:
    """Half of ours, which counts differences in both directions, give or take the draws."""
    from sacrebleu.significance import PairedTest

    good = spoil(TEXTS, 0.1, seed=1)
    other = spoil(TEXTS, rate, seed=2)
    systems = [("good", good), ("other", other)]
    judge = metrics.sacre("bleu", tokenize="13a", force=True)
    _, scores = PairedTest(systems, {"BLEU": judge}, [TEXTS], test_type="bs", n_samples=1000)()
    theirs = scores["BLEU"][1].p_value
    ours = paired_bootstrap(good, other, REFERENCES, metric="bleu").p
    assert ours / 2 == pytest.approx(theirs, abs=0.03)


@pytest.mark.parametrize("metric", METRICS)
def test_resampled_scores_are_those_of_the_test_set_drawn_anew(metric: Metric):
    references = [[text] for text in spoil([" ".join(WORDS)] * 30, 0.5, 1)]
    outputs = spoil([answers[0] for answers in references], 0.3, 2)
    scores = significance.resampled(outputs, references, metric=metric, samples=40)
    assert scores.shape == (40,)

    rng = np.random.default_rng(12345)  # the default of every call: systems are drawn alike
    lines = rng.integers(30, size=30).tolist()
    drawn = [outputs[line] for line in lines], [references[line] for line in lines]
    whole = significance._scorer(*drawn, metric, "13a")(np.ones(30, dtype=np.int64))
    assert scores[0] == pytest.approx(whole, abs=1e-9)


def test_resampled_scores_have_the_spread_of_the_binomial_distribution():
    """Of 400 answers of which half are right: a standard deviation of √(0.25 / 400)."""
    references = [["yes"]] * 400
    outputs = ["yes", "no"] * 200
    scores = significance.resampled(outputs, references, metric="exact_match", samples=2000)
    assert scores.mean() == pytest.approx(0.5, abs=0.003)
    assert scores.std() == pytest.approx(0.025, rel=0.1)


def test_the_difference_of_resampled_scores_is_that_of_the_paired_bootstrap():
    references = [[text] for text in spoil([" ".join(WORDS)] * 50, 0.5, 3)]
    a, b = [spoil([answers[0] for answers in references], rate, 4) for rate in (0.2, 0.4)]
    gaps = significance.resampled(a, references) - significance.resampled(b, references)
    whole = paired_bootstrap(a, b, references)
    assert np.quantile(gaps, [0.025, 0.975]) == pytest.approx([whole.low, whole.high], abs=1e-9)


@pytest.mark.parametrize("metric", METRICS)
def test_drawn_scores_lie_around_the_score_of_the_whole(metric: Metric) -> None:
    system = spoil(TEXTS, 0.3, 3)
    drawn = significance.resampled(system, REFERENCES, metric=metric, samples=100)
    of_the_whole = getattr(metrics, metric)(system, REFERENCES)
    whole = of_the_whole if isinstance(of_the_whole, float) else of_the_whole.score
    assert abs(drawn.mean() - whole) < 3 * drawn.std() / 10 + 1e-9
    assert drawn.std() > 0


def test_a_ratio_of_sums_is_drawn_as_one() -> None:
    """Errors a character, drawn line by line, are those of the metric that counts them itself."""
    system = spoil(TEXTS, 0.3, 3)
    edits, lengths = zip(*metrics.character_edits(system, REFERENCES))
    drawn = significance.resampled_ratios(edits, lengths, samples=20)
    same = significance.resampled(system, REFERENCES, metric="cer", samples=20)
    np.testing.assert_allclose(drawn, same)
