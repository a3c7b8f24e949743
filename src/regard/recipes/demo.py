"""Two minutes: train a small translator on built-in sentences, look at it, and say what to try
next.
"""

from pathlib import Path

from rich.table import Table

from regard.inference.translator import load
from regard.recipes.evaluation import evaluate
from regard.recipes.reporter import Reporter
from regard.recipes.training import train
from regard.runs.claim import Taken, numbered
from regard.runs.run import Run

COURSE = ["go .", "i lost .", "he's calm .", "i'm home ."]


def demo(out: Path | None = None) -> Path:
    """Train, translate, score, draw. Returns the run's folder."""
    reporter = Reporter()
    reporter.say("Training English → French on sentences that a small built-in grammar makes up.\n")
    run = _train_beside(out or Path("runs/demo"), reporter)
    found = evaluate(run)
    translator = load(run)
    table = Table(
        "English",
        "French, by the model",
        "reference",
        title="\nSentences it has never seen",
        title_justify="left",
    )
    for pair, answer in list(zip(found.pairs, found.answers, strict=True))[:8]:
        table.add_row(
            pair.source, answer, "✓ the same" if answer in pair.targets else pair.targets[0]
        )
    for result in translator.translate(COURSE):
        table.add_row(result.source, result.text, "(seen in training)")
    reporter.console.print(table)
    reporter.say(
        f"\nBLEU {found.report.bleu:.1f} on {found.report.examples:,} sentences whose combination "
        f"of noun, verb and"
        f" construction was never trained on; {found.report.exact_match:.0%} of them are exactly "
        f"right."
    )
    longest = max((pair.source for pair in found.pairs[:50]), key=len)
    page = next(translator.translate([longest])).write_page(run.path / "attention.html")
    reporter.say(
        f"Learning curve: {run.path / 'curves.png'}\nAttention, open in a browser: {page}\n\nTry "
        f"next:"
    )
    reporter.say(f'  regard translate {run.path} "{found.pairs[0].source}"')
    reporter.say(f'  regard show attention {run.path} "{longest}"')
    reporter.say("  regard train your-pairs.tsv          # one pair a line: source TAB target")
    return run.path


def _train_beside(first: Path, reporter: Reporter) -> Run:
    """Into the first folder that is free of runs/demo, runs/demo-2 …"""
    for folder in numbered(first):
        try:
            return train("phrases", preset="demo", out=folder, reporter=reporter)
        except Taken:
            continue
    raise AssertionError("numbers have no end")
