"""Why a comparison may not be fair, or not decided: in words, beside the figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from regard.comparison.outcome import Outcome, PairOutcome, SystemOutcome
from regard.comparison.tables import exact_duration, shown_p
from regard.errors import counted

FEW_SEEDS = 3
FEW_EXAMPLES = 30
EQUAL_PARAMETERS = 0.02
"""How far apart numbers of parameters may be that are to be equal."""
EQUAL_TIME = 0.03
EQUAL_TOKENS = 0.03
NOT_EQUAL = 0.1
"""From which difference on it is said of what nobody wanted to be equal."""
LAST_PART = 0.1
"""The end of training, as a share of it …"""
MOST_NAMED = 6
"""Systems that a sentence names."""
STILL_IMPROVES = 0.01
"""… in which a loss falls by more than this share, if more training would help."""


Curve = Sequence[tuple[int, float, float]]
"""Steps, seconds and loss on dev."""


@dataclass(frozen=True)
class Doubt:
    """A reason to be careful with the figures."""

    kind: Literal["fair", "decided"]
    text: str


def doubts(outcome: Outcome) -> list[Doubt]:
    """All reasons to be careful, those about fairness first."""
    finders: list[Callable[[Outcome], list[Doubt]]] = [
        _missing,
        _unequal,
        _other_tokens,
        _seen,
        _other_examples,
        _other_signatures,
        _few_examples,
        _other_machines,
        _still_improving,
        _few_seeds,
        _undecided,
        _ranking_changes,
    ]
    return [doubt for find in finders for doubt in find(outcome)]


def _missing(outcome: Outcome) -> list[Doubt]:
    """Runs that failed, or were not trained yet, or that have no score of this kind."""
    if outcome.without_metric:
        names = listed(outcome.without_metric)
        return [
            Doubt(
                "fair",
                f"Left out: {names}, since {outcome.metric_name} says nothing about the answers of "
                f"some of their runs.",
            ),
            *_not_scored(outcome),
        ]
    return _not_scored(outcome)


def _not_scored(outcome: Outcome) -> list[Doubt]:
    if not outcome.missing:
        return []
    missing = [f"{name} ({_seeds(seeds)})" for name, seeds in outcome.missing.items()]
    more = f"; and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
    return [Doubt("fair", f"Without scores: {'; '.join(missing[:MOST_NAMED])}{more}.")]


def _other_tokens(outcome: Outcome) -> list[Doubt]:
    """A loss for each token, where systems split texts into different tokens."""
    if outcome.metric not in ("loss", "token_accuracy"):
        return []
    texts = [one.settings.get("text") for system in outcome.systems for one in system.scores]
    objectives = {
        one.settings.get("train", {}).get("objective")
        for system in outcome.systems
        for one in system.scores
    }
    found = []
    if any(text != texts[0] for text in texts):
        found.append(
            Doubt(
                "fair",
                f"The systems split texts into different tokens, so their {outcome.metric_name} "
                f"is the mean over different things: compare by another metric.",
            )
        )
    if len(objectives) > 1:
        found.append(
            Doubt(
                "fair",
                f"The systems learn different objectives ({', '.join(sorted(map(str, objectives)))}"
                f"), and predict different tokens: their {outcome.metric_name} cannot be compared.",
            )
        )
    return found


def _unequal(outcome: Outcome) -> list[Doubt]:
    """Parameters, tokens, steps and time that differ; more strictly what was to be equal."""
    budget = outcome.plan.budget
    quantities: list[tuple[str, str, bool, float, Callable[[float], str]]] = [
        ("parameters", "parameters", bool(budget["parameters"]), EQUAL_PARAMETERS, _count),
        ("tokens", "training tokens", bool(budget["tokens"]), EQUAL_TOKENS, _count),
        ("steps", "steps of training", bool(budget["steps"]), 0.0, _count),
        ("seconds", "time of training", bool(budget["minutes"]), EQUAL_TIME, exact_duration),
    ]
    found = []
    for field, words, is_matched, close, shown in quantities:
        amounts = [(system.mean(field), system.name) for system in outcome.systems]
        least, fewest = min(amounts)
        most, largest = max(amounts)
        if most <= 0 or (most - least) / most <= (close if is_matched else NOT_EQUAL):
            continue
        if field == "seconds" and most - least < 1:
            continue
        told = "were to be equal, but differ" if is_matched else "differ"
        if field in ("seconds",):
            told = "was to be equal, but differs" if is_matched else "differs"
        found.append(
            Doubt(
                "fair",
                f"The {words} {told}: {shown(least)} ({fewest}) to {shown(most)} ({largest}).",
            )
        )
    return found


def _count(number: float) -> str:
    return f"{number:,.0f}"


def _seen(outcome: Outcome) -> list[Doubt]:
    """Test examples that training has seen."""
    found = []
    for system in outcome.systems:
        known = [one for one in system.scores if one.seen_in_training]
        if known:
            most = max(known, key=lambda one: one.seen_in_training or 0)
            found.append((system.name, most.seen_in_training or 0, most.examples))
    if not found:
        return []
    _, seen, examples = max(found, key=lambda one: one[1])
    share = seen / max(1, examples)
    is_all = len(found) == len(outcome.systems)
    who = "all systems" if is_all else listed([name for name, _, _ in found])
    return [
        Doubt(
            "fair",
            f"{counted(seen, 'test source')} of {examples:,} ({share:.1%}) also "
            f"{'occurs' if seen == 1 else 'occur'} in the training data of {who}: learning by "
            f"heart counts there.",
        )
    ]


def _other_examples(outcome: Outcome) -> list[Doubt]:
    if outcome.same_examples:
        return []
    return [
        Doubt(
            "fair",
            "The systems were scored on different test examples, so only the means of their seeds "
            "can be compared.",
        )
    ]


def _other_signatures(outcome: Outcome) -> list[Doubt]:
    """BLEU that was computed in different ways."""
    every = [one.signature for system in outcome.systems for one in system.scores]
    signatures = sorted({signature for signature in every if signature})
    if outcome.metric != "bleu" or len(signatures) < 2:
        return []
    return [
        Doubt("fair", f"BLEU was not computed in the same way for all: {'; '.join(signatures)}.")
    ]


def _few_examples(outcome: Outcome) -> list[Doubt]:
    fewest = min(one.examples for system in outcome.systems for one in system.scores)
    if fewest >= FEW_EXAMPLES:
        return []
    return [
        Doubt(
            "decided",
            f"Only {counted(fewest, 'test example')}: what other examples would change is hardly "
            f"known; {FEW_EXAMPLES} or more are needed.",
        )
    ]


def _other_machines(outcome: Outcome) -> list[Doubt]:
    """Runs from different machines or versions: their times cannot be compared."""
    every = [one for system in outcome.systems for one in system.scores]
    differing = [
        ("on different devices", {one.device for one in every}),
        ("on different processors", {str(one.machine.get("processor")) for one in every}),
        ("with different numbers of threads", {str(one.machine.get("threads")) for one in every}),
        ("with different versions of PyTorch", {str(one.machine.get("torch")) for one in every}),
        ("with different versions of Regard", {str(one.machine.get("regard")) for one in every}),
    ]
    return [
        Doubt("fair", f"The systems were trained {words}: {', '.join(sorted(values))}.")
        for words, values in differing
        if len(values) > 1
    ]


def _still_improving(outcome: Outcome) -> list[Doubt]:
    """Systems whose loss on dev still falls at the end of training."""
    names = [system.name for system in outcome.systems if _improves(system)]
    if not names:
        return []
    if len(names) == len(outcome.systems) > 1:
        return [
            Doubt(
                "decided",
                "All systems still improve at the end of training: with more of it, the order may "
                "be another one.",
            )
        ]
    still = "still improves" if len(names) == 1 else "still improve"
    return [
        Doubt(
            "fair",
            f"{listed(names)} {still} at the end of training, the others do not: a longer "
            f"training may turn the order round.",
        )
    ]


def _improves(system: SystemOutcome) -> bool:
    """Whether most seeds of a system get better in the last part of their training."""
    votes = []
    for one in system.scores:
        if knows_end(one.curve):
            last = one.curve[-1][2]
            votes.append(last < (1 - STILL_IMPROVES) * min(_before_the_end(one.curve)))
    return sum(votes) * 2 > len(votes) > 0


def knows_end(curve: Curve) -> bool:
    """Whether a learning curve tells if its end still improves."""
    return len(curve) >= 3 and bool(_before_the_end(curve))


def _before_the_end(curve: Curve) -> list[float]:
    """The losses before the last part of a learning curve."""
    last_step = curve[-1][0]
    return [loss for step, _, loss in curve if step <= (1 - LAST_PART) * last_step]


def _few_seeds(outcome: Outcome) -> list[Doubt]:
    fewest = min(len(system.scores) for system in outcome.systems)
    if fewest >= FEW_SEEDS:
        return []
    reason = "chance between seeds is unknown" if fewest == 1 else "chance is hardly known"
    return [
        Doubt(
            "decided",
            f"Only {counted(fewest, 'seed')}: {reason}; three or more are needed.",
        )
    ]


def _undecided(outcome: Outcome) -> list[Doubt]:
    """Systems that may be as good as the best, and those that are only probably worse."""
    best = quoted(outcome.best.name)
    found = []
    equals = _maybe_equal(outcome)
    if equals:
        knows_seeds = all(
            outcome.pair(outcome.best.name, name).difference.knows_seeds for name in equals
        )
        reason = "the 95 % interval of the difference includes zero"
        if not knows_seeds:
            reason = "one seed does not show how much seeds vary"
        found.append(
            f"{listed(equals)} may be as good as {best}, which has the best mean: {reason} "
            f"({_told_p(outcome, equals)})."
        )
    worse = _probably_worse(outcome)
    if worse:
        found.append(
            f"{listed(worse)} {'is' if len(worse) == 1 else 'are'} probably worse than {best}, but "
            f"of {len(outcome.pairs)} pairs some look as different by chance "
            f"({_told_p(outcome, worse)})."
        )
    return [Doubt("decided", text) for text in found]


def _maybe_equal(outcome: Outcome) -> list[str]:
    """The systems whose difference to the best may well be none."""
    return [
        one.name for one in outcome.tied[1:] if _is_open(outcome.pair(outcome.best.name, one.name))
    ]


def _probably_worse(outcome: Outcome) -> list[str]:
    """The systems that would be called worse if there were no others."""
    equals = _maybe_equal(outcome)
    return [one.name for one in outcome.tied[1:] if one.name not in equals]


def _is_open(pair: PairOutcome) -> bool:
    """Whether these runs leave open which of two systems is better."""
    gap = pair.difference
    return gap.low <= 0 <= gap.high or not gap.knows_seeds


def _told_p(outcome: Outcome, names: list[str]) -> str:
    """The p-values of these systems against the best, for a person."""
    pairs = [(name, outcome.pair(outcome.best.name, name)) for name in names[:MOST_NAMED]]
    told = "; ".join(f"{name}: p {shown_p(pair.p, '= ')}" for name, pair in pairs)
    return f"{told}, corrected for the number of pairs"


def _ranking_changes(outcome: Outcome) -> list[Doubt]:
    """Seeds that put another system first."""
    seeds = {one.seed for system in outcome.systems for one in system.scores}
    firsts: dict[str, list[int]] = {}
    for seed in sorted(seeds):
        scored = [
            (outcome.sign * float(one.values[outcome.metric] or 0.0), system.name)
            for system in outcome.systems
            for one in system.scores
            if one.seed == seed
        ]
        firsts.setdefault(max(scored)[1], []).append(seed)
    if len(firsts) < 2:
        return []
    told = "; ".join(f"{name} with {_seeds(of)}" for name, of in firsts.items())
    return [Doubt("decided", f"The seeds disagree about which system is best: {told}.")]


def _seeds(seeds: list[int]) -> str:
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"


def quoted(name: str) -> str:
    """A name for a sentence, in which a comma of its own would not be seen as one."""
    return f"“{name}”" if "," in name else name


def listed(names: list[str]) -> str:
    """Names for a sentence: a, b and c."""
    if any("," in name for name in names):
        names = [f"“{name}”" for name in names]
    if len(names) > MOST_NAMED:
        return f"{', '.join(names[: MOST_NAMED - 1])} and {len(names) - MOST_NAMED + 1} more"
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def verdict(outcome: Outcome) -> str:
    """Which system to take, and how sure that is, in a sentence or two."""
    best = outcome.best
    if len(outcome.systems) == 1:
        return f"Only {best.name} has been scored so far."
    score = outcome.shown_spread(best.spread(outcome.metric))
    name = quoted(best.name)
    lead = f"{name} has the best {outcome.metric_name}: {score}."
    if len(outcome.tied) == 1:
        second = outcome.pair(best.name, outcome.ranking[1].name)
        gap = outcome.shown(abs(second.difference.difference))
        return (
            f"Take {name}. {lead} {quoted(outcome.ranking[1].name)} is next, {gap} behind "
            f"(p {shown_p(second.p, '= ')})."
        )
    equals = _maybe_equal(outcome)
    worse = _probably_worse(outcome)
    words = lead
    if equals:
        words += f" But {listed(equals)} may be as good: these runs do not decide it."
    if worse:
        is_or_are = "is" if len(worse) == 1 else "are"
        words += f" {listed(worse)} {is_or_are} probably worse, but not for certain."
    open_ones = [one for one in outcome.tied if one is best or one.name in equals]
    cheapest = min(open_ones, key=lambda one: one.mean("seconds"))
    if cheapest.mean("seconds") > (1 - NOT_EQUAL) * best.mean("seconds"):
        return f"Take {name}: nothing is better. {words}"
    times = f"{exact_duration(cheapest.mean('seconds'))} instead of "
    times += exact_duration(best.mean("seconds"))
    return f"{words} Of these, {quoted(cheapest.name)} trains fastest ({times})."
