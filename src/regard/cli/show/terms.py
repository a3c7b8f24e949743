"""What the pictures share: options, an answer to look at, which weights of it, its title."""

import webbrowser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import regard
from regard.display import say, warn
from regard.errors import UserError, counted

Text = Annotated[str, typer.Argument(help="Text to translate.")]
TextToRead = Annotated[
    str, typer.Argument(help="Text to translate, or for a language model to read.")
]
Layer = Annotated[int | None, typer.Option(min=1, help="Layer, counted from 1. Default: the last.")]
Head = Annotated[
    int | None,
    typer.Option(min=1, help="Head, counted from 1. Default: the mean of all heads."),
]
Block = Annotated[
    str,
    typer.Option(
        help="Attention to show: cross (target to source), encoder or decoder (self-attention). "
        "Default: cross; of a language model, what it has."
    ),
]
Picture = Annotated[Path, typer.Option(help="Where to write it: .png, .svg or .pdf.")]
Open = Annotated[bool, typer.Option("--open", help="Open the file in a browser.")]


def wrote(out: Path, open_it: bool) -> None:
    """Print the name of the file that was written and, if asked for, open it."""
    say(out)
    if open_it and not webbrowser.open(out.resolve().as_uri()):
        warn(f"no browser found; open {out} yourself")


def answered(run: Path, text: str, **wishes: Any) -> tuple[Any, Any]:
    """A translator and its answer to a text; its warnings go to stderr."""
    objective = regard.Run.open(run).config.train.objective
    if objective in ("causal", "masked"):
        raise UserError(
            f"{run}: trained with train.objective={objective}, so it has no answer to a source "
            f"that could be explained; to see where it looks, use regard show attention"
        )
    translator = regard.load(run, kind=regard.Translator, **wishes)
    return translator, answer_of(translator, text)


def answer_of(translator: Any, text: str) -> Any:
    """A translator's answer to a text, which must be one that can be shown."""
    result = next(translator.translate([text]))
    if not result.logprobs:
        raise UserError(f"{text!r:.40}: the answer is empty, so there is nothing to show")
    if result.parts:
        raise UserError(
            f"the text is longer than any in training and was split into {len(result.parts)} "
            f"parts; give one sentence of it"
        )
    for warning in result.warnings:
        warn(warning)
    return result


@dataclass(frozen=True)
class Reading:
    """A text that was read, what is said about it, and where the model looked."""

    record: Any
    title: str
    answer: str
    """What the model wrote, or the text itself."""
    look_again: Callable[[Any], Any]
    """Gives the same model, at another checkpoint, the same tokens: its record."""
    write_page: Callable[[Path], Any]


def read_by(run: Path, text: str, **wishes: Any) -> Reading:
    """A translator's answer to a text, or a text as a language model reads it."""
    from regard.pictures.page import write_page

    model: Any = regard.load(run, **wishes)
    if isinstance(model, regard.Translator):
        result = answer_of(model, text)
        return Reading(
            result.attention,
            title_of(result),
            result.text,
            lambda other: other.look(text, result.ids),
            result.write_page,
        )

    record = model.look(text)
    return Reading(
        record,
        text,
        text,
        lambda other: other.look(text),
        lambda path: write_page(path, record),
    )


def title_of(result: Any) -> str:
    """Source and answer, in this order whatever their scripts."""
    from regard.records.attention import isolated

    return f"{isolated(result.source)} → {isolated(result.text)}"


def chosen_weights(record: Any, block: str, how: str, layer: int | None, head: int | None) -> Any:
    """The weights (T, S) that were asked for; layer and head count from 1."""
    if not record.blocks:
        raise UserError("this model has no attention to show")
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


def caption_of(record: Any, block: str, how: str, layer: int | None, head: int | None) -> str:
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
