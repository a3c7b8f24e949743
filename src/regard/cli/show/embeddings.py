"""`regard show embeddings`: tokens in two dimensions."""

from pathlib import Path
from typing import Annotated, Any

import typer

import regard
from regard.cli.parts import PartsOption, read_parts
from regard.cli.show.terms import Open, Picture, wrote
from regard.cli.terms import RunFolder
from regard.errors import UserError, counted

SPECIAL = 4
"""Special tokens that every vocabulary has: <pad>, <bos>, <eos>, <unk>."""


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
    special: Annotated[
        bool,
        typer.Option("--special", help="Draw `<pad>`, `<bos>`, `<eos>` and `<unk>`, too."),
    ] = False,
    untrained: Annotated[
        bool,
        typer.Option("--untrained", help="Draw the embeddings with which the training began."),
    ] = False,
    out: Picture = Path("embeddings.png"),
    open_it: Open = False,
    parts: PartsOption = None,
) -> None:
    """Embeddings in two dimensions.

    Example: `regard show embeddings runs/demo --tokens cat,dog,eats,sleeps`
    """
    from regard.pictures.embeddings import embedding_map

    opened = regard.Run.open(run)
    if side not in ("source", "target"):
        raise UserError(f"--side {side}: choose source or target")
    if tokens and count:
        raise UserError("--tokens and --count cannot be combined: remove one of them")

    tokenizer = opened.source if side == "source" else opened.target
    ordinary = _ids_of(tokens, tokenizer) if tokens else _most_frequent(tokenizer, count or 60)
    ids = [*(range(SPECIAL) if special else []), *ordinary]
    ids = list(dict.fromkeys(ids))

    model = (
        _first_model(opened, read_parts(parts))
        if untrained
        else opened.model(parts=read_parts(parts))
    )
    half = _half_of(model, side)
    vectors = half.embedding.weight.detach()[ids].numpy()  # (ids, D)
    when = ", before training" if untrained else ""
    title = f"{opened.path.name}{when}: {_table_of(model, side)}; {_counted(ids, tokenizer)}"
    names = tokenizer.token_texts(ids)
    embedding_map(vectors, names, title=title, labels=60 + SPECIAL, out=out)
    wrote(out, open_it)


def _half_of(model: Any, side: str) -> Any:
    """The encoder or the decoder; a language model has only one of them, for both sides."""
    from regard.models import CausalModel, MaskedEncoder

    if isinstance(model, CausalModel):
        return model.decoder
    is_encoder = side == "source" or isinstance(model, MaskedEncoder)
    return model.encoder if is_encoder else model.decoder


def _first_model(run: Any, parts: Any) -> Any:
    """The model as it was at step 0: the same seed draws the same weights."""
    import torch

    if run.config.train.start_from:
        raise UserError(
            f"--untrained: {run.path} was fine-tuned; draw the run that it started from instead"
        )
    torch.manual_seed(run.config.train.seed)
    return run.new_model(parts)


def _most_frequent(tokenizer: Any, count: int) -> list[int]:
    """The ids of the most frequent tokens."""
    start = tokenizer.first
    if tokenizer.kind == "bpe":
        start += 256  # skip the single bytes, which come first
    return list(range(start, min(tokenizer.size, start + count)))


def _table_of(model: Any, side: str) -> str:
    """Which table the embeddings of a side are, and what else it is used for."""
    from regard.models import CausalModel, Seq2Seq

    source = _half_of(model, "source").embedding.weight
    target = _half_of(model, "target").embedding.weight
    output = getattr(getattr(model, "out", None), "weight", None)
    if not isinstance(model, Seq2Seq) or isinstance(model, CausalModel):
        return "one table with the output layer" if output is source else "the table of all tokens"
    if source is target:
        users = "source, target and the output layer" if output is target else "source and target"
        return f"one table for {users}"
    if side == "target" and output is target:
        return "the target's table, which is also the output layer's"
    return f"the {side}'s own table"


def _counted(ids: list[int], tokenizer: Any) -> str:
    """How many of the tokens are drawn."""
    special = sum(id < SPECIAL for id in ids)
    words = f"{len(ids) - special:,} of {counted(tokenizer.size - tokenizer.first, 'token')}"
    if special:
        return f"{words} and {counted(special, 'special token')}"
    return f"{words}, without special tokens"


def _ids_of(tokens: str, tokenizer: Any) -> list[int]:
    """The ids of tokens that are separated by commas, each once.

    Subwords that begin a word have a space before them; nobody needs to write it.
    """
    from regard.text.vocabulary import SPECIALS, UNK

    names = [name.strip() for name in tokens.split(",")]
    ids = []
    for name in dict.fromkeys(name for name in names if name):
        if name in SPECIALS[:SPECIAL]:
            ids.append(SPECIALS.index(name))
            continue
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
