"""`regard train`: data in, a run out."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

import regard
from regard.cli.completion import preset_names
from regard.cli.parts import PartsOption, read_parts
from regard.cli.terms import Data, FileAndSets, second_file
from regard.config import merge, parse_overrides
from regard.display import say, shell_word
from regard.errors import UserError


def train(
    data: Data,
    settings: FileAndSets = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Start from a preset; `regard presets` lists them.", autocompletion=preset_names
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Read settings from a TOML file, such as another run's config.toml."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write the run to. Default: runs/NAME.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume a run that stopped.")] = False,
    start_from: Annotated[
        Path | None, typer.Option("--from", help="Fine-tune: start from the weights of this run.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing run in the folder.")
    ] = False,
    seed: Annotated[
        str | None,
        typer.Option(
            metavar="N|none", help="Random seed: train.seed; none: draw one and print it."
        ),
    ] = None,
    parts: PartsOption = None,
) -> None:
    """Train a model.

    Example: `regard train pairs.tsv train.steps=5000`

    Two files side by side: `regard train text.en text.de`

    A language model on texts: `regard train notes.txt train.objective=causal`
    """
    from regard.runs.claim import Taken

    target_file, words = second_file(settings)
    sections: dict[str, Any] = parse_overrides(words)
    if seed is not None:
        sections = merge(sections, {"train": {"seed": seed}})
    try:
        run = regard.train(
            data,
            target_file,
            preset=preset,
            config=config,
            out=out,
            resume=resume,
            overwrite=overwrite,
            start_from=start_from,
            parts=read_parts(parts),
            **sections,
        )
    except Taken as error:
        if error.folder is None:
            raise
        raise UserError(
            f"{error.folder} already exists: resume it with --resume, replace it with "
            f"--overwrite, or choose another folder with --out"
        ) from None
    if os.environ.get("RANK", "0") == "0":  # one of several processes speaks
        folder = shell_word(run.path)
        say("", f"Saved in {run.path}. Try next:")
        for command in _commands(run, folder):
            say(f"  regard {command}")


def _commands(run: Any, folder: str) -> list[str]:
    """What to do with a run, as command lines without `regard`."""
    from regard.runs.card import examples

    if run.config.train.objective == "translate":
        return [f"translate {folder} {_example(run)}", f"evaluate {folder}"]
    return examples(run)


def _example(run: Any) -> str:
    """What to translate, as words of a command line."""
    if run.config.data.positions:
        return "$'a text\\t0 1'"
    if not run.source.tags:
        return '"a text"'

    from regard.recipes.outcome import dev_pairs
    from regard.text.tags import split_tags, tag_text

    has_dev = (run.path / "data" / "dev").exists()
    sources = [pair.source for pair in dev_pairs(run, 10)] if has_dev else []
    for text, tags in map(split_tags, sources):
        if tags:
            return f"{shell_word(text)} --features {shell_word(tag_text(tags))}"
    return f'"a word" --features {shell_word(run.source.tags[0])}'
