"""One HTML file that shows attention: no network, no other files, opens anywhere."""

import base64
import html
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from regard.errors import UserError
from regard.pictures import shown, sides
from regard.record import AttentionRecord

Tokens = Sequence[str]
# What each block is called, and its rows and columns.
NAMES = {
    "cross": ("cross: output looks at input", "output tokens, each while it is written", "input tokens, looked at"),
    "encoder": ("encoder: input looks at itself", "input tokens, looking", "input tokens, looked at"),
    "decoder": ("decoder: output looks back", "output tokens, each while it is written", "tokens read so far, looked at"),
}


def attention_page(record: AttentionRecord, *, title: str = "Attention") -> str:
    """The page as text: of every token, where it looked and who looked at it, in each layer and head."""
    if not record.blocks:
        raise UserError("a page of attention needs a model that has some (model.attention is none)")
    blocks = [_block(name, w, record.source, record.target) for name, w in record.blocks.items()]
    data = {"in": record.text_in, "out": record.text_out, "blocks": blocks}
    # JSON, in ASCII, that cannot end its <script> element, whatever the tokens say.
    island = json.dumps(data).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    filled = {"TITLE": html.escape(title), "DATA": island}
    template = files("regard.pictures").joinpath("page.html").read_text(encoding="utf-8")
    # In one pass, so that a title that says {{DATA}} stays a title.
    return re.sub(r"\{\{(TITLE|DATA)\}\}", lambda found: filled[found[1]], template)


def write_page(path: str | PathLike[str], record: AttentionRecord, *, title: str = "Attention") -> Path:
    """Write the page to `path` and say where it is."""
    place = Path(path)
    if place.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"cannot write a page to {place}: its name must end in .html")
    page = attention_page(record, title=title)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(page, encoding="utf-8")
    return place


def _block(name: str, weights: np.ndarray, source: Tokens, target: Tokens) -> dict[str, Any]:
    """One kind of attention for the page: its tokens, its shape, and its weights as bytes, 255 for 1."""
    label, *headings = NAMES[name]
    rows, columns = ([shown(token) for token in tokens] for tokens in sides(name, source, target))
    if weights.ndim != 4 or weights.shape[2:] != (len(rows), len(columns)) or 0 in weights.shape:
        raise UserError(f"{name} attention has shape {weights.shape}, expected (layers, heads, {len(rows)}, {len(columns)})")
    quantised = np.rint(np.clip(np.nan_to_num(weights.astype(np.float32)), 0, 1) * 255).astype(np.uint8)
    encoded = base64.b64encode(quantised.tobytes()).decode("ascii")
    named = {"name": name, "label": label, "headings": headings, "rows": rows, "columns": columns}
    return {**named, "shape": list(weights.shape), "weights": encoded}
