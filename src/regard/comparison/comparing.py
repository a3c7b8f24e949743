"""An experiment in, a report out: plan the runs, train and score what is missing, write it down."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.comparison.cells import Plan, fingerprint, identity, plan
from regard.comparison.code import Code, code_of
from regard.comparison.folder import LOCK, PLAN, Folder
from regard.comparison.markdown import markdown_report
from regard.comparison.notebook import NotebookOutcome
from regard.comparison.outcome import Outcome
from regard.comparison.page import report_page
from regard.comparison.progress import Board
from regard.comparison.reading import read_experiment
from regard.comparison.running import failure, missing_runs, run_all, run_here, usual_jobs
from regard.display import json_text, shell_word
from regard.errors import UserError
from regard.files import disk_faults_told, write_text
from regard.files.holder import clear, holder, sign
from regard.files.lock import lock
from regard.models.parts import Parts
from regard.recipes.reporter import Reporter

HOME = Path("comparisons")
"""Where comparisons go if nobody names a folder."""


def compare(
    experiment: str | Path | Mapping[str, Any],
    *,
    out: str | Path | None = None,
    jobs: int | None = None,
    parts: Parts = None,
    reporter: Reporter | None = None,
) -> Outcome:
    """Compare systems fairly: train and score every system with every seed, and say who wins.

    `experiment` is a TOML file, a dict of the same form, or the folder of a comparison that was
    stopped. Runs go on where they stopped, and those that are finished are not trained again. Then
    the folder holds report.html, report.md and report.json.

    jobs: how many runs are trained side by side; None: one for each core, or one on a GPU.
    parts: classes and functions of your own. With these, runs are trained one after the other.

        outcome = regard.compare({
            "data": {"path": "phrases"},
            "preset": "demo",
            "budget": {"steps": 1000},
            "axes": {"model.score": ["additive", "scaled_dot"]},
        })
        outcome.best.name
    """
    reporter = reporter or Reporter()
    planned, folder = prepare(experiment, out, reporter, parts=parts)
    with held(folder):
        failed: list[str] = []
        if parts is None:
            failed = train_missing(planned, folder, jobs=jobs, reporter=reporter)
        else:
            check_same(planned, folder)
            for number in missing_runs(planned, folder):
                run_here(planned, folder, number, parts=parts, reporter=reporter)
        return report(planned, folder, failed)


def prepare(
    experiment: str | Path | Mapping[str, Any],
    out: str | Path | None,
    reporter: Reporter,
    *,
    parts: Parts = None,
    words: Sequence[str] = (),
) -> tuple[Plan, Folder]:
    """The plan of an experiment, and its folder.

    The plan is kept there: what was decided once stays as it is, until the experiment changes.
    words: more of the command line that repeats it.
    """
    code = code_of(parts)
    if not isinstance(experiment, Mapping) and Path(experiment).is_dir():
        return _known(Path(experiment), out, code)

    asked = read_experiment(experiment)
    folder = Folder(Path(out) if out is not None else HOME / asked.name)
    which = identity(asked, code)
    known = folder.plan(which)
    if known is not None:
        return known, folder

    planned = replace(plan(asked, reporter, code), command=_command(experiment, folder, words))
    folder.make()
    with held(folder):  # a process that trains goes by the numbers of the plan
        folder.keep_plan(planned, which)
    return planned, folder


def _known(path: Path, out: str | Path | None, code: Code) -> tuple[Plan, Folder]:
    """The plan that a folder has already."""
    if out is not None:
        raise UserError(f"{path} is the folder of a comparison, which cannot move: remove --out")
    folder = Folder(path)
    known = folder.plan()
    if known is None and folder.has_plan:
        raise UserError(
            f"{path}: its {PLAN} is damaged or of another version; give the TOML file of the "
            f"experiment instead: finished runs are kept"
        )
    if known is None:
        raise UserError(f"{path}: not the folder of a comparison; give the TOML file of one")
    for file, content in known.data.items():
        if fingerprint(file) != content:
            raise UserError(
                f"{file} has changed since this comparison was planned; give the TOML file of the "
                f"experiment instead, and its runs are trained on the new data"
            )
    changed = [name for name, content in code.items() if known.code.get(name, content) != content]
    if changed:
        raise UserError(
            f"{changed[0]}: its code has changed since this comparison was planned; give the TOML "
            f"file of the experiment instead, and its runs are trained with the new code"
        )
    return known, folder


def _command(
    experiment: str | Path | Mapping[str, Any], folder: Folder, words: Sequence[str]
) -> str:
    """The command line that does this again."""
    place = [folder.path] if isinstance(experiment, Mapping) else [experiment, "--out", folder.path]
    return " ".join(["regard compare", *(shell_word(word) for word in (*place, *words))])


def train_missing(
    planned: Plan,
    folder: Folder,
    *,
    jobs: int | None,
    words: Sequence[str] = (),
    reporter: Reporter,
) -> list[str]:
    """Train and score what is missing, in processes of its own; words: more of their command.

    Returns what failed, a line for each run.
    """
    check_same(planned, folder)
    folder.make()
    usual = min(usual_jobs(cell.config) for cell in planned.cells)
    side_by_side = min(jobs or usual, len(planned.runs()))
    return run_all(
        planned,
        folder,
        jobs=side_by_side,
        board=lambda: Board(planned, folder, side_by_side, reporter),
        words=words,
    )


def check_same(planned: Plan, folder: Folder) -> None:
    """Refuse to go by a plan that another process has replaced since it was read."""
    if folder.plan() != planned:
        raise UserError(
            f"{folder.path}: another process has just changed this comparison; start again"
        )


def report(planned: Plan, folder: Folder, failed: Sequence[str] = ()) -> Outcome:
    """Write what has been found so far, and return it. Raises Failed if runs have failed."""
    known = [folder.scores(cell) for cell in planned.cells]
    scores = [one for one in known if one is not None]
    if failed and not scores:
        raise failure(failed)
    outcome = NotebookOutcome(planned, scores)
    page = report_page(outcome, planned.command)
    with disk_faults_told(folder.path):
        write_text(folder.path / "report.html", page)
        write_text(folder.path / "report.md", markdown_report(outcome, planned.command))
        write_text(folder.path / "report.json", json_text(outcome.as_dict()) + "\n")
    if failed:
        raise failure(failed)
    return outcome


@contextmanager
def held(folder: Folder) -> Iterator[None]:
    """Let only this process work on the comparison; the system frees it, however we end."""
    file = folder.path / LOCK
    with disk_faults_told(folder.path):
        ours = lock(file)
    if ours is None:
        raise UserError(
            f"{folder.path}: another process is working on this comparison{holder(file)}"
        )
    sign(file)
    try:
        yield
    finally:
        clear(file)
        ours.release()
