"""`regard translate`: texts or lines in, answers out."""

import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

import regard
from regard import files
from regard.bounds import is_none
from regard.cli.lines import is_typed, line_bursts, read_stdin, typed_lines
from regard.cli.parts import PartsOption, read_parts
from regard.cli.searching import sampling_asked_for, search_settings
from regard.cli.terms import BYTES_A_TOKEN, Beam, Device, RunFolder, refuse_options
from regard.display import json_text, note, one_line, plain, table, warn
from regard.errors import UserError, counted

LINES = {"cpu": 512, "gpu": 32_768}
"""Lines that are answered together: on a CPU few, so that answers appear soon."""
MOST_WARNED = 5
"""Texts whose warnings are printed; of the others only how many there are."""


def translate(
    run: RunFolder,
    text: Annotated[
        list[str] | None,
        typer.Argument(help="If omitted, reads lines from --input, from stdin or as you type."),
    ] = None,
    input: Annotated[
        Path | None, typer.Option(help="Read texts from this file, one per line.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Write the answers to this file instead of stdout; it may be --input."),
    ] = None,
    beam: Beam = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most this many tokens in an answer.")
    ] = None,
    nbest: Annotated[
        int,
        typer.Option(min=1, help="Answers per text; if more than one, each follows its score."),
    ] = 1,
    sample: Annotated[
        bool, typer.Option("--sample", help="Sample the answer instead of searching.")
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
    risk: Annotated[
        int,
        typer.Option(
            min=0, help="Draw this many samples and keep the most central (minimum Bayes risk)."
        ),
    ] = 0,
    features: Annotated[
        str | None,
        typer.Option(
            metavar="TAGS",
            help="Tags of the texts, such as N;DAT;SG (for runs with data.features). A line can "
            "also have its own after a tab.",
        ),
    ] = None,
    prefix: Annotated[str, typer.Option(help="Make the answer begin with this.")] = "",
    must: Annotated[
        list[str] | None,
        typer.Option(help="Make the answer contain this word or phrase; may be repeated."),
    ] = None,
    forbid: Annotated[
        list[str] | None,
        typer.Option(help="Keep this word or phrase out of the answer; may be repeated."),
    ] = None,
    at: Annotated[
        int | None,
        typer.Option(
            help="Show the alternatives at this token position (from 0), and where they lead."
        ),
    ] = None,
    ensemble: Annotated[
        list[Path] | None,
        typer.Option("--with", help="Another run, to decode with both as an ensemble."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A search setting, such as search.no_repeat=3."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line.")
    ] = False,
    attention: Annotated[
        Path | None, typer.Option(help="Write an attention page of the first text (.html).")
    ] = None,
    wait: Annotated[
        int | None,
        typer.Option(
            min=1, help="Simultaneous translation, k source words behind (wait-k); greedy."
        ),
    ] = None,
    coverage: Annotated[
        bool,
        typer.Option(
            "--coverage", help="Warn about source words that got little attention; slower."
        ),
    ] = False,
    device: Device = "auto",
    parts: PartsOption = None,
) -> None:
    """Translate texts, or whatever the run was trained to do.

    Example: `regard translate runs/demo "he's calm ."`, or a file:
    `regard translate runs/demo < in > out`
    """
    refuse_options(text or [], translate)
    if text and input is not None:
        raise UserError(f"there are texts to translate and --input {input}: pass one or the other")
    if attention is not None and attention.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--attention {attention}: a page's name must end in .html")
    sampling = sampling_asked_for(sample, temperature, top_k, top_p, seed, risk)
    if sampling is not None and is_none(seed):
        note(f"drew --seed {sampling.seed} (pass it to repeat this)")
    chosen = search_settings(settings)
    if limit is not None:
        chosen["limit"] = limit
    chosen["parts"] = read_parts(parts)

    # What neither --wait nor --at knows.
    others = [input, output, sample, risk, must, forbid, as_json, attention, coverage]

    if wait is not None:
        if any([*others, beam, prefix, ensemble, nbest > 1, at is not None, features]):
            raise UserError(
                "--wait reads stdin, writes to stdout and decodes greedily; the only other "
                "options it takes are --limit and --set"
            )
        _follow(
            regard.load(run, kind=regard.Translator, device=device, **chosen).online(wait), text
        )
        return

    translator = regard.load(
        run, *ensemble or [], kind=regard.Translator, beam=beam, device=device, **chosen
    )
    gc.freeze()  # what is loaded stays: nobody need look for garbage in it
    if input is not None and input.is_file():
        translator.expect(input.stat().st_size / BYTES_A_TOKEN)
    if features is not None and not translator.source.tags:
        raise UserError(
            f"--features {features}: {run} was trained without tags; leave it out, or train a run "
            f"with data.features, the column of the tags"
        )

    if at is not None:
        if not text or any(others):
            raise UserError(
                "--at prints a table for texts given as arguments; the only other options it "
                "takes are --prefix, --features, --limit and --nbest"
            )
        sources = [_with_features(line, features) for line in text]
        _show_options(translator, sources, prefix, at, max(nbest, 5))
        return

    wishes = {
        "n_best": nbest,
        "prefix": prefix,
        "must": must or [],
        "forbid": forbid or [],
        "sampling": sampling,
    }

    def enough() -> int:
        return LINES["cpu" if translator.device.type == "cpu" else "gpu"]

    if text:
        bursts: Iterable[list[bytes]] = [list(map(os.fsencode, text))]
    elif input is None and is_typed():
        bursts = typed_lines()
    else:
        bursts = line_bursts(input, enough)
    results = _answers(translator, bursts, features, wishes, coverage)
    on_terminal = output is None and sys.stdout.isatty()
    visible = plain if on_terminal else one_line

    def line(result: Any) -> str:
        if as_json:
            return json_text(_object(result, coverage))
        return _answer_lines(result, nbest, visible)

    _write(results, line, output, attention, aloud=not as_json)


def _follow(live: Any, text: list[str] | None) -> None:
    """Answer while the line is still being written."""
    from regard.inference.online import follow

    if text:
        blocks: Iterable[bytes] = ["\n".join(text).encode()]
    else:
        is_typed()  # refuses a closed stream
        blocks = iter(read_stdin, b"")
    follow(live, blocks)


def _show_options(translator: Any, texts: list[str], prefix: str, at: int, count: int) -> None:
    """Print a table for each text: the likeliest tokens at a position, and where they lead."""
    for result in translator.translate(texts, prefix=prefix):
        rows = (
            (option.token, f"{option.probability:.2%}", option.text)
            for option in translator.options(result, at, count)
        )
        table([f"token {at}", "probability", "resulting answer"], rows)


def _write(
    results: Iterator[tuple[Any, bool]],
    line: Callable[[Any], str],
    output: Path | None,
    page: Path | None,
    *,
    aloud: bool,
) -> None:
    """Write the line of every result as it comes; the warnings of the first few go to stderr.

    page: where an attention page of the first text goes. aloud: whether warnings are printed.
    """
    warned = 0
    first = list(islice(results, 1))  # a mistake shows before anything is written
    with _opened(output) as sink:
        for result, last in chain(first, results):
            sink.write(line(result) + "\n")

            if aloud and warned < MOST_WARNED:
                for warning in result.warnings:
                    warn(f"{result.source[:40]!r}: {warning}")
            warned += bool(result.warnings)

            if page is not None:
                result.write_page(page)
                page = None
            if last:
                sink.flush()

    more = warned - MOST_WARNED
    if aloud and more > 0:
        warn(f"{counted(more, 'more text')} with warnings; add --json to see them all")


def _opened(output: Path | None) -> AbstractContextManager[TextIO]:
    """The file to write to, or standard output."""
    if output is None:
        return nullcontext(sys.stdout)
    return files.output(output)


def _with_features(text: str, features: str | None) -> str:
    """The text with the tags of --features, unless it has its own."""
    if not features or "\t" in text or not text.strip():
        return text
    return f"{text}\t{features}"


def _answers(
    translator: Any,
    bursts: Iterable[list[bytes]],
    features: str | None,
    wishes: dict[str, Any],
    coverage: bool,
) -> Iterator[tuple[Any, bool]]:
    """The result of each line, and whether the line is the last of its burst.

    features: tags of the lines that have none of their own. What is wrong with a line itself is
    added to the warnings of its result.
    """
    from regard.records.result import HARDLY

    number = 0
    for burst in bursts:
        lines = [line.decode("utf-8", "replace").rstrip("\r") for line in burst]
        lines = [_with_features(line, features) for line in lines]
        results = translator.translate(lines, **wishes)
        for place, (raw, result) in enumerate(zip(burst, results), 1):
            number += 1

            replaced = result.source.count("\ufffd") > raw.count("\ufffd".encode())
            if replaced:
                result.warnings.insert(
                    0,
                    f"line {number} is not valid UTF-8; invalid bytes were replaced by U+FFFD",
                )
            if coverage and result.overlooked:
                overlooked = " ".join(result.overlooked[:5])
                result.warnings.append(f"little attention (less than {HARDLY}) on: {overlooked}")

            yield result, place == len(burst)


def _answer_lines(result: Any, nbest: int, visible: Callable[[str], str]) -> str:
    """What is printed for one text: its answers, one a line."""
    from regard.records.result import ranking

    if nbest == 1:
        return visible(result.text)
    answers = [result, *result.alternatives]
    return "\n".join(f"{ranking(answer):.4f}\t{visible(answer.text)}" for answer in answers)


def _object(result: Any, coverage: bool) -> dict[str, Any]:
    """The fields of --json.

    Those that only some searches have are left out where there are none.
    """
    names = ["source", "text", "score", "agreement", "coverage_penalty", "tokens", "logprobs"]
    fields = {name: getattr(result, name) for name in names}
    fields["alternatives"] = [_present(asdict(other)) for other in result.alternatives]
    fields["warnings"] = result.warnings
    fields = _present(fields)
    if coverage:
        fields["coverage"] = result.coverage
    return fields


def _present(fields: dict[str, Any]) -> dict[str, Any]:
    """Those of the fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}
