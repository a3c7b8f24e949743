"""`regard generate`: a prompt in, a text out."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import regard
from regard.bounds import is_none
from regard.cli.lines import is_typed, line_bursts, text_bursts, typed_lines
from regard.cli.parts import PartsOption, read_parts
from regard.cli.searching import sampling_asked_for, search_settings
from regard.cli.terms import Beam, Device, RunFolder, refuse_options
from regard.display import note, say, say_answer, say_json, table, warn
from regard.errors import UserError


def generate(
    run: RunFolder,
    prompt: Annotated[
        list[str] | None,
        typer.Argument(
            help="What each text begins with; an empty one for any text. If omitted, reads prompts "
            "from --input, from stdin or as you type."
        ),
    ] = None,
    input: Annotated[
        Path | None, typer.Option(help="Read prompts from this file, one per line.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Write at most this many tokens.")] = 100,
    nbest: Annotated[int, typer.Option(min=1, help="Texts for each prompt.")] = 1,
    beam: Beam = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="Draw tokens at random instead of the most likely.")
    ] = False,
    temperature: Annotated[float, typer.Option(help="Sampling temperature (with --sample).")] = 1.0,
    top_k: Annotated[
        int, typer.Option(help="Sample from the k most likely tokens (with --sample). 0: all.")
    ] = 0,
    top_p: Annotated[
        float,
        typer.Option(
            help="Sample from the most likely tokens with this total probability (nucleus)."
        ),
    ] = 1.0,
    seed: Annotated[
        str,
        typer.Option(metavar="N|none", help="Random seed (with --sample); none: draw one."),
    ] = "0",
    options: Annotated[
        int,
        typer.Option(min=0, help="Only show this many tokens that may come next, as a table."),
    ] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A search setting, such as search.no_repeat=3."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line.")
    ] = False,
    device: Device = "auto",
    parts: PartsOption = None,
) -> None:
    """Write texts with a language model (train.objective=causal).

    Example: `regard generate runs/notes "Once upon a time" --sample --top-p 0.9`
    """
    refuse_options(prompt or [], generate)
    if prompt and input is not None:
        raise UserError(f"there are prompts and --input {input}: pass one or the other")
    advice = "--sample: add it"
    sampling = sampling_asked_for(sample, temperature, top_k, top_p, seed, advice=advice)
    if options and sampling is not None:
        raise UserError("--options shows the probabilities of the model: remove --sample")
    if sampling is not None and is_none(seed):
        note(f"drew --seed {sampling.seed} (pass it to repeat this)")
    model = regard.load(
        run,
        kind=regard.LanguageModel,
        beam=beam,
        device=device,
        parts=read_parts(parts),
        **search_settings(settings),
    )
    for lines in _prompts(prompt, input):
        if options:
            for line in lines:
                _print_options(line, model.options(line, options), as_json)
            continue
        for made in model.generate(lines, tokens=tokens, n_best=nbest, sampling=sampling):
            _print(made, as_json, several=nbest > 1)


def _prompts(prompts: list[str] | None, file: Path | None) -> Iterable[list[str]]:
    """The prompts in groups that are continued together."""
    if prompts:
        yield prompts
        return
    is_prompted = file is None and is_typed()
    bursts = typed_lines() if is_prompted else line_bursts(file, lambda: 512)
    yield from text_bursts(bursts)


def _print(made: Any, as_json: bool, *, several: bool) -> None:
    """Print a text, or all that were asked for with their scores before them."""
    for warning in made.warnings:
        warn(warning)
    if as_json:
        say_json(made.as_dict())
        return
    if not several:
        say_answer(made.text)
        return
    for one in (made, *made.alternatives):
        say_answer(f"{one.score:.4f}", one.text)


def _print_options(prompt: str, options: list[Any], as_json: bool) -> None:
    """A table of the tokens that may come next, or a JSON object."""
    if as_json:
        say_json({"prompt": prompt, "options": [asdict(option) for option in options]})
        return
    rows = [(option.token, f"{option.probability:.2%}", option.text) for option in options]
    table(["next token", "probability", "text"], rows)
    say()
