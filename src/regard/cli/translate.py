"""`regard translate`: texts or lines in, answers out."""

import json
import os
import select
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from io import RawIOBase
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

import regard
from regard.cli.terms import Beam, Device, RunFolder, reader_may_leave, refuse_options, table
from regard.config import build, parse_overrides
from regard.errors import UserError

LINES = {"cpu": 512, "gpu": 8192}
"""Lines that are answered together: on a CPU few, so that answers appear soon."""
BYTES_A_TOKEN = 4
"""About so many bytes of a file make a token, to tell how much there is to translate."""


def translate(
    run: RunFolder,
    text: Annotated[
        list[str] | None, typer.Argument(help="Texts; none: lines of --input or of standard input.")
    ] = None,
    input: Annotated[Path | None, typer.Option(help="A file, one text a line.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write the answers here, not to standard output.")
    ] = None,
    beam: Beam = None,
    nbest: Annotated[
        int,
        typer.Option(min=1, help="Answers per text; above 1, each after the number that ranks it."),
    ] = 1,
    sample: Annotated[bool, typer.Option("--sample", help="Draw the answer at random.")] = False,
    temperature: Annotated[float, typer.Option(help="Of --sample.")] = 1.0,
    top_k: Annotated[
        int, typer.Option(help="Of --sample: from the so many likeliest tokens. 0: all.")
    ] = 0,
    top_p: Annotated[
        float, typer.Option(help="Of --sample: from the likeliest tokens that hold this share.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Of --sample.")] = 0,
    risk: Annotated[
        int,
        typer.Option(
            min=0, help="Draw so many, give the one most like the others (minimum Bayes risk)."
        ),
    ] = 0,
    prefix: Annotated[str, typer.Option(help="The answer begins with this.")] = "",
    must: Annotated[
        list[str] | None,
        typer.Option(help="A word or phrase that the answer holds; may be given again."),
    ] = None,
    forbid: Annotated[
        list[str] | None,
        typer.Option(help="A word or phrase that it does not hold; may be given again."),
    ] = None,
    at: Annotated[
        int | None,
        typer.Option(help="Show what else could stand at this position (from 0), and its answer."),
    ] = None,
    ensemble: Annotated[
        list[Path] | None,
        typer.Option("--with", help="Another run, to answer together with this one."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A search setting, such as search.no_repeat=3."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    attention: Annotated[
        Path | None, typer.Option(help="Write an attention page of the first text, .html.")
    ] = None,
    wait: Annotated[
        int | None,
        typer.Option(min=1, help="Answer while reading, so many source tokens behind; greedy."),
    ] = None,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Warn of source words hardly looked at; slower.")
    ] = False,
    device: Device = "auto",
) -> None:
    """Answer texts.  Example: `regard translate runs/demo "he's calm ."`, or a file: `regard
    translate runs/demo < in > out`
    """
    refuse_options(text or [], translate)
    if attention is not None and attention.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--attention {attention}: a page's name must end in .html")
    sampling = _sampling(sample, temperature, top_k, top_p, seed, risk)
    chosen = _search_settings(settings)
    if wait is not None:
        asked = (
            input,
            output,
            beam,
            sample,
            risk,
            prefix,
            must,
            forbid,
            ensemble,
            as_json,
            attention,
            coverage,
            nbest > 1,
        )
        if any(asked) or at is not None:
            raise UserError(
                "--wait goes from standard input to standard output, greedily; of the other "
                "options it knows --set"
            )
        _follow(regard.load(run, device=device, **chosen).online(wait), text)
        return
    translator = regard.load(run, *ensemble or [], beam=beam, device=device, **chosen)
    if input is not None and input.is_file():
        translator.expect(input.stat().st_size / BYTES_A_TOKEN)
    if at is not None:
        if (
            not text
            or input
            or must
            or forbid
            or sample
            or risk
            or as_json
            or output
            or attention
            or coverage
        ):
            raise UserError(
                "--at shows a table for texts given as arguments; of the other options it knows "
                "--prefix and --nbest"
            )
        for result in translator.translate(text or [], prefix=prefix):
            rows = (
                (one.token, f"{one.probability:.2%}", one.text)
                for one in translator.options(result, at, max(nbest, 5))
            )
            table([f"token {at}", "probability", "the answer then"], rows)
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

    bursts = [list(map(os.fsencode, text))] if text else _bursts(input, enough)
    results = _answers(translator, bursts, wishes, coverage)
    first, warned = list(islice(results, 1)), 0  # a mistake shows before anything is written
    with reader_may_leave(), _opened(output) as sink:
        for result, last in chain(first, results):
            print(_line(result, as_json, nbest, coverage), file=sink)
            for warning in [] if as_json or warned >= 5 else result.warnings:
                print(f"warning: {result.source[:40]!r}: {warning}", file=sys.stderr)
            warned += bool(result.warnings)
            if attention is not None:
                result.write_page(attention)
                attention = None
            if last:
                sink.flush()
    if warned > 5 and not as_json:
        print(f"warning: {warned - 5:,} more texts like these; --json tells each", file=sys.stderr)


def _follow(live: Any, text: list[str] | None) -> None:
    """Answer while the line is still being written."""
    from regard.inference.online import follow

    with reader_may_leave():
        follow(live, ["\n".join(text).encode()] if text else iter(lambda: os.read(0, 1 << 16), b""))


def _opened(output: Path | None) -> AbstractContextManager[TextIO]:
    try:
        return output.open("w", encoding="utf-8") if output else nullcontext(sys.stdout)
    except OSError as error:
        raise UserError(f"{output}: cannot be written ({error.strerror})") from error


def _answers(
    translator: Any, bursts: Iterable[list[bytes]], wishes: dict[str, Any], coverage: bool
) -> Iterator[tuple[Any, bool]]:
    """The result of each line, with what is wrong with the line itself, and whether it is the last
    of its burst.
    """
    from regard.records.result import HARDLY

    number = 0
    for burst in bursts:
        lines = [line.decode("utf-8", "replace").rstrip("\r") for line in burst]
        for place, (raw, result) in enumerate(zip(burst, translator.translate(lines, **wishes)), 1):
            number += 1
            if result.source.count("\ufffd") > raw.count("\ufffd".encode()):
                result.warnings.insert(
                    0,
                    f"line {number} is not UTF-8: the bytes that are none were replaced by U+FFFD",
                )
            if coverage and result.overlooked:
                result.warnings.append(
                    f"hardly looked at (attention under {HARDLY}): "
                    f"{' '.join(result.overlooked[:5])}"
                )
            yield result, place == len(burst)


def _sampling(sample: bool, *drawn: Any) -> Any:
    """How to draw; None: not at all, and then nobody may say how."""
    from regard.inference.translator import Sampling

    made = Sampling(*drawn)
    if not sample and not made.risk and made != Sampling():
        raise UserError(
            "--temperature, --top-k, --top-p and --seed tell how to draw: add --sample, or --risk"
        )
    return made if sample or made.risk else None


def _search_settings(words: list[str] | None) -> dict[str, Any]:
    """`search.no_repeat=3` or `no_repeat=3` -> {"no_repeat": 3}; any other setting is refused."""
    settings: dict[str, Any] = {}
    for word in words or []:
        section, dot, _ = word.partition("=")[0].partition(".")
        if dot and section != "search":
            raise UserError(
                f"--set {word}: only search settings can change here, such as search.no_repeat=3"
            )
        full = word if dot else f"search.{word}"
        settings |= parse_overrides([full])["search"]

    build(
        {"search": settings}
    )  # a misspelt name or a wrong value is told before anything is loaded
    return settings


def _line(result: Any, as_json: bool, nbest: int, coverage: bool) -> str:
    """What is printed for one text: its answers, one a line, or a JSON object."""
    from regard.records.result import ranking

    if as_json:
        return json.dumps(_object(result, coverage), ensure_ascii=False)
    if nbest == 1:
        return str(result.text)
    answers = [result, *result.alternatives]
    return "\n".join(f"{ranking(answer):.4f}\t{answer.text}" for answer in answers)


def _object(result: Any, coverage: bool) -> dict[str, Any]:
    """The fields of --json; those that only some searches have are left out where there are
    none.
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
    return {name: value for name, value in fields.items() if value is not None}


def _bursts(path: Path | None, enough: Callable[[], int]) -> Iterator[list[bytes]]:
    """Lines of a file, or of standard input as they come: no line waits more than 20 ms for the
    next.
    """
    if path is not None and (path.is_dir() or not path.exists()):
        raise UserError(f"{path}: no such file")
    if path is not None:
        with path.open("rb", buffering=0) as file:
            yield from _lines_together(file, enough, lambda: True)
    else:
        with open(0, "rb", buffering=0, closefd=False) as stream:
            yield from _lines_together(stream, enough, lambda: _more_soon(stream))


def _more_soon(stream: RawIOBase) -> bool:
    """Whether there is more to read within 20 ms. On Windows, where only sockets can be
    asked, no.
    """
    if sys.platform == "win32":
        return False
    readable, _, _ = select.select([stream], [], [], 0.02)
    return bool(readable)


def _lines_together(
    stream: RawIOBase, enough: Callable[[], int], more_soon: Callable[[], bool]
) -> Iterator[list[bytes]]:
    """Groups of lines: a group ends with `enough` lines, or where no more come soon."""
    group: list[bytes] = []
    rest = b""  # a line whose end has not come yet
    while block := stream.read(1 << 16):
        *lines, rest = (rest + block).split(b"\n")
        group += lines
        if group and (len(group) >= enough() or not more_soon()):
            yield group
            group = []
    if rest:  # the last line may lack its end
        group.append(rest)
    if group:
        yield group
