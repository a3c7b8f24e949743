"""A report as Markdown."""

from regard.comparison import tables
from regard.comparison.doubts import doubts, verdict
from regard.comparison.outcome import Outcome
from regard.comparison.tables import Table
from regard.display import markdown


def markdown_report(outcome: Outcome, command: str) -> str:
    """The whole report, without its pictures."""
    plan = outcome.plan
    parts = [f"# {markdown(plan.question or plan.name)}", f"**{markdown(verdict(outcome))}**"]
    careful = [f"- {markdown(doubt.text)}" for doubt in doubts(outcome)]
    if careful:
        parts.append("## Be careful\n\n" + "\n".join(careful))
    every = [
        tables.results(outcome),
        tables.differences(outcome),
        tables.seeds(outcome),
        tables.lengths(outcome),
        tables.settings(outcome),
    ]
    parts += [_section(table) for table in every if table is not None and table.rows]
    if outcome.disagreements:
        parts.append(_disagreements(outcome))
    parts.append(_section(tables.machine(outcome)))
    if plan.decisions:
        told = "\n".join(f"- {markdown(line)}" for line in plan.decisions)
        parts.append(f"## What was decided for this comparison\n\n{told}")
    parts.append(f"## Repeat it\n\n```sh\n{command}\n```")
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
        lines = [f"**{markdown(one.source)}**, reference: {markdown(one.references[0])}", ""]
        for name, answer in one.answers.items():
            mark = "✓ " if answer in one.references else ""
            lines.append(f"- {markdown(name)}: {mark}{markdown(answer)}")
        blocks.append("\n".join(lines))
    return "## Where the systems disagree most\n\n" + "\n\n".join(blocks)
