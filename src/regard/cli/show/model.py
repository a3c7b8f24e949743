"""`regard show model`: its parts and its settings."""

import re
from typing import Any

import regard
from regard.cli.parts import PartsOption, read_parts
from regard.cli.terms import RunFolder
from regard.display import say, table
from regard.errors import counted


def show_model(run: RunFolder, parts: PartsOption = None) -> None:
    """The parts of a model and its settings.

    Example: `regard show model runs/demo`
    """
    from regard.config import to_settings, to_toml

    opened = regard.Run.open(run)
    groups: dict[str, list[Any]] = {}  # parameters by the first names of their path
    for name, weights in opened.new_model(read_parts(parts)).named_parameters():
        part = re.sub(r"^(\w+\.(blocks\.\d+|\w+)).*", r"\1", name)
        groups.setdefault(part, []).append(weights)

    counts = {part: sum(weights.numel() for weights in group) for part, group in groups.items()}
    total = sum(counts.values())
    rows = [
        (part, _shape(group), f"{counts[part]:,}", f"{counts[part] / total:.1%}")
        for part, group in groups.items()
    ]
    rows.append(("all", "", f"{total:,}", ""))
    table(["part", "shape", "parameters", "share"], rows)
    say(*to_toml({"model": to_settings(opened.config)["model"]}).splitlines())


def _shape(parameters: list[Any]) -> str:
    """The shape of the only parameter of a part, or how many there are."""
    if len(parameters) == 1:
        return " × ".join(map(str, parameters[0].shape))
    return counted(len(parameters), "tensor")
