"""`regard show evidence` and `regard prune`: what an answer hangs on, and what a model can do without."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

import regard
from regard.cli.terms import AsJson, Beam, RunFolder, refuse_options, table
from regard.errors import UserError


def evidence(
    run: RunFolder,
    text: Annotated[str, typer.Argument(help="What to translate.")],
    token: Annotated[str | None, typer.Option(help="A token of the answer, or its number from 0. Default: all, briefly.")] = None,
    beam: Beam = None,
    heads: Annotated[bool, typer.Option("--heads", help="What is lost without each head.")] = False,
    lens: Annotated[bool, typer.Option("--lens", help="What each layer of the decoder would have said.")] = False,
    as_json: AsJson = False,
    out: Annotated[Path | None, typer.Option(help="Draw the occlusion: .png, .svg or .pdf.")] = None,
) -> None:
    """What an answer hangs on.  Example: `regard show evidence runs/demo "he's calm ."`"""
    refuse_options([text], evidence)
    import regard.evidence as reasons

    translator = regard.load(run, beam=beam)
    result = next(translator.translate([text]))
    if not result.logprobs:
        raise UserError(f"{text!r:.40} has no answer")
    lost, seen = reasons.occlusion(translator, result), result.attention
    at, looked = None if token is None else _place(token, seen.target), "cross" in seen.blocks
    columns = {"attention": seen.matrix()} if looked else {}
    columns |= {"occlusion": lost, "gradient × input": reasons.gradient_times_input(translator, result)}
    alike = {how: reasons.agreement(seen, lost, how) for how in ("mean", "rollout") if looked}
    worth = reasons.heads(translator, [result]) if heads else []
    layers = reasons.logit_lens(translator, result) if lens else []
    if out is not None:
        from regard.pictures.heatmaps import heatmap

        label, title = "log-probability lost without it", f"{text} → {result.text}"
        heatmap(lost, seen.target, seen.source, title=title, signed=True, label=label, out=out)
    if as_json:
        found: dict[str, Any] = {name.replace(" × ", "_times_"): matrix.tolist() for name, matrix in columns.items()}
        found |= {"heads": [one._asdict() for one in worth], "lens": [[one._asdict() for one in row] for row in layers]}
        found |= {"rank_correlation": {how: value if value == value else None for how, value in alike.items()}}
        print(json.dumps({"text": result.text, "source": seen.source, "target": seen.target, **found}, ensure_ascii=False))
        return
    print(result.text)
    if at is not None:
        rows = [[name, *(f"{m[at, i]:.4f}" for m in columns.values())] for i, name in enumerate(seen.source)]
    else:
        tops = [[(m[t].argmax(), m[t].max()) for m in columns.values()] for t in range(len(lost))]
        rows = [[name, *(f"{seen.source[i]} {value:.2f}" for i, value in row)] for name, row in zip(seen.target, tops)]
    table(["token", *columns] if at is None else [f"for {seen.target[at]}", *columns], rows)
    if looked:
        print(f"{reasons.correlation(seen, lost)}\n{reasons.LIMIT}")
    if heads:
        table(["head", "lost without it"], ((f"{one.block} {one.layer}.{one.head}", f"{one.lost:+.4f}") for one in worth))
    if lens:
        said = [[f"{name} {p:.2f}" for row in layers for name, p in row[t].likely[:1]] for t in range(len(lost))]
        table(["token", *(f"layer {n}" for n in range(len(layers)))], ([name, *row] for name, row in zip(seen.target, said)))


def _place(token: str, target: list[str]) -> int:
    if token.isdecimal() and int(token) < len(target):
        return int(token)
    if token not in target:
        raise UserError(f"--token: no {token!r} in {' '.join(f'{i}:{name}' for i, name in enumerate(target))}")
    return target.index(token)


def prune(
    run: RunFolder,
    out: Annotated[Path, typer.Option(help="The new run's folder.")],
    tolerance: Annotated[float, typer.Option(min=0, help="By which share perplexity on dev may grow.")] = 0.01,
    points: Annotated[float, typer.Option(min=0, help="By how much BLEU and exact match, 0 to 100, may fall.")] = 0.5,
    as_json: AsJson = False,
) -> None:
    """Silence spare heads.  Example: `regard prune runs/demo --out runs/less`"""
    from regard.pruning import prune as silence

    made = silence(run, out, tolerance=tolerance, points=points).manifest["pruned"]
    if as_json:
        print(json.dumps(made))
        return
    table(["dev", "before", "after"], ((k, f"{made['before'][k]:.4f}", f"{v:.4f}") for k, v in made["after"].items()))
    gone = ", ".join(f"{one['block']} {one['layer']}.{one['head']}" for one in made["heads"]) or "none"
    print(f"{len(made['heads'])} of {made['of']} heads are silent in {out}, which is as large and fast as before: {gone}")
