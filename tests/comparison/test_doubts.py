"""A comparison says when it is not fair or not decided, and seldom sees what is not there."""

import math
from dataclasses import replace

import numpy as np
import pytest

from regard.comparison import outcome as outcomes
from regard.comparison.doubts import doubts, verdict
from regard.comparison.outcome import Outcome

COMPARISONS = 200
ALARMS = 0.08
"""The share of comparisons of a system with itself that may be called different, at 0.05."""
EXAMPLES = 40
DRAWS = 40  # test sets that are drawn, instead of a thousand: so many comparisons take long
WORDS = ["the", "old", "cat", "sees", "a", "small", "red", "house", "near", "my", "garden", "today"]


@pytest.fixture
def few_draws(monkeypatch):
    monkeypatch.setattr(outcomes, "SAMPLES", DRAWS)


def answers_of(rng, hardness, quality):
    """A run's answers: wrong in a word where an example is too hard for it, give or take."""
    answers = []
    for number, hard in enumerate(hardness):
        words = [WORDS[(number + place) % len(WORDS)] for place in range(6)]
        if hard + 0.5 * rng.standard_normal() > quality:
            words[int(rng.integers(6))] = "dog"
        answers.append(" ".join(words))
    return answers


def compared(made_outcome, rng, metric, gap=0.0, seed_effect=0.3, luck=0.0):
    """Two systems with three seeds on the same examples; the first is better by `gap`.

    Quality and hardness have the same unit: the standard deviation of the examples' hardness.
    luck: how much of the hardness of an example is the system's own, with all of its seeds.
    """
    hardness = {name: rng.standard_normal(EXAMPLES) for name in ("one", "other")}
    for name in hardness:  # in part it is the same for both
        hardness[name] = math.sqrt(1 - luck**2) * hardness["one"] + luck * hardness[name]
    references = [[text] for text in answers_of(rng, np.full(EXAMPLES, -99.0), 0.0)]
    gaps = {"one": gap, "other": 0.0}

    def change(scores):
        quality = 0.5 + gaps[scores.system] + seed_effect * rng.standard_normal()
        if metric == "loss":
            return replace(scores, values={"loss": 2 - 0.1 * quality})
        answers = answers_of(rng, hardness[scores.system], quality)
        right = [answer == of[0] for answer, of in zip(answers, references)]
        values = {"exact_match": float(np.mean(right)), "bleu": 50.0, "chrf": 50.0}
        if metric == "token_accuracy":
            losses = [(0.0, 6.0 if one else 1.0, 6.0) for one in right]
            values[metric] = sum(row[1] for row in losses) / (6 * EXAMPLES)
            return replace(scores, values=values, answers=[], losses=losses, examples=EXAMPLES)
        if metric != "exact_match":
            values[metric] = float(scored(answers, references, metric))
        sources = [str(number) for number in range(EXAMPLES)]
        return replace(
            scores,
            values=values,
            answers=answers,
            references=references,
            sources=sources,
            examples=EXAMPLES,
        )

    return made_outcome(gaps, metric=metric, examples=1, change=change)


def scored(answers, references, metric):
    from regard.scoring import metrics

    return getattr(metrics, metric)(answers, references).score


def share_different(made_outcome, metric, count, **how):
    """The share of comparisons in which the two systems are called different."""
    rng = np.random.default_rng(2026)
    return np.mean(
        [compared(made_outcome, rng, metric, **how).pairs[0].differs for _ in range(count)]
    )


@pytest.mark.parametrize(
    ("metric", "seed_effect"),
    [
        ("exact_match", 0.3),
        ("exact_match", 0.0),  # only the examples differ in luck
        ("exact_match", 2.0),  # only the seeds do
        ("bleu", 0.3),
        ("loss", 0.3),
    ],
)
def test_false_alarms(few_draws, made_outcome, metric, seed_effect):
    """A system is compared with itself: other seeds, and examples it is lucky with or not."""
    share = share_different(made_outcome, metric, COMPARISONS, seed_effect=seed_effect)
    assert share < ALARMS


@pytest.mark.parametrize("metric", ["exact_match", "token_accuracy"])
def test_false_alarms_where_systems_are_lucky_with_different_examples(
    few_draws, made_outcome, metric
):
    """Equally good systems, each of which has examples that it always gets right."""
    share = share_different(made_outcome, metric, COMPARISONS, seed_effect=0.1, luck=1.0)
    assert share < ALARMS


@pytest.mark.parametrize("metric", ["exact_match", "bleu", "loss"])
def test_a_clear_difference_is_seen(few_draws, made_outcome, metric):
    assert share_different(made_outcome, metric, 40, gap=2.5, seed_effect=0.15) > 0.9


def test_bootstrap_over_sentences_alone_would_raise_false_alarms(few_draws, made_outcome):
    """Why seeds are needed: with one seed each, only the test examples are chance."""
    rng = np.random.default_rng(7)
    alarms = 0
    for _ in range(60):
        both = compared(made_outcome, rng, "exact_match", seed_effect=1.0)
        scores = [one for system in both.systems for one in system.scores if one.seed == 1]
        alone = Outcome(both.plan, scores).pairs[0]
        alarms += alone.p < 0.05
        assert not alone.differs
    assert alarms / 60 > 2 * ALARMS


# what is not fair


def texts_of(outcome, kind=None):
    return [doubt.text for doubt in doubts(outcome) if kind in (None, doubt.kind)]


def told(outcome, *words):
    """Whether one of the doubts has all of these words."""
    return any(all(word in text for word in words) for text in texts_of(outcome))


def steady(scores):
    """Scores of a training that has long ended to improve."""
    return replace(scores, curve=[(step, step / 10, 1.0) for step in range(0, 601, 50)])


def equal(scores):
    """The same cost for every system."""
    return steady(replace(scores, parameters=1000, seconds=60.0, steps=600, tokens=1e6))


def test_a_fair_and_decided_comparison_has_none(made_outcome):
    outcome = made_outcome({"bad": 0.1, "good": 0.95}, change=equal)
    assert texts_of(outcome) == []
    assert verdict(outcome).startswith("Take good.")


@pytest.mark.parametrize(
    ("field", "budget", "near", "far"),
    [
        ("parameters", "parameters", 1.015, 1.05),
        ("tokens", "tokens", 1.02, 1.05),
        ("steps", "steps", 1.0, 1.01),
        ("seconds", "minutes", 1.02, 1.05),
    ],
)
def test_budgets_that_were_to_be_equal(made_outcome, field, budget, near, far):
    def change(factor):
        def one(scores):
            amount = getattr(equal(scores), field)
            if scores.system == "large":
                amount = type(amount)(amount * factor)
            return replace(equal(scores), **{field: amount})

        return one

    fine = made_outcome(budget={budget: 1000}, change=change(near))
    assert not told(fine, "equal, but differ")
    assert told(made_outcome(budget={budget: 1000}, change=change(far)), "equal, but differ")
    assert not told(made_outcome(change=change(far)), "differ")  # nobody asked for it
    assert told(made_outcome(change=change(1.5)), "differ", "(large)")


def test_test_examples_that_training_has_seen(made_outcome):
    outcome = made_outcome(change=lambda one: replace(equal(one), seen_in_training=4))
    assert told(outcome, "4 test sources of 40 (10.0%)", "all systems")


def test_systems_that_were_scored_on_other_examples(made_outcome):
    def change(scores):
        sources = [f"{scores.system} {text}" for text in scores.sources]
        return replace(equal(scores), sources=sources)

    outcome = made_outcome(change=change)
    assert told(outcome, "different test examples")
    assert not outcome.pairs[0].difference.knows_examples
    assert outcome.pairs[0].difference.knows_seeds


def test_other_machines_devices_and_versions(made_outcome):
    def change(scores):
        if scores.seed != 2:
            return equal(scores)
        machine = {**scores.machine, "processor": "Abacus", "torch": "9.0"}
        return replace(equal(scores), machine=machine, device="cuda")

    outcome = made_outcome(change=change)
    assert told(outcome, "different processors: Abacus, Imaginary CPU 3000.")
    assert told(outcome, "different devices: cpu, cuda.")
    assert told(outcome, "different versions of PyTorch: 2.9.0, 9.0.")


def test_a_loss_of_other_tokens(made_outcome):
    def change(scores):
        text = {"tokenizer": scores.system}
        return replace(equal(scores), settings={"text": text, "train": {"objective": "translate"}})

    assert told(made_outcome(metric="loss", change=change), "different tokens")
    assert not told(made_outcome(metric="bleu", change=change), "different tokens")


def test_a_loss_of_other_objectives(made_outcome):
    def change(scores):
        objective = {"small": "causal", "large": "masked"}[scores.system]
        return replace(equal(scores), settings={"train": {"objective": objective}})

    outcome = made_outcome(metric="loss", has_answers=False, change=change)
    assert told(outcome, "causal, masked", "cannot be compared")


def test_runs_without_scores(made_outcome):
    outcome = made_outcome(
        {"a": 0.1, "b": 0.9, "c": 0.5},
        scored=lambda cell: cell.system != "c" and (cell.system, cell.seed) != ("a", 2),
        change=equal,
    )
    assert told(outcome, "Without scores: a (seed 2); c (seeds 1, 2, 3).")
    assert told(outcome, "Only 2 seeds")


# what is not decided


def test_a_system_that_still_improves(made_outcome):
    falling = [(step, step / 10, 2 - step / 600) for step in range(0, 601, 50)]

    def one(scores):
        return replace(equal(scores), curve=falling) if scores.system == "small" else equal(scores)

    assert told(made_outcome(change=one), "small still improves", "the others do not")
    all_of_them = made_outcome(change=lambda scores: replace(equal(scores), curve=falling))
    assert told(all_of_them, "All systems still improve")


@pytest.mark.parametrize(("seeds", "words"), [((1,), "Only 1 seed"), ((1, 2), "Only 2 seeds")])
def test_few_seeds(made_outcome, seeds, words):
    assert told(made_outcome(seeds=seeds), words)
    assert not told(made_outcome(seeds=(1, 2, 3)), "Only")


def test_systems_that_may_be_as_good(made_outcome):
    outcome = made_outcome({"a": 0.6, "b": 0.62}, change=equal)
    assert told(outcome, "may be as good as", "interval of the difference includes zero", "p = ")
    assert "these runs do not decide it" in verdict(outcome)


def test_one_seed_decides_nothing_however_far_apart_systems_are(made_outcome):
    outcome = made_outcome({"a": 0.1, "b": 0.9}, seeds=(1,), change=equal)
    assert told(outcome, "may be as good as", "one seed does not show how much seeds vary")
    assert not told(outcome, "interval of the difference includes zero")


def test_seeds_that_disagree(made_outcome):
    def change(scores):
        rank = scores.seed if scores.system == "small" else 3.5 - scores.seed
        return replace(equal(scores), values={"loss": float(rank)}, answers=[])

    outcome = made_outcome(metric="loss", change=change)
    assert told(outcome, "seeds disagree", "small with seed 1;", "large with seeds 2, 3")


def test_names_with_commas_are_quoted(made_outcome):
    outcome = made_outcome({"a, b": 0.6, "c, d": 0.62, "e, f": 0.61}, change=equal)
    assert told(outcome, "“")


def test_a_single_system_is_all_there_is(made_outcome):
    outcome = made_outcome(scored=lambda cell: cell.system == "small", change=equal)
    assert verdict(outcome) == "Only small has been scored so far."
    assert told(outcome, "Without scores: large")


def test_few_test_examples(made_outcome):
    assert told(made_outcome(examples=12), "Only 12 test examples")
    assert not told(made_outcome(examples=40), "test examples:")


def test_a_system_that_the_metric_says_nothing_about_is_left_out(made_outcome):
    def change(scores):
        is_dumb = (scores.system, scores.seed) == ("c", 2)
        return replace(scores, values={**scores.values, "bleu": None}) if is_dumb else scores

    outcome = made_outcome({"a": 0.5, "b": 0.9, "c": 0.99}, metric="bleu", change=change)
    assert [system.name for system in outcome.ranking] == ["b", "a"]
    assert told(outcome, "Left out: c", "BLEU")
    assert not told(outcome, "Without scores")


def test_texts_that_are_not_the_same_are_noticed(made_outcome):
    def change(scores):
        return replace(scores, digest=scores.system)

    assert told(made_outcome(has_answers=False, change=change), "on different test examples")


def test_times_that_read_the_same_in_minutes_are_told_apart(made_outcome):
    def change(scores):
        return replace(scores, seconds=121.0 if scores.system == "small" else 149.0)

    budget = {"minutes": 2}
    assert told(made_outcome(change=change, budget=budget), "time", "121 s (small) to 149 s")


def test_bleu_by_two_signatures(made_outcome):
    def change(scores):
        return replace(scores, signature=f"tok:{scores.system}")

    assert told(made_outcome(metric="bleu", change=change), "tok:large; tok:small")
    assert not told(made_outcome(metric="chrf", change=change), "tok:")


def test_what_only_the_number_of_pairs_leaves_open_is_probably_worse(made_outcome):
    """Seeds that vary by ten, forty behind: nobody would take that for as good."""
    means = {"best": 90.0, "wild": 45.0, "a": 10.0, "b": 10.5, "c": 11.0, "d": 11.5, "e": 12.0}
    spread = {"wild": 9.0}

    def change(scores):
        off = (scores.seed - 2) * spread.get(scores.system, 0.5)
        return replace(scores, values={"loss": -means[scores.system] + off}, answers=[])

    outcome = made_outcome(dict.fromkeys(means, 0.5), metric="loss", change=change)
    assert [one.name for one in outcome.tied] == ["best", "wild"]
    assert told(outcome, "wild is probably worse than best", "of 21 pairs")
    assert "wild is probably worse, but not for certain" in verdict(outcome)
    assert "as good" not in verdict(outcome)
    assert "trains fastest" not in verdict(outcome)
