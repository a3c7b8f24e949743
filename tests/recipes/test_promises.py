"""What the presets promise, trained in full: minutes each. `make test-slow`"""

import pytest

import regard
from regard.recipes.demo import COURSE
from regard.recipes.reporter import Reporter

pytestmark = pytest.mark.slow


def trained(tmp_path, data, preset, **given):
    return regard.train(
        data, preset=preset, out=tmp_path / "run", reporter=Reporter(quiet=True), **given
    )


@pytest.mark.parametrize(("preset", "exact"), [("course", 0.8), ("course-tuned", 0.95)])
def test_course(tmp_path, preset, exact):
    run = trained(tmp_path, "arithmetic", preset)
    found = regard.evaluate(run, split="dev").report
    assert run.config.train.epochs <= 100
    assert found.token_accuracy >= 0.963
    assert found.exact_match >= exact


def test_course_without_positions(tmp_path):
    run = trained(tmp_path, "arithmetic", "course-tuned", model={"position": "none"})
    assert regard.evaluate(run, split="dev").report.token_accuracy < 0.60
    one, other = regard.load(run)(["123+123", "321+321"])
    assert one.text[0] == other.text[0]


def test_calculator(tmp_path):
    assert (
        regard.evaluate(trained(tmp_path, "arithmetic", "calculator")).report.exact_match >= 0.995
    )


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_demo(tmp_path, seed, threads):
    run = trained(tmp_path, "phrases", "demo", train={"seed": seed, "threads": threads})
    assert regard.evaluate(run).report.bleu >= 95
    answers = [result.text for result in regard.load(run)(COURSE)]
    assert answers == ["va !", "j'ai perdu .", "il est calme .", "je suis chez moi ."]
