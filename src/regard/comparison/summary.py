"""A comparison in two sentences: what was compared, and from how many systems the best differs."""

import os

from regard.comparison.experiment import LOWER_IS_BETTER
from regard.comparison.outcome import Outcome
from regard.comparison.tables import shown_budget
from regard.errors import counted


def facts(outcome: Outcome) -> str:
    """What was compared and how, on a line."""
    first = outcome.systems[0].scores[0]
    systems = len(outcome.plan.systems())
    numbers = {cell.seed for cell in outcome.plan.cells}
    runs = f"{counted(systems, 'system')}, {counted(len(numbers), 'seed')} each"
    budget = shown_budget(outcome)
    better = "lower" if outcome.metric in LOWER_IS_BETTER else "higher"
    judged = (
        f"compared by {outcome.metric_name} on {counted(first.examples, 'example')} of the "
        f"{outcome.plan.split} set ({better} is better)"
    )
    equal = f"the same for all: {budget}" if budget else ""
    paths = {system.scores[0].settings.get("data", {}).get("path") for system in outcome.systems}
    data = f"data: {os.path.basename(str(*paths))}" if len(paths) == 1 and all(paths) else ""
    return " · ".join(part for part in (runs, data, equal, judged) if part)


def certainty(outcome: Outcome) -> str:
    """From how many systems the best one can be told."""
    others = len(outcome.systems) - 1
    if not others:
        return ""
    undecided = len(outcome.tied) - 1
    if others == 1:
        said = "may be chance" if undecided else "is more than chance"
        words = f"The difference between the two {said}"
    elif not undecided:
        words = f"All {others} other systems are worse by more than chance"
    elif undecided == others:
        words = f"None of the {others} other systems is worse by more than chance"
    else:
        worse = others - undecided
        words = (
            f"Of the {others} other systems, {worse} {'is' if worse == 1 else 'are'} worse by more "
            f"than chance; for {undecided} this is not decided"
        )
    return f"{words} (5 % level)."
