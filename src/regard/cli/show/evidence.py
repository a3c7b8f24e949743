"""`regard show evidence`: what an answer depends on."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.parts import PartsOption, read_parts
from regard.cli.show.terms import Open, Text, answered, title_of, wrote
from regard.cli.terms import AsJson, Beam, Device, RunFolder, refuse_options
from regard.display import say, say_answer, say_json, table
from regard.errors import UserError


def show_evidence(
    run: RunFolder,
    text: Text,
    token: Annotated[
        str | None,
        typer.Option(
            help="A token of the answer, or its number from 0. Default: a summary of all."
        ),
    ] = None,
    beam: Beam = None,
    heads: Annotated[
        bool, typer.Option("--heads", help="Show how much log-probability drops without each head.")
    ] = False,
    lens: Annotated[
        bool,
        typer.Option("--lens", help="Show what each decoder layer would predict (logit lens)."),
    ] = False,
    as_json: AsJson = False,
    out: Annotated[
        Path | None, typer.Option(help="Also draw the occlusion: .png, .svg or .pdf.")
    ] = None,
    open_it: Open = False,
    device: Device = "auto",
    parts: PartsOption = None,
) -> None:
    """Which source tokens an answer depends on.

    Example: `regard show evidence runs/demo "he's calm ."`
    """
    refuse_options([text], show_evidence)
    if open_it and out is None:
        raise UserError("--open needs a picture to open: add --out, such as --out evidence.png")
    from regard.inspection import evidence

    translator, result = answered(run, text, beam=beam, device=device, parts=read_parts(parts))
    record = result.attention
    row = None if token is None else _token_number(token, record.target)  # before what takes long

    matrices = {}  # (T, S) each
    if "cross" in record.blocks:
        matrices["attention"] = record.matrix()
    matrices["occlusion"] = evidence.occlusion(translator, result)
    matrices["gradient × input"] = evidence.gradient_times_input(translator, result)
    head_losses = evidence.heads(translator, [result]) if heads else []
    layers = evidence.logit_lens(translator, result) if lens else []

    if out is not None:
        title = f"{title_of(result)} (occlusion)"
        _draw_occlusion(matrices["occlusion"], record, title, out)
    if as_json:
        say_json(_evidence_fields(result, matrices, head_losses, layers))
        return

    say_answer(result.text)
    if out is not None:
        wrote(out, open_it)
    _print_matrices(matrices, record, row)
    if head_losses:
        _print_heads(head_losses)
    elif heads:
        say("This model has no attention heads.")
    if lens:
        _print_lens(layers, record)


def _draw_occlusion(occlusion: Any, record: Any, title: str, out: Path) -> None:
    """Draw the occlusion (T, S) as a heatmap."""
    from regard.pictures.heatmaps import heatmap

    heatmap(
        occlusion,
        record.target,
        record.source,
        title=title,
        signed=True,
        label="drop in log-probability without it",
        out=out,
    )


def _evidence_fields(
    result: Any, matrices: dict[str, Any], head_losses: list[Any], layers: list[Any]
) -> dict[str, Any]:
    """All evidence of one answer, for JSON."""
    from regard.inspection.evidence import agreements

    record = result.attention
    correlations: dict[str, float | None] = {}
    if "attention" in matrices:
        for how, correlation in agreements(record, matrices["occlusion"]).items():
            correlations[how] = None if math.isnan(correlation) else correlation

    values = {name.replace(" × ", "_times_"): matrix.tolist() for name, matrix in matrices.items()}
    return {
        "text": result.text,
        "source": record.source,
        "target": record.target,
        **values,
        "heads": [head._asdict() for head in head_losses],
        "lens": [[reading._asdict() for reading in layer] for layer in layers],
        "rank_correlation": correlations,
    }


def _print_matrices(matrices: dict[str, Any], record: Any, row: int | None) -> None:
    """Print the evidence for one target token or, briefly, for all; and what attention is worth."""
    from regard.inspection.evidence import LIMIT, correlation

    if row is None:
        _print_strongest(matrices, record)
    else:
        _print_row(matrices, record, row)
    if "attention" in matrices:
        say(*correlation(record, matrices["occlusion"]).splitlines())
        say(LIMIT)


def _print_strongest(matrices: dict[str, Any], record: Any) -> None:
    """Print for each target token the source token that each kind of evidence names first."""
    source = _numbered(record.source)
    rows = []
    for number, name in enumerate(_numbered(record.target)):
        cells = []
        for kind, matrix in matrices.items():
            values = matrix[number]  # (S,)
            # The sign of gradient × input says little, so there the largest of either sign counts.
            strengths = abs(values) if kind == "gradient × input" else values
            strongest = strengths.argmax()
            cells.append(f"{source[strongest]} {values[strongest]:.3g}")
        rows.append([name, *cells])
    table(["token", *matrices], rows)


def _print_row(matrices: dict[str, Any], record: Any, row: int) -> None:
    """Print all evidence for one target token, a line for each source token."""
    target = _numbered(record.target)
    rows = [
        [name, *(f"{matrix[row, column]:.4f}" for matrix in matrices.values())]
        for column, name in enumerate(_numbered(record.source))
    ]
    table([f"for {target[row]}", *matrices], rows)


def _print_heads(head_losses: list[Any]) -> None:
    """Print what target tokens lose without each head."""
    rows = [
        (f"{head.block} layer {head.layer + 1} head {head.head + 1}", f"{head.lost:+.4f}")
        for head in head_losses
    ]
    table(["head", "drop without it"], rows)


def _print_lens(layers: list[Any], record: Any) -> None:
    """Print the token that each layer of the decoder would have said, for each target token."""
    rows = []
    for number, name in enumerate(_numbered(record.target)):
        cells = []
        for readings in layers:
            likeliest, probability = readings[number].likely[0]
            cells.append(f"{likeliest} {probability:.2f}")
        rows.append([name, *cells])
    table(["token", *(f"layer {number + 1}" for number in range(len(layers)))], rows)


def _numbered(tokens: list[str]) -> list[str]:
    """The tokens as they are shown; one that occurs twice is followed by its place, from 0."""
    from regard.pictures import shown

    labels = []
    for place, token in enumerate(tokens):
        label = shown(token)
        if tokens.count(token) > 1:
            label += f" ({place})"
        labels.append(label)
    return labels


def _token_number(token: str, target: list[str]) -> int:
    """The place in the answer of a token that is given by its text or by its number from 0."""
    if token.isdecimal() and int(token) < len(target):
        return int(token)
    if token not in target:
        choices = " ".join(f"{place}:{name}" for place, name in enumerate(target))
        raise UserError(f"--token: {token!r} is not in the answer; choose one of {choices}")
    return target.index(token)
