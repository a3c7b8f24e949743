"""The report as one HTML file: no network, no script, no other files.

Every section is text made here; what comes from data, names and settings goes through `safe_html`.
"""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from regard.comparison import figures, tables
from regard.comparison.charts import Look, key, legend, safe_html
from regard.comparison.doubts import Doubt, doubts, knows_end, listed, verdict
from regard.comparison.figures import Figure, titled
from regard.comparison.outcome import Disagreement, Outcome
from regard.comparison.summary import certainty, facts
from regard.comparison.tables import Table
from regard.display.template import page_from_template

MOST_WORDS = 400
"""Of an answer whose words are compared with the reference; longer ones are shown as they are."""
MOST_NAMED = 6
"""Systems with the same answer that are named at once."""
KINDS = {"fair": "Is it fair?", "decided": "Is it certain?"}
"""What the doubts of each kind are about."""
Looks = dict[str, Look]


class _Section(NamedTuple):
    """A part of the page."""

    key: str
    title: str
    content: str
    """HTML."""


def report_page(outcome: Outcome, command: str) -> str:
    """The HTML of the report; command: the line that makes it again."""
    sections = [section for section in _sections(outcome, command) if section.content]
    contents = "".join(
        f'<li><a href="#{one.key}">{safe_html(titled(one.title))}</a></li>' for one in sections
    )
    parts = {
        "TITLE": safe_html(outcome.plan.question or outcome.plan.name),
        "FACTS": safe_html(facts(outcome)),
        "VERDICT": safe_html(verdict(outcome)),
        "SURE": safe_html(certainty(outcome)),
        "DOUBTS": _doubts(outcome),
        "CONTENTS": contents,
        "SECTIONS": "\n".join(_section(one) for one in sections),
    }
    return page_from_template("regard.comparison", "report", parts)


def _sections(outcome: Outcome, command: str) -> list[_Section]:
    """All sections in their order; one without content is left out."""
    looks = figures.looks(outcome)
    results = tables.results(outcome)
    differences = tables.differences(outcome)
    seeds = tables.seeds(outcome)
    settings = tables.settings(outcome)
    machine = tables.machine(outcome)
    quality = figures.quality(outcome)
    return [
        _Section("quality", quality.title, _figures([quality], heading=quality.title)),
        _Section("results", results.title, _table("results", results, looks)),
        _Section("differences", differences.title, _differences(outcome, differences, looks)),
        _Section("costs", "What quality costs", _figures(figures.costs(outcome))),
        _Section("against", "Quality by setting", _figures(figures.settings(outcome))),
        _Section("curves", "Learning curves", _curves(outcome)),
        _Section("lengths", "Short and long inputs", _lengths(outcome, looks)),
        _Section("answers", "Where the systems disagree most", _answers(outcome, looks)),
        _Section("settings", settings.title, _table("settings", settings, looks)),
        _Section(
            "seeds", seeds.title, _table("seeds", seeds, looks) if _has_seeds(outcome) else ""
        ),
        _Section("machine", machine.title, _table("machine", machine, looks)),
        _Section("decisions", "What was decided for this comparison", _decisions(outcome)),
        _Section("repeat", "Repeat it", _command(command)),
    ]


def _section(section: _Section) -> str:
    name = f"{section.key}-name"
    return (
        f'<section class="card" id="{section.key}" aria-labelledby="{name}">\n'
        f'<h2 id="{name}">{safe_html(titled(section.title))}</h2>\n{section.content}\n</section>'
    )


# the beginning


def _doubts(outcome: Outcome) -> str:
    """The reasons to be careful, by what they are about."""
    found = doubts(outcome)
    if not found:
        return f"<p>{_checked(outcome)}</p>"
    blocks = []
    for kind, heading in KINDS.items():
        items = "".join(_doubt(one) for one in found if one.kind == kind)
        if items:
            blocks.append(f"<h3>{heading}</h3><ul>{items}</ul>")
    return "".join(blocks)


def _checked(outcome: Outcome) -> str:
    """What was looked for and not found, and what nobody could look for."""
    every = [one for system in outcome.systems for one in system.scores]
    found_nothing = ["budgets are equal"]
    unknown = []
    if all(one.seen_in_training is not None for one in every):
        found_nothing.append("training has not seen the test examples")
    else:
        unknown.append("whether training has seen the test examples")
    if all(knows_end(one.curve) for one in every):
        found_nothing.append("no system still improves at the end")
    else:
        unknown.append("whether a system still improves at the end")
    if len(outcome.systems) > 1:
        found_nothing.append("the seeds agree on which system is best")
    words = f"Nothing was found: {listed(found_nothing)}."
    return f"{words} Not known: {listed(unknown)}." if unknown else words


def _doubt(doubt: Doubt) -> str:
    return f"<li>{safe_html(doubt.text)}</li>"


# figures


def _figures(charts: Sequence[Figure], heading: str = "") -> str:
    """Charts side by side where there is room, and one legend for all that share it.

    heading: of the section; a chart need not say the same again.
    """
    if not charts:
        return ""
    groups: list[list[Figure]] = []
    for chart in charts:
        if groups and groups[-1][0].looks == chart.looks:
            groups[-1].append(chart)
        else:
            groups.append([chart])
    return "".join(_group(group, heading) for group in groups)


def _group(charts: Sequence[Figure], heading: str) -> str:
    """Charts with the same legend. It fills the place that an odd number of them leaves free."""
    first = charts[0]
    blocks = [_figure(chart, heading) for chart in charts]
    if len(first.looks) > 1:
        is_beside = len(charts) % 2 == 1
        blocks.append(legend(first.looks, has_lines=first.has_lines, is_beside=is_beside))
    return f'<div class="figures">{"".join(blocks)}</div>'


def _figure(figure: Figure, heading: str) -> str:
    """A chart with its title above it, and what has to be said about it below."""
    note = f'<p class="note">{safe_html(figure.caption)}</p>' if figure.caption else ""
    title = f"<figcaption>{safe_html(figure.title)}</figcaption>"
    return f"<figure>{'' if figure.title == heading else title}{figure.svg}{note}</figure>"


def _curves(outcome: Outcome) -> str:
    charts = figures.curves(outcome)
    if not charts:
        return ""
    notes = []
    if any(one.has_thin for one in charts):
        notes.append("Thick lines are means of the seeds, thin lines the seeds.")
    elif _has_seeds(outcome):
        notes.append("Lines are means of the seeds.")
    if _have_other_tokens(outcome):
        notes.append(
            "The loss is that of a token, and these systems have different tokens: compare the "
            "shapes of the lines, not their heights."
        )
    note = f'<p class="note">{" ".join(notes)}</p>' if notes else ""
    return _figures(charts) + note


def _has_seeds(outcome: Outcome) -> bool:
    """Whether a system was trained more than once."""
    return any(len(system.scores) > 1 for system in outcome.systems)


def _have_other_tokens(outcome: Outcome) -> bool:
    """Whether a token, or what is predicted, is not the same in all systems."""
    return any(name.startswith("text.") or name == "train.objective" for name in outcome.differing)


def _lengths(outcome: Outcome, looks: Looks) -> str:
    chart = figures.lengths(outcome)
    table = tables.lengths(outcome)
    if chart is None or table is None:
        return ""
    return _figures([chart]) + _table("lengths", table, looks)


# tables


def _table(name: str, table: Table, looks: Looks) -> str:
    """A table in a box of its own, which scrolls where the page is narrow."""
    if not table.rows:
        return ""
    head = ""
    if any(table.columns):
        cells = "".join(f'<th scope="col">{safe_html(one)}</th>' for one in table.columns)
        head = f"<thead><tr>{cells}</tr></thead>"
    rows = "".join(_table_row(row, looks) for row in table.rows)
    note = f'<p class="note">{safe_html(table.note)}</p>' if table.note else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-labelledby="{name}-name">'
        f'<table class="{name}">{head}<tbody>{rows}</tbody></table></div>{note}'
    )


def _table_row(row: Sequence[str], looks: Looks) -> str:
    name, *values = row
    cells = "".join(f"<td><bdi>{safe_html(value)}</bdi></td>" for value in values)
    return f'<tr><th scope="row">{_system(name, looks)}</th>{cells}</tr>'


def _system(name: str, looks: Looks) -> str:
    """The name of a system with the mark that it has in all charts; other names stay alone."""
    sign = f"{key(looks[name])} " if name in looks else ""
    return f"{sign}<bdi>{safe_html(name)}</bdi>"


def _differences(outcome: Outcome, table: Table, looks: Looks) -> str:
    """The best system against each other one, then every pair."""
    if not table.rows:
        return ""
    every = tables.pairs(outcome)
    if every is None:
        return _table("differences", table, looks)
    return (
        f'{_table("differences", table, looks)}<h3 id="pairs-name">{every.title}</h3>'
        f"{_table('pairs', every, looks)}"
    )


# answers


def _answers(outcome: Outcome, looks: Looks) -> str:
    """Answers side by side, on the examples where it matters most which system one takes."""
    if not outcome.disagreements or len(outcome.systems) < 2:
        return ""
    seed = outcome.common_seed
    whose = "the first seed of each system" if seed is None else f"seed {seed}"
    examples = "".join(_example(one, looks) for one in outcome.disagreements)
    note = (
        f"Answers of {whose}. ✓: the same as a reference; ✗: not the same, though "
        f"it may be right. Underlined: words that the reference does not have there."
    )
    return f'<p class="note">{note}</p><div class="examples">{examples}</div>'


def _example(example: Disagreement, looks: Looks) -> str:
    """An example: what was asked, what would be right, and who answered what."""
    systems_of: dict[str, list[str]] = {}
    for name, answer in example.answers.items():
        systems_of.setdefault(answer, []).append(name)
    ordered = sorted(systems_of, key=lambda answer: answer not in example.references)
    items = "".join(_answer(answer, systems_of[answer], example, looks) for answer in ordered)
    references = "".join(
        f"<dt>reference</dt><dd>{_text(reference)}</dd>" for reference in example.references
    )
    return (
        f'<article class="example"><dl><dt>input</dt><dd>{_text(example.source)}</dd>{references}'
        f'</dl><ul class="answers">{items}</ul></article>'
    )


def _answer(answer: str, names: Sequence[str], example: Disagreement, looks: Looks) -> str:
    is_right = answer in example.references
    sign = "✓" if is_right else "✗"
    told = "the same as a reference" if is_right else "not the same as a reference"
    words = _text(answer) if is_right else _compared(answer, example.references)
    return (
        f'<li><span class="sign" role="img" aria-label="{told}">{sign}</span>'
        f"<div>{words} {_who(names, looks)}</div></li>"
    )


def _who(names: Sequence[str], looks: Looks) -> str:
    """The systems with the same answer; of many, how many there are."""
    listed = ", ".join(_system(name, looks) for name in names)
    if len(names) <= MOST_NAMED:
        return f'<span class="who">{listed}</span>'
    return f'<details class="who"><summary>{len(names)} systems</summary>{listed}</details>'


def _text(text: str) -> str:
    return f'<bdi dir="auto">{safe_html(text)}</bdi>' if text.strip() else "<i>nothing</i>"


def _compared(answer: str, references: Sequence[str]) -> str:
    """The answer, with those words marked that the nearest reference does not have there."""
    words = answer.split()
    if not words or len(words) > MOST_WORDS:
        return _text(answer)
    matchers = [SequenceMatcher(None, one.split(), words, autojunk=False) for one in references]
    nearest = max(matchers, key=lambda matcher: matcher.ratio())
    known = {
        place
        for block in nearest.get_matching_blocks()
        for place in range(block.b, block.b + block.size)
    }
    marked = [
        safe_html(word) if place in known else f"<mark>{safe_html(word)}</mark>"
        for place, word in enumerate(words)
    ]
    joined = re.sub("</mark> <mark>", " ", " ".join(marked))
    return f'<bdi dir="auto">{joined}</bdi>'


# the end


def _decisions(outcome: Outcome) -> str:
    items = "".join(f"<li>{safe_html(line)}</li>" for line in outcome.plan.decisions)
    return f"<ul>{items}</ul>" if items else ""


def _command(command: str) -> str:
    if not command:
        return ""
    return (
        f"<pre><code>{safe_html(command)}</code></pre>"
        f'<p class="note">Runs that are finished are not trained again. For a surer result, add '
        f"seeds to the experiment: only the new ones are trained.</p>"
    )
