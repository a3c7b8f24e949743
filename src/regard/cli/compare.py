"""`regard compare`: an experiment in, a report out."""

import os
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.parts import PartsOption, read_parts
from regard.cli.terms import AsJson
from regard.display import say, say_json, shell_word, table


def compare(
    experiment: Annotated[
        Path,
        typer.Argument(
            metavar="EXPERIMENT", help="A TOML file with [axes], or a comparison's folder."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to. Default: comparisons/NAME.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1024,
            help="Runs trained side by side. Default: one per core, or one on a GPU.",
        ),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="List the runs and stop before training them.")
    ] = False,
    only: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Train run N alone, as a task of a job array does."),
    ] = None,
    as_json: AsJson = False,
    parts: PartsOption = None,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
) -> None:
    """Compare systems fairly: several seeds, one budget, one report.

    Run the same command again to continue; finished runs are not trained again.

    Example: `regard compare experiments/depth.toml`

    On a cluster: `--plan` prints the command of a job array.
    """
    from regard.comparison import comparing
    from regard.comparison.running import end_with_parent, run_numbered
    from regard.recipes.reporter import Reporter

    reporter = Reporter()
    words = [word for part in parts or [] for word in ("--parts", _absolute(part))]
    own = read_parts(parts)
    planned, folder = comparing.prepare(experiment, out, reporter, parts=own, words=words)
    if plan:
        _list(planned, folder, words, as_json)
        return
    if only is not None:
        if with_parent:
            end_with_parent()
        run_numbered(planned, folder, only, parts=own, reporter=reporter)
        return

    with comparing.held(folder):
        failed = comparing.train_missing(planned, folder, jobs=jobs, words=words, reporter=reporter)
        outcome = comparing.report(planned, folder, failed)
    if as_json:
        say_json(outcome.as_dict())
    else:
        _print(outcome, folder)


def _absolute(part: str) -> str:
    """A part as `--parts` takes it, whose file is found from any folder."""
    kind, equals, rest = part.rpartition("=")
    file, colon, name = rest.rpartition(":")
    if not file.endswith(".py"):
        return part
    return f"{kind}{equals}{os.path.abspath(file)}{colon}{name}"


def _list(planned: Any, folder: Any, words: list[str], as_json: bool) -> None:
    """Print the runs, and how a cluster trains them."""
    runs = planned.runs()
    if as_json:
        fields = ("system", "seed", "run_name")
        say_json([{name: getattr(cells[0], name) for name in fields} for cells in runs])
        return
    for line in planned.decisions:
        say(line)
    rows = []
    for number, cells in enumerate(runs, start=1):
        names = "; ".join(cell.system for cell in cells)
        is_done = all(folder.scores(cell) is not None for cell in cells)
        state = "done" if is_done else "to do"
        rows.append((str(number), names, str(cells[0].seed), state))
    table(["run", "system", "seed", "state"], rows)
    report = " ".join(["regard compare", *map(shell_word, [folder.path, *words])])
    task = shlex.quote(f"{report} --only $SLURM_ARRAY_TASK_ID")
    first = len({cell.run for cell in planned.pretraining})
    say("", "As a job array, one run a task, then the report:")
    if first:  # what others start from
        say(f"  sbatch --wait --array=1-{first} --wrap {task}")
    say(f"  sbatch --wait --array={first + 1}-{len(runs)} --wrap {task} && {report}")


def _print(outcome: Any, folder: Any) -> None:
    """Print what was found, and where the report is."""
    from regard.comparison.doubts import doubts, verdict
    from regard.comparison.tables import exact_duration

    rows = []
    for system in outcome.ranking:
        score = outcome.shown_spread(system.spread(outcome.metric))
        parameters = f"{system.mean('parameters'):,.0f}"
        rows.append((system.name, score, parameters, exact_duration(system.mean("seconds"))))
    table(["system", outcome.metric_name, "parameters", "training"], rows)
    say("", verdict(outcome))
    for doubt in doubts(outcome):
        say(f"- {doubt.text}")
    say("", folder.path / "report.html")
