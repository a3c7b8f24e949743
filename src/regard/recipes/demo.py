"""Train a small translator on built-in sentences in two minutes, and look at it."""

from pathlib import Path

from rich.table import Table

from regard.inference.translator import Translator, load
from regard.recipes.evaluation import Evaluation, evaluate
from regard.recipes.reporter import Reporter
from regard.recipes.training import train
from regard.runs.card import shell_word
from regard.runs.claim import Taken, numbered
from regard.runs.run import Run

COURSE = ["go .", "i lost .", "he's calm .", "i'm home ."]


def demo(out: Path | None = None) -> Path:
    """Train, translate, score, draw, and say what to try next. Returns the run's folder."""
    reporter = Reporter()
    reporter.say("Training English → French on sentences that a small built-in grammar makes up.\n")
    run = _train_beside(out or Path("runs/demo"), reporter)
    evaluation = evaluate(run)
    translator = load(run)
    reporter.console.print(_examples(evaluation, translator))

    report = evaluation.report
    reporter.say(
        f"\nBLEU {report.bleu:.1f} on {report.examples:,} sentences whose combination of noun, "
        f"verb and construction was never trained on; {report.exact_match:.0%} of them are "
        f"exactly right."
    )

    longest = max((pair.source for pair in evaluation.pairs[:50]), key=len)
    result = next(translator.translate([longest]))
    page = result.write_page(run.path / "attention.html")
    reporter.say(f"Learning curve: {run.path / 'curves.png'}")
    reporter.say(f"Attention, open in a browser: {page}")

    reporter.say("\nTry next:")
    folder = shell_word(run.path)
    reporter.say(f'  regard translate {folder} "She isn\'t tired."')
    reporter.say(f'  regard show training {folder} "{longest}"')
    reporter.say("  regard train your-pairs.tsv          # one pair a line: source TAB target")
    return run.path


def _examples(evaluation: Evaluation, translator: Translator) -> Table:
    """A table of sentences that the model has never seen, and of some that it has."""
    table = Table(
        "English",
        "French, by the model",
        "reference",
        title="\nSentences it has never seen",
        title_justify="left",
    )
    for pair, answer in list(zip(evaluation.pairs, evaluation.answers, strict=True))[:8]:
        reference = "✓ the same" if answer in pair.targets else pair.targets[0]
        table.add_row(pair.source, answer, reference)
    for result in translator.translate(COURSE):
        table.add_row(result.source, result.text, "(seen in training)")
    return table


def _train_beside(first: Path, reporter: Reporter) -> Run:
    """Train into the first folder that is free of runs/demo, runs/demo-2 …"""
    for folder in numbered(first):
        try:
            return train("phrases", preset="demo", out=folder, reporter=reporter)
        except Taken:
            continue
    raise AssertionError("numbers have no end")
