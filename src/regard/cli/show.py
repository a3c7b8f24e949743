"""`regard show`: pictures."""

import json
import math
import re
import sys
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer

import regard
from regard.cli.completion import run_folders
from regard.cli.parts import PartsOption, read_parts
from regard.cli.terms import TEXTS, AsJson, Beam, Device, RunFolder, refuse_options, table
from regard.errors import UserError, counted, nearest

show = typer.Typer(
    help="Look inside: curves, attention, evidence, beam, embeddings …",
    no_args_is_help=True,
)
Text = Annotated[str, typer.Argument(help="Text to translate.")]
Layer = Annotated[int | None, typer.Option(min=1, help="Layer, counted from 1. Default: the last.")]
Head = Annotated[
    int | None,
    typer.Option(min=1, help="Head, counted from 1. Default: the mean of all heads."),
]
Block = Annotated[
    str,
    typer.Option(
        help="Attention to show: cross (target to source), encoder or decoder (self-attention)."
    ),
]
Picture = Annotated[Path, typer.Option(help="Where to write it: .png, .svg or .pdf.")]
Open = Annotated[bool, typer.Option("--open", help="Open the file in a browser.")]
NAMED_POSITIONS = ("sinusoidal", "rotary", "alibi")
"""Positions that are the same in every model; the others are learned, so they need a run."""


def wrote(out: Path, open_it: bool) -> None:
    """Print the name of the file that was written and, if asked for, open it."""
    print(out)
    if open_it and not webbrowser.open(out.resolve().as_uri()):
        print(f"warning: no browser found; open {out} yourself", file=sys.stderr)


def answered(run: Path, text: str, **wishes: Any) -> tuple[Any, Any]:
    """A translator and its answer to a text; its warnings go to stderr."""
    translator = regard.load(run, **wishes)
    result = next(translator.translate([text]))
    if not result.logprobs:
        raise UserError(f"{text!r:.40}: the answer is empty, so there is nothing to show")
    if result.parts:
        raise UserError(
            f"the text is longer than any in training and was split into {len(result.parts)} "
            f"parts; give one sentence of it"
        )
    for warning in result.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return translator, result


@show.command("model")
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
    print(to_toml({"model": to_settings(opened.config)["model"]}), end="")


def _shape(parameters: list[Any]) -> str:
    """The shape of the only parameter of a part, or how many there are."""
    if len(parameters) == 1:
        return " × ".join(map(str, parameters[0].shape))
    return f"{len(parameters)} tensors"


@show.command("curves")
def show_curves(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", autocompletion=run_folders)],
    out: Picture = Path("curves.png"),
    open_it: Open = False,
) -> None:
    """Learning curves of one run or several.

    Example: `regard show curves runs/a runs/b --out curves.svg`
    """
    from regard.pictures.curves import curves

    opened = [regard.Run.open(run) for run in runs]
    names = [run.path.name for run in opened]
    if len(set(names)) < len(names):
        names = [str(run.path) for run in opened]
    curves({name: run.records() for name, run in zip(names, opened)}, out)
    wrote(out, open_it)


@show.command("attention", context_settings=TEXTS)
def show_attention(
    run: RunFolder,
    text: Text,
    out: Annotated[
        Path,
        typer.Option(
            help=(
                "A picture (.png, .svg, .pdf), or a page with all layers, heads and evidence "
                "(.html; slower)."
            )
        ),
    ] = Path("attention.png"),
    heads: Annotated[
        bool,
        typer.Option("--heads", help="Draw a grid of all layers and heads."),
    ] = False,
    layer: Layer = None,
    head: Head = None,
    how: Annotated[
        str,
        typer.Option(help="How to combine heads: mean, max, norm or rollout (over all layers)."),
    ] = "mean",
    block: Block = "cross",
    words: Annotated[bool, typer.Option("--words", help="Show words instead of tokens.")] = False,
    open_it: Open = False,
    device: Device = "auto",
    parts: PartsOption = None,
) -> None:
    """Where the model looks.

    Example: `regard show attention runs/demo "he's calm ." --layer 1 --head 2`
    """
    refuse_options([text], show_attention)
    from regard.pictures.heatmaps import head_grid, heatmap

    is_page = out.suffix.lower() in (".html", ".htm")
    _refuse_conflicts(is_page, heads, bool(layer), bool(head), how, words)

    _, result = answered(run, text, device=device, parts=read_parts(parts))
    record = result.attention.words() if words else result.attention
    matrix = _matrix(record, block, how, layer, head)  # (T, S); refuses what is not there
    title = _title(result)
    if is_page:
        result.write_page(out)
    elif heads:
        head_grid(record.blocks[block], *record.sides(block), title=f"{title} ({block})", out=out)
    else:
        labels = {
            "rollout": "share of information from this token (rollout)",
            "norm": "share of attention, weighted by value norm",
        }
        heatmap(
            matrix,
            *record.sides(block),
            title=f"{title} ({_caption(record, block, how, layer, head)})",
            label=labels.get(how, ""),
            out=out,
        )
    print(result.text)
    wrote(out, open_it)


def _title(result: Any) -> str:
    """Source and answer, in this order whatever their scripts."""
    from regard.records.attention import isolated

    return f"{isolated(result.source)} → {isolated(result.text)}"


def _refuse_conflicts(
    is_page: bool, heads: bool, has_layer: bool, has_head: bool, how: str, words: bool
) -> None:
    """Refuse options of `show attention` that contradict each other."""
    is_choice = has_layer or has_head
    if is_page and (is_choice or heads or how != "mean" or words):
        raise UserError(
            "a page (.html) shows all layers and heads: choose them there, or write a picture "
            "(.png)"
        )
    if heads and (is_choice or how != "mean"):
        raise UserError("--heads draws all layers and heads: remove --layer, --head and --how")
    if how == "rollout" and is_choice:
        raise UserError("--how rollout combines all layers and heads: remove --layer and --head")
    if how == "max" and has_head:
        raise UserError("--how max combines heads: remove it, or remove --head")
    if how == "norm" and words:
        raise UserError("--how norm works on tokens, not on words: remove --words")


def _matrix(record: Any, block: str, how: str, layer: int | None, head: int | None) -> Any:
    """The weights (T, S) that were asked for; layer and head count from 1."""
    if not record.blocks:
        raise UserError("this model has no attention to show (model.attention=none)")
    if block in record.blocks:
        layers, heads = record.blocks[block].shape[:2]  # of (L, H, T, S)
        _check_number("layer", layer, block, layers)
        _check_number("head", head, block, heads)

    layer_index = -1 if layer is None else layer - 1
    head_index = None if head is None else head - 1
    return record.matrix(block, how, layer=layer_index, head=head_index)


def _check_number(name: str, number: int | None, block: str, count: int) -> None:
    """Refuse a layer or head that the block does not have."""
    if number is not None and number > count:
        raise UserError(
            f"--{name} {number}: {block} attention has {counted(count, name)}, counted from 1"
        )


def _caption(record: Any, block: str, how: str, layer: int | None, head: int | None) -> str:
    """What a heatmap shows, for its title: block, layer, and how heads became one."""
    if how == "rollout":
        return f"{block}, rollout"

    parts = [block, f"layer {layer or len(record.blocks[block])}"]
    if head:
        parts.append(f"head {head}")
    elif how == "max":
        parts.append("maximum over heads")
    else:
        parts.append("mean over heads")
    if how == "norm":
        parts.append("by value norm")
    return ", ".join(parts)


@show.command("training", context_settings=TEXTS)
def show_training(
    run: RunFolder,
    text: Text,
    layer: Layer = None,
    head: Head = None,
    block: Block = "cross",
    out: Picture = Path("training.png"),
    open_it: Open = False,
    device: Device = "auto",
    parts: PartsOption = None,
) -> None:
    """Attention during training, checkpoint by checkpoint.

    Example: `regard show training runs/demo "he's calm ." --head 2`
    """
    refuse_options([text], show_training)
    from regard.pictures.heatmaps import growth

    own = read_parts(parts)
    names = regard.Run.open(run).checkpoints()
    if len(names) < 2:
        raise UserError(
            f"{run}: fewer than two checkpoints were kept; to keep more, train with train.keep=10 "
            f"train.save_every=100"
        )
    count = min(len(names), 10)
    last = len(names) - 1
    names = [names[number * last // (count - 1)] for number in range(count)]  # evenly spaced

    _, result = answered(run, text, checkpoint=names[-1], device=device, parts=own)
    record = result.attention
    # A wrong --layer, --head or --block is refused before every checkpoint is loaded.
    _matrix(record, block, "mean", layer, head)

    matrices = []
    for name in names:
        step = int(name.removeprefix("step-"))
        attention = regard.load(run, checkpoint=name, device=device, parts=own).look(
            text, result.ids
        )
        matrices.append((step, _matrix(attention, block, "mean", layer, head)))

    caption = _caption(record, block, "mean", layer, head)
    title = f"{_title(result)} ({caption})"
    growth(matrices, *record.sides(block), title=title, out=out)
    print(result.text)
    wrote(out, open_it)


@show.command("beam", context_settings=TEXTS)
def show_beam(
    run: RunFolder,
    text: Text,
    beam: Beam = None,
    out: Picture = Path("beam.png"),
    open_it: Open = False,
    device: Device = "auto",
    parts: PartsOption = None,
) -> None:
    """The beam as a tree: what the search tried.

    Example: `regard show beam runs/demo "he's calm ." --beam 3`
    """
    refuse_options([text], show_beam)
    from regard.pictures.tree import beam_tree

    translator, result = answered(run, text, beam=beam, device=device, parts=read_parts(parts))
    beam_tree(translator.tree(text), title=text, out=out)
    print(result.text)
    wrote(out, open_it)


@show.command("embeddings")
def show_embeddings(
    run: RunFolder,
    side: Annotated[
        str, typer.Option(help="Which embeddings to draw: source or target.")
    ] = "source",
    count: Annotated[
        int | None, typer.Option(min=1, help="How many tokens, most frequent first. Default: 60.")
    ] = None,
    tokens: Annotated[
        str, typer.Option(help="These tokens instead, separated by commas: cat,dog,horse.")
    ] = "",
    out: Picture = Path("embeddings.png"),
    open_it: Open = False,
    parts: PartsOption = None,
) -> None:
    """Embeddings in two dimensions.

    Example: `regard show embeddings runs/demo --tokens cat,dog,eats,sleeps`
    """
    from regard.pictures.embeddings import embedding_map
    from regard.text.vocabulary import FIRST

    opened = regard.Run.open(run)
    if side not in ("source", "target"):
        raise UserError(f"--side {side}: choose source or target")
    tokenizer = opened.source if side == "source" else opened.target
    model = opened.model(parts=read_parts(parts))
    half: Any = model.encoder if side == "source" else model.decoder

    if tokens and count:
        raise UserError("--tokens and --count cannot be combined: remove one of them")
    if tokens:
        ids = _ids_of(tokens, tokenizer)
    else:
        start = FIRST
        if tokenizer.kind == "bpe":
            start += 256  # skip the single bytes, which come first
        ids = list(range(start, min(tokenizer.size, start + (count or 60))))
    vectors = half.embedding.weight.detach()[ids].numpy()  # (ids, D)

    vocabulary = "shared by source and target" if opened.config.text.share else side
    title = (
        f"{opened.path.name}, {vocabulary}: {len(ids):,} of {tokenizer.size - FIRST:,} tokens, "
        f"without the {FIRST} special ones"
    )
    embedding_map(vectors, tokenizer.token_texts(ids), title=title, out=out)
    wrote(out, open_it)


def _ids_of(tokens: str, tokenizer: Any) -> list[int]:
    """The ids of tokens that are separated by commas, each once.

    Subwords that begin a word have a space before them; nobody needs to write it.
    """
    from regard.text.vocabulary import UNK

    names = [name.strip() for name in tokens.split(",")]
    ids = []
    for name in dict.fromkeys(name for name in names if name):
        pieces = [tokenizer.encode(f" {name}"), tokenizer.encode(name)]
        whole = [ids for ids in pieces if len(ids) == 1 and ids != [UNK]]
        if not whole:
            raise UserError(_not_a_token(name, tokenizer))
        ids.append(whole[0][0])
    if not ids:
        raise UserError("--tokens: give at least one token, such as --tokens cat,dog")
    return ids


def _not_a_token(name: str, tokenizer: Any) -> str:
    """Why a name cannot be shown: the vocabulary does not have it, or only parts of it."""
    from regard.text.vocabulary import UNK

    ids = tokenizer.encode(name)
    if UNK in ids:
        return f"--tokens: {name!r} is not in the vocabulary"
    parts = ",".join(tokenizer.token_texts(ids))
    return f"--tokens: {name!r} is split into several tokens in this run: {parts}"


@show.command("gradients")
def show_gradients(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...", help="Runs to compare. Default: three untrained models."
        ),
    ] = None,
    length: Annotated[
        int,
        typer.Option(
            min=2, max=10_000, help="Number of random tokens, source and answer together."
        ),
    ] = 100,
    out: Picture = Path("gradients.png"),
    open_it: Open = False,
    parts: PartsOption = None,
) -> None:
    """How far back the gradient of an RNN, LSTM, Transformer or run reaches.

    Example: `regard show gradients --length 60`
    """
    from regard.inspection.flow import gradient_flow, textbook
    from regard.pictures.curves import gradients

    title = "How far back the gradient reaches"
    if runs:
        opened = [regard.Run.open(run) for run in runs]
        own = read_parts(parts)
        models = {run.path.name: run.model(parts=own) for run in opened}
    else:
        models = textbook()
        title += ": untrained, RNN and LSTM without attention"

    flows = {name: gradient_flow(model, length) for name, model in models.items()}
    gradients(flows, title=title, answer=length // 2, out=out)
    wrote(out, open_it)


@show.command("positions")
def show_positions(
    name: Annotated[
        str, typer.Argument(help="sinusoidal, rotary, alibi, or a run.")
    ] = "sinusoidal",
    width: Annotated[
        int, typer.Option(min=1, max=4096, help="Dimensions of an embedding (rotary: of one head).")
    ] = 64,
    heads: Annotated[int, typer.Option(min=1, max=1024, help="Number of heads (alibi).")] = 4,
    length: Annotated[
        int, typer.Option(min=1, max=10_000, help="Number of positions to draw.")
    ] = 100,
    out: Picture = Path("positions.png"),
    open_it: Open = False,
    parts: PartsOption = None,
) -> None:
    """Positional encodings as a matrix and as curves.

    Example: `regard show positions rotary --width 32`
    """
    from regard.nn.positions import POSITIONS

    if name in NAMED_POSITIONS:
        if name == "rotary" and width % 2:
            raise UserError(
                f"--width {width}: rotary rotates features in pairs, so the width must be even"
            )
        share = 1 if name == "rotary" else heads
        position = POSITIONS[name](width, share)
    else:
        position = _position_of_run(name, read_parts(parts))
    _draw_position(position, Path(name).name, length, out)
    wrote(out, open_it)


def _position_of_run(name: str, parts: Any) -> Any:
    """The position object of a run, of its first encoder layer if each layer has one."""
    from regard.models.transformer import TransformerEncoder
    from regard.nn.positions import POSITIONS

    if not Path(name).exists():
        if name in POSITIONS:
            raise UserError(
                f"{name} positions are learned, so they need a run: regard show positions RUN"
            )
        raise UserError(
            f"{name!r} is neither a run nor a positional encoding{nearest(name, NAMED_POSITIONS)}"
        )
    encoder = regard.Run.open(name).model(parts=parts).encoder
    if not isinstance(encoder, TransformerEncoder):
        raise UserError(f"{name}: a recurrent model has no positional encodings")
    block: Any = encoder.blocks[0]
    in_layer = block.attention.position
    return in_layer if in_layer.in_attention else encoder.position


def _draw_position(position: Any, name: str, length: int, out: Path) -> None:
    """Draw what a position does: to the embeddings, to queries and keys, or to the scores."""
    import torch

    from regard.nn.positions import Relative
    from regard.pictures.positions import bias_figure, positions_figure

    if isinstance(position, Relative):
        clip = position.clip
        vectors = position.keys.detach().numpy()  # (2·clip+1, D/H)
        title = f"{name}, added to the keys"
        positions_figure(vectors, title, out, axis="distance", first=-clip)
        return

    places = torch.arange(length)
    added = position.embed(torch.zeros(length, position.width), places).detach()  # (T, D)
    if added.any():
        positions_figure(added.numpy(), name, out)
        return

    size = position.width // position.heads
    unit = torch.zeros(1, position.heads, length, size)  # (1, H, T, D/H)
    unit[..., 0::2] = 1.0
    turned = position.rotate(unit, places[None])
    if not torch.equal(turned, unit):
        title = f"{name}, features (1, 0, 1, 0, …) rotated"
        positions_figure(turned[0, 0].numpy(), title, out)
        return

    bias = position.key_term(unit, places[None], places[None])  # (1, H, T, S)
    if bias is None:
        raise UserError(f"{name}: this model has no positional encodings")
    bias_figure(bias[0].detach().numpy(), name, out)


@show.command("evidence", context_settings=TEXTS)
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
        title = f"{_title(result)} (occlusion)"
        _draw_occlusion(matrices["occlusion"], record, title, out)
    if as_json:
        print(_evidence_json(result, matrices, head_losses, layers))
        return

    print(result.text)
    if out is not None:
        wrote(out, open_it)
    _print_matrices(matrices, record, row)
    if head_losses:
        _print_heads(head_losses)
    elif heads:
        print("This model has no attention heads.")
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


def _evidence_json(
    result: Any, matrices: dict[str, Any], head_losses: list[Any], layers: list[Any]
) -> str:
    """All evidence of one answer as a JSON object."""
    from regard.inspection.evidence import agreement

    record = result.attention
    correlations: dict[str, float | None] = {}
    if "attention" in matrices:
        for how in ("mean", "rollout"):
            correlation = agreement(record, matrices["occlusion"], how)
            correlations[how] = None if math.isnan(correlation) else correlation

    values = {name.replace(" × ", "_times_"): matrix.tolist() for name, matrix in matrices.items()}
    return json.dumps(
        {
            "text": result.text,
            "source": record.source,
            "target": record.target,
            **values,
            "heads": [head._asdict() for head in head_losses],
            "lens": [[reading._asdict() for reading in layer] for layer in layers],
            "rank_correlation": correlations,
        },
        ensure_ascii=False,
    )


def _print_matrices(matrices: dict[str, Any], record: Any, row: int | None) -> None:
    """Print the evidence for one target token or, briefly, for all; and what attention is worth."""
    from regard.inspection.evidence import LIMIT, correlation

    if row is None:
        _print_strongest(matrices, record)
    else:
        _print_row(matrices, record, row)
    if "attention" in matrices:
        print(correlation(record, matrices["occlusion"]))
        print(LIMIT)


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
