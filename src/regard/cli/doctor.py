"""`regard doctor`: what is wrong with a run."""

from dataclasses import asdict

import typer

from regard.cli.parts import PartsOption, read_parts
from regard.cli.terms import AsJson, Device, RunFolder
from regard.display import say_json, table


def doctor(
    run: RunFolder, as_json: AsJson = False, device: Device = "auto", parts: PartsOption = None
) -> None:
    """Check a run: its files, its data and its model.

    Example: `regard doctor runs/demo`
    """
    from regard.inspection.doctor import doctor as run_doctor

    rows = run_doctor(run, read_parts(parts), device=device)
    if as_json:
        say_json([asdict(row) for row in rows])
    else:
        cells = []
        for row in rows:
            advice = f"\n→ {row.advice}" if row.advice else ""
            cells.append((row.mark, row.name, row.found + advice))
        table(["", "check", "result"], cells)
    if any(row.passed is False for row in rows):
        raise typer.Exit(1)
