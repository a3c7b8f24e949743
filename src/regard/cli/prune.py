"""`regard prune`: a run without the attention heads that it can do without."""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.parts import PartsOption, read_parts
from regard.cli.terms import AsJson, Device, RunFolder
from regard.display import say, say_json, table
from regard.errors import counted


def prune(
    run: RunFolder,
    out: Annotated[Path, typer.Option(help="Folder to write the new run to.")],
    tolerance: Annotated[
        float, typer.Option(min=0, help="Largest allowed relative increase in dev perplexity.")
    ] = 0.01,
    points: Annotated[
        float,
        typer.Option(
            min=0, help="Largest allowed drop in BLEU and exact match, in points (0 to 100)."
        ),
    ] = 0.5,
    as_json: AsJson = False,
    device: Device = "auto",
    parts: PartsOption = None,
) -> None:
    """Turn off the attention heads that a model can do without.

    Example: `regard prune runs/demo --out runs/less`
    """
    from regard.recipes.pruning import prune as run_prune

    pruned = run_prune(
        run, out, tolerance=tolerance, points=points, device=device, parts=read_parts(parts)
    )
    facts = pruned.manifest["pruned"]
    if as_json:
        say_json(facts)
        return

    scores = [
        (name, f"{facts['before'][name]:.4f}", f"{after:.4f}")
        for name, after in facts["after"].items()
    ]
    table(["dev", "before", "after"], scores)
    heads = [
        f"{head['block']} layer {head['layer'] + 1} head {head['head'] + 1}"
        for head in facts["heads"]
    ]
    say(
        f"{len(heads)} of {counted(facts['of'], 'head')} turned off in {out} (its size and speed "
        f"stay the same): {', '.join(heads) or 'none'}"
    )
