"""`regard show`: pictures."""

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import regard
from regard.cli.terms import TEXTS, AsJson, Beam, Device, Out, RunFolder, refuse_options, table
from regard.errors import UserError

show = typer.Typer(
    help="Look inside: curves, attention, evidence, beam, embeddings …", no_args_is_help=True
)
Text = Annotated[str, typer.Argument(help="What to translate.")]
Layer = Annotated[
    int | None, typer.Option(min=1, help="Of this layer, counted from 1. Default: the last.")
]
Head = Annotated[
    int | None,
    typer.Option(min=1, help="Of this head, counted from 1. Default: all of them as one."),
]
Block = Annotated[
    str,
    typer.Option(
        help="Who looks at whom: cross (target at source), encoder or decoder (each at itself)."
    ),
]


def answered(run: Path, text: str, **wishes: Any) -> tuple[Any, Any]:
    """A translator and its answer; what there is to warn of is told."""
    translator = regard.load(run, **wishes)
    result = next(translator.translate([text]))
    if not result.logprobs:
        raise UserError(f"{text!r:.40} has no answer: there is nothing to show")
    if result.parts:
        raise UserError(
            f"longer than anything in training: split into {len(result.parts)} parts; show one "
            f"sentence of it"
        )
    for warning in result.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return translator, result


@show.command("model")
def show_model(run: RunFolder) -> None:
    """The parts of a model and its settings.  Example: `regard show model runs/demo`"""
    from regard.config import to_settings, to_toml

    opened, parts = regard.Run.open(run), dict[str, list[Any]]()
    for name, weights in opened.new_model().named_parameters():
        parts.setdefault(re.sub(r"^(\w+\.(blocks\.\d+|\w+)).*", r"\1", name), []).append(weights)
    counts = {name: sum(weights.numel() for weights in its) for name, its in parts.items()}
    shapes = [
        " × ".join(map(str, its[0].shape)) if len(its) == 1 else f"{len(its)} tensors"
        for its in parts.values()
    ]
    rows = [
        (name, shape, f"{n:,}", f"{n / sum(counts.values()):.1%}")
        for (name, n), shape in zip(counts.items(), shapes)
    ]
    table(
        ["part", "shape", "parameters", "share"],
        [*rows, ("all", "", f"{sum(counts.values()):,}", "")],
    )
    print(to_toml({"model": to_settings(opened.config)["model"]}), end="")


@show.command("curves")
def show_curves(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...")], out: Out = Path("curves.png")
) -> None:
    """Learning curves of one run or several.  Example: `regard show curves runs/a runs/b --out
    curves.svg`
    """
    from regard.pictures.curves import curves

    opened = [regard.Run.open(run) for run in runs]
    alone = len({run.path.name for run in opened}) == len(opened)
    curves({run.path.name if alone else str(run.path): run.records() for run in opened}, out)
    print(out)


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
        typer.Option("--heads", help="A grid of all layers and heads, not the last layer's mean."),
    ] = False,
    layer: Layer = None,
    head: Head = None,
    how: Annotated[
        str, typer.Option(help="How heads become one: mean, max, norm or rollout (of all layers).")
    ] = "mean",
    block: Block = "cross",
    words: Annotated[bool, typer.Option("--words", help="Words on the axes, not tokens.")] = False,
    device: Device = "auto",
) -> None:
    """Where the model looks.  Example: `regard show attention runs/demo "he's calm ." --layer 1
    --head 2`
    """
    refuse_options([text], show_attention)
    from regard.pictures.heatmaps import head_grid, heatmap

    is_page = out.suffix.lower() in (".html", ".htm")
    one_chosen = bool(layer or head)
    conflicts = {
        "a page shows every layer and head: choose there, or name a picture": is_page
        and (one_chosen or heads or how != "mean" or words),
        "--heads shows them all: leave out --layer, --head and --how": heads
        and (one_chosen or how != "mean"),
        "rollout is of all layers and heads: leave out --layer and --head": how == "rollout"
        and one_chosen,
        "one head needs no --how": bool(head) and how == "max",
        "norms are known of tokens: leave out --words": how == "norm" and words,
    }
    for problem, present in conflicts.items():
        if present:
            raise UserError(problem)

    _, result = answered(run, text, device=device)
    record = result.attention.words() if words else result.attention
    matrix, note = _matrix(record, block, how, layer, head)
    title = f"{text} → {result.text}"
    if is_page:
        result.write_page(out)
    elif heads:
        head_grid(record.blocks[block], *record.sides(block), title=f"{title} ({block})", out=out)
    else:
        labels = {"rollout": "share that came from there", "norm": "share of what was handed over"}
        heatmap(
            matrix, *record.sides(block), title=title + note, label=labels.get(how, ""), out=out
        )
    print(out)


def _matrix(
    record: Any, block: str, how: str, layer: int | None, head: int | None
) -> tuple[Any, str]:
    """What was asked for, and a note of it for the title."""
    if not record.blocks:
        raise UserError("this model has no attention to show (model.attention=none)")
    for name, given, count in zip(
        ("layer", "head"),
        (layer, head),
        record.blocks[block].shape if block in record.blocks else (),
    ):
        if given is not None and given > count:
            raise UserError(f"--{name} {given}: {block} attention has {count}, counted from 1")
    whose = f"head {head}" if head else "largest of heads" if how == "max" else "mean of heads"
    told = [
        block,
        f"layer {layer or len(record.blocks.get(block, ()))}",
        whose,
        "by value norm" * (how == "norm"),
    ]
    note = f" ({', '.join(filter(None, [block, 'rollout'] if how == 'rollout' else told))})"
    return record.matrix(block, how, layer=(layer or 0) - 1, head=head and head - 1), note


@show.command("training", context_settings=TEXTS)
def show_training(
    run: RunFolder,
    text: Text,
    layer: Layer = None,
    head: Head = None,
    block: Block = "cross",
    out: Out = Path("training.png"),
    device: Device = "auto",
) -> None:
    """How attention came about, checkpoint by checkpoint.  Example: `regard show training runs/demo
    "he's calm ." --head 2`
    """
    refuse_options([text], show_training)
    from regard.pictures.heatmaps import growth

    names = regard.Run.open(run).checkpoints()
    if len(names) < 2:
        raise UserError(
            f"{run}: it kept fewer than two checkpoints; train with more, such as train.keep=10 "
            f"train.save_every=100"
        )
    count = min(len(names), 10)
    names = [names[i * (len(names) - 1) // (count - 1)] for i in range(count)]
    _, result = answered(run, text, checkpoint=names[-1], device=device)
    record, (_, note) = result.attention, _matrix(result.attention, block, "mean", layer, head)
    looks = {
        int(name[5:]): regard.load(run, checkpoint=name, device=device).look(text, result.ids)
        for name in names
    }
    matrices = [
        (step, _matrix(look, block, "mean", layer, head)[0]) for step, look in looks.items()
    ]
    growth(matrices, *record.sides(block), title=f"{text} → {result.text}{note}", out=out)
    print(out)


@show.command("beam", context_settings=TEXTS)
def show_beam(
    run: RunFolder,
    text: Text,
    beam: Beam = None,
    out: Out = Path("beam.png"),
    device: Device = "auto",
) -> None:
    """The beam as a tree: what the search tried.  Example: `regard show beam runs/demo "he's calm
    ." --beam 3`
    """
    refuse_options([text], show_beam)
    from regard.pictures.tree import beam_tree

    translator, _ = answered(run, text, beam=beam, device=device)
    beam_tree(translator.tree(text), title=text, out=out)
    print(out)


@show.command("embeddings")
def show_embeddings(
    run: RunFolder,
    side: Annotated[str, typer.Option(help="source or target.")] = "source",
    count: Annotated[int, typer.Option(min=1, help="So many tokens, frequent ones first.")] = 60,
    out: Out = Path("embeddings.png"),
) -> None:
    """Embeddings in two dimensions.  Example: `regard show embeddings runs/demo --side target`"""
    from regard.pictures.embeddings import embedding_map
    from regard.text.vocabulary import FIRST

    opened = regard.Run.open(run)
    if side not in ("source", "target"):
        raise UserError(f"--side {side}: choose source or target")
    tokenizer, half = (
        getattr(opened, side),
        getattr(opened.model(), "encoder" if side == "source" else "decoder"),
    )
    start = FIRST + 256 * (tokenizer.kind == "bpe")  # whose bytes come first
    ids = list(range(start, min(tokenizer.size, start + count)))
    whose = "shared by source and target" if opened.config.text.share else side
    title = (
        f"{opened.path.name}, {whose}: {len(ids):,} of {tokenizer.size - FIRST:,} tokens, and "
        f"{FIRST} reserved ones"
    )
    embedding_map(
        half.embedding.weight.detach()[ids].numpy(),
        tokenizer.token_texts(ids),
        title=title,
        out=out,
    )
    print(out)


@show.command("gradients")
def show_gradients(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUN]...", help="None: three untrained models.")
    ] = None,
    length: Annotated[
        int, typer.Option(min=2, help="Tokens of source and answer together, drawn at random.")
    ] = 100,
    out: Out = Path("gradients.png"),
) -> None:
    """How far back the gradient of an RNN, LSTM, Transformer or run reaches.  Example: `regard show
    gradients --length 60`
    """
    from regard.inspection.flow import gradient_flow, textbook
    from regard.pictures.curves import gradients

    models = (
        {one.path.name: one.model() for one in map(regard.Run.open, runs)} if runs else textbook()
    )
    title = "How far back the gradient reaches" + (
        "" if runs else ": untrained, RNN and LSTM without attention"
    )
    gradients(
        {name: gradient_flow(model, length) for name, model in models.items()},
        title=title,
        answer=length // 2,
        out=out,
    )
    print(out)


@show.command("positions")
def show_positions(
    name: Annotated[
        str, typer.Argument(help="sinusoidal, or a run whose table to show.")
    ] = "sinusoidal",
    width: Annotated[int, typer.Option(min=1)] = 64,
    length: Annotated[int, typer.Option(min=1)] = 100,
    out: Out = Path("positions.png"),
) -> None:
    """Positional encodings as a matrix and as curves.  Example: `regard show positions
    --width 32`
    """
    import torch

    from regard.nn import Position, sinusoids
    from regard.pictures.positions import positions_figure

    table = sinusoids(torch.arange(length), width)
    if name != "sinusoidal":
        from regard.models.transformer import TransformerEncoder

        encoder = regard.Run.open(name).model().encoder
        if not isinstance(encoder, TransformerEncoder) or type(encoder.position) is Position:
            raise UserError(
                f"{name}: its positions are not a table that is added to the embeddings"
            )
        table = encoder.position.embed(
            torch.zeros(length, encoder.position.width), torch.arange(length)
        ).detach()
    positions_figure(table.numpy(), Path(name).name, out)
    print(out)


@show.command("evidence", context_settings=TEXTS)
def show_evidence(
    run: RunFolder,
    text: Text,
    token: Annotated[
        str | None,
        typer.Option(help="A token of the answer, or its number from 0. Default: all, briefly."),
    ] = None,
    beam: Beam = None,
    heads: Annotated[bool, typer.Option("--heads", help="What is lost without each head.")] = False,
    lens: Annotated[
        bool, typer.Option("--lens", help="What each layer of the decoder would have said.")
    ] = False,
    as_json: AsJson = False,
    out: Annotated[
        Path | None, typer.Option(help="Draw the occlusion: .png, .svg or .pdf.")
    ] = None,
    device: Device = "auto",
) -> None:
    """What an answer hangs on.  Example: `regard show evidence runs/demo "he's calm ."`"""
    refuse_options([text], show_evidence)
    import regard.inspection.evidence as reasons

    translator, result = answered(run, text, beam=beam, device=device)
    lost, seen = reasons.occlusion(translator, result), result.attention
    at, looked = None if token is None else _place(token, seen.target), "cross" in seen.blocks
    columns = {"attention": seen.matrix()} if looked else {}
    columns |= {
        "occlusion": lost,
        "gradient × input": reasons.gradient_times_input(translator, result),
    }
    alike = {how: reasons.agreement(seen, lost, how) for how in ("mean", "rollout") if looked}
    worth = reasons.heads(translator, [result]) if heads else []
    layers = reasons.logit_lens(translator, result) if lens else []
    if out is not None:
        from regard.pictures.heatmaps import heatmap

        label, title = "log-probability lost without it", f"{text} → {result.text}"
        heatmap(
            lost,
            seen.target,
            seen.source,
            title=f"{title} (occlusion)",
            signed=True,
            label=label,
            out=out,
        )
    if as_json:
        found: dict[str, Any] = {
            name.replace(" × ", "_times_"): matrix.tolist() for name, matrix in columns.items()
        }
        found |= {
            "heads": [one._asdict() for one in worth],
            "lens": [[one._asdict() for one in row] for row in layers],
        }
        found |= {
            "rank_correlation": {
                how: value if value == value else None for how, value in alike.items()
            }
        }
        print(
            json.dumps(
                {"text": result.text, "source": seen.source, "target": seen.target, **found},
                ensure_ascii=False,
            )
        )
        return
    print(result.text if out is None else f"{result.text}\n{out}")
    source, target = _numbered(seen.source), _numbered(seen.target)
    if at is not None:
        rows = [
            [name, *(f"{m[at, i]:.4f}" for m in columns.values())] for i, name in enumerate(source)
        ]
    else:
        sized = [
            abs(m) if name == "gradient × input" else m for name, m in columns.items()
        ]  # whose sign says little
        tops = [
            [(i := by[t].argmax(), m[t, i]) for by, m in zip(sized, columns.values())]
            for t in range(len(lost))
        ]
        rows = [
            [name, *(f"{source[i]} {value:.3g}" for i, value in row)]
            for name, row in zip(target, tops)
        ]
    table(["token", *columns] if at is None else [f"for {target[at]}", *columns], rows)
    if looked:
        print(f"{reasons.correlation(seen, lost)}\n{reasons.LIMIT}")
    if worth:
        named = (
            (f"{one.block} layer {one.layer + 1} head {one.head + 1}", f"{one.lost:+.4f}")
            for one in worth
        )
        table(["head", "lost without it"], named)
    elif heads:
        print("This model has no heads.")
    if lens:
        said = [
            [f"{name} {p:.2f}" for row in layers for name, p in row[t].likely[:1]]
            for t in range(len(lost))
        ]
        table(
            ["token", *(f"layer {n + 1}" for n in range(len(layers)))],
            ([name, *row] for name, row in zip(target, said)),
        )


def _numbered(tokens: list[str]) -> list[str]:
    """As they are shown; one that comes again has its place, from 0, behind it."""
    from regard.pictures import shown

    return [shown(token) + f" ({i})" * (tokens.count(token) > 1) for i, token in enumerate(tokens)]


def _place(token: str, target: list[str]) -> int:
    if token.isdecimal() and int(token) < len(target):
        return int(token)
    if token not in target:
        raise UserError(
            f"--token: no {token!r} in {' '.join(f'{i}:{name}' for i, name in enumerate(target))}"
        )
    return target.index(token)
