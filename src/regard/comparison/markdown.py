"""A report as Markdown."""

import re

from regard.comparison import tables
from regard.comparison.doubts import doubts, verdict
from regard.comparison.outcome import Outcome
from regard.comparison.summary import certainty, facts
from regard.comparison.tables import Table
from regard.display import markdown, plain


def markdown_report(outcome: Outcome, command: str) -> str:
    """The whole report, without its pictures; command: the line that makes it again."""
    plan = outcome.plan
    parts = [
        f"# {markdown(plan.question or plan.name)}",
        markdown(facts(outcome)),
        f"**{markdown(verdict(outcome))}**",
        markdown(certainty(outcome)),
    ]
    parts = [part for part in parts if part]
    careful = [f"- {markdown(doubt.text)}" for doubt in doubts(outcome)]
    if careful:
        parts.append("## Be careful\n\n" + "\n".join(careful))
    every = [
        tables.results(outcome),
        tables.differences(outcome),
        tables.pairs(outcome),
        tables.lengths(outcome),
        tables.settings(outcome),
        tables.seeds(outcome),
    ]
    parts += [_section(table) for table in every if table is not None and table.rows]
    if outcome.disagreements and len(outcome.systems) > 1:
        parts.append(_disagreements(outcome))
    parts.append(_section(tables.machine(outcome)))
    if plan.decisions:
        told = "\n".join(f"- {markdown(line)}" for line in plan.decisions)
        parts.append(f"## What was decided for this comparison\n\n{told}")
    if command:
        parts.append(f"## Repeat it\n\n{_code(command)}")
    return "\n\n".join(parts) + "\n"


def _section(table: Table) -> str:
    note = f"\n\n{markdown(table.note)}" if table.note else ""
    return f"## {markdown(table.title)}\n\n{_table(table)}{note}"


def _table(table: Table) -> str:
    head = [markdown(name) or " " for name in table.columns]
    rows = [[markdown(cell) for cell in row] for row in table.rows]
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _disagreements(outcome: Outcome) -> str:
    """The answers side by side where the systems disagree most."""
    blocks = []
    for one in outcome.disagreements:
        references = " / ".join(markdown(text) for text in one.references)
        lines = [f"**{markdown(one.source)}** → {references}", ""]
        for name, answer in one.answers.items():
            mark = "✓" if answer in one.references else "✗"
            lines.append(f"- {mark} {markdown(name)}: {markdown(answer)}")
        blocks.append("\n".join(lines))
    note = "✓: the same as a reference; ✗: not the same, though it may be right."
    return "\n\n".join(["## Where the systems disagree most", note, *blocks])


def _code(command: str) -> str:
    """A block of code, with a fence that is longer than any in the command."""
    longest = max((len(run) for run in re.findall("`+", command)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}sh\n{plain(command)}\n{fence}"
