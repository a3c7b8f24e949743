"""`regard show embeddings`: tokens in two dimensions."""

from pathlib import Path
from typing import Annotated, Any

import typer

import regard
from regard.cli.parts import PartsOption, read_parts
from regard.cli.show.terms import Open, Picture, wrote
from regard.cli.terms import RunFolder
from regard.errors import UserError


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
        start = tokenizer.first
        if tokenizer.kind == "bpe":
            start += 256  # skip the single bytes, which come first
        ids = list(range(start, min(tokenizer.size, start + (count or 60))))
    vectors = half.embedding.weight.detach()[ids].numpy()  # (ids, D)

    vocabulary = "shared by source and target" if opened.config.text.share else side
    ordinary = tokenizer.size - tokenizer.first
    title = (
        f"{opened.path.name}, {vocabulary}: {len(ids):,} of {ordinary:,} tokens, without the "
        f"{tokenizer.first} special ones"
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
