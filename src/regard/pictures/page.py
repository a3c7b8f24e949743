"""One HTML file that shows attention: no network, no other files, opens anywhere."""

import base64
import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from regard.errors import UserError
from regard.pictures import shown

# Which tokens look (rows), which are looked at (columns), and what to call it.
BLOCKS = {
    "cross": ("target", "source", "cross: output looks at input"),
    "encoder": ("source", "source", "encoder: input looks at itself"),
    "decoder": ("target", "target", "decoder: output looks back at itself"),
}


def attention_page(
    source: Sequence[str],
    target: Sequence[str],
    blocks: Mapping[str, np.ndarray],
    *,
    title: str = "Attention",
    text_in: str = "",
    text_out: str = "",
) -> str:
    """The page as text.

    `blocks` holds weights by name: cross (L, H, T, S), encoder (L, H, S, S), decoder (L, H, T, T).
    """
    if not blocks:
        raise UserError("no attention to show: the page needs at least one of " + ", ".join(BLOCKS))
    tokens = {"source": list(source), "target": list(target)}
    data = {
        "in": text_in,
        "out": text_out,
        "tokens": {side: [shown(token) for token in those] for side, those in tokens.items()},
        "blocks": [_block(name, weights, tokens) for name, weights in blocks.items()],
    }
    filled = {"TITLE": html.escape(title), "DATA": _island(data)}
    template = files("regard.pictures").joinpath("page.html").read_text(encoding="utf-8")
    # In one pass, so that a title that says {{DATA}} stays a title.
    return re.sub(r"\{\{(TITLE|DATA)\}\}", lambda found: filled[found[1]], template)


def write_page(
    path: str | PathLike[str],
    source: Sequence[str],
    target: Sequence[str],
    blocks: Mapping[str, np.ndarray],
    *,
    title: str = "Attention",
    text_in: str = "",
    text_out: str = "",
) -> Path:
    """Write the page to `path` and say where it is."""
    place = Path(path)
    if place.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"cannot write a page to {place}: its name must end in .html")
    page = attention_page(source, target, blocks, title=title, text_in=text_in, text_out=text_out)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(page, encoding="utf-8")
    return place


def _block(name: str, weights: np.ndarray, tokens: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """One kind of attention for the page: its shape, and its weights as bytes, 255 for 1."""
    if name not in BLOCKS:
        raise UserError(f"no kind of attention called {name!r}; there are {', '.join(BLOCKS)}")
    rows, columns, label = BLOCKS[name]
    expected = (len(tokens[rows]), len(tokens[columns]))
    if weights.ndim != 4 or weights.shape[2:] != expected or 0 in weights.shape:
        raise UserError(f"{name} attention has shape {weights.shape}, expected (layers, heads, {expected[0]}, {expected[1]})")
    whole = np.clip(np.nan_to_num(weights.astype(np.float32)), 0, 1)
    quantised = np.rint(whole * 255).astype(np.uint8)
    return {
        "name": name,
        "label": label,
        "rows": rows,
        "columns": columns,
        "shape": list(weights.shape),
        "weights": base64.b64encode(quantised.tobytes()).decode("ascii"),
    }


def _island(data: Mapping[str, Any]) -> str:
    """JSON that cannot end its <script> element, whatever the tokens say."""
    text = json.dumps(data)  # ASCII only
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
