import random
import time
from typing import get_args

import pytest

from regard.errors import UserError
from regard.scoring import metrics
from regard.scoring.significance import Metric, paired_bootstrap

WORDS = ["the", "a", "cat", "dog", "house", "sees", "runs", "quickly", "over", "under", "red", "blue", "big", "small"]
METRICS: tuple[Metric, ...] = get_args(Metric)


def spoil(sentences: list[str], rate: float, seed: int) -> list[str]:
    """The sentences with a share of their words replaced."""
    rng = random.Random(seed)
    return [" ".join(rng.choice(WORDS) if rng.random() < rate else w for w in s.split()) for s in sentences]


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
    there = paired_bootstrap(bad, good, REFERENCES[:100], metric=metric, samples=200)
    back = paired_bootstrap(good, bad, REFERENCES[:100], metric=metric, samples=200)
    assert there.p < 0.05
    assert back.p == there.p
    assert back.difference == -there.difference
    assert there.low <= there.difference <= there.high
    assert not there.low <= 0 <= there.high
    assert (there.difference < 0) == (metric == "ter")


def test_equally_good_systems_are_rarely_told_apart() -> None:
    low = sum(
        paired_bootstrap(spoil(TEXTS, 0.3, s), spoil(TEXTS, 0.3, s + 50), REFERENCES, samples=200).p < 0.05 for s in range(10)
    )
    assert low <= 3


def test_scores_are_those_of_the_metrics_and_the_seed_decides() -> None:
    a, b = spoil(TEXTS, 0.3, 1), spoil(TEXTS, 0.28, 2)
    start = time.perf_counter()
    one = paired_bootstrap(a, b, REFERENCES)
    assert time.perf_counter() - start < 5
    assert one.a == pytest.approx(metrics.bleu(a, REFERENCES).score)
    assert one.b == pytest.approx(metrics.bleu(b, REFERENCES).score)
    assert one == paired_bootstrap(a, b, REFERENCES)
    assert one != paired_bootstrap(a, b, REFERENCES, seed=1)


def test_mistakes_are_told_in_words() -> None:
    with pytest.raises(UserError, match="pair up"):
        paired_bootstrap(["a"], ["b", "c"], [["a"]])
