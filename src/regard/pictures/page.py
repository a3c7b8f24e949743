"""One HTML file that shows attention: no network, no other files, opens anywhere.

A weight w is kept as the byte n·√w, n = 255: 0 and 1 stay what they are, the small weights of long
inputs stay apart, and all come back within √w/n + 1/4n². Where the page would grow over 20 MB, n is
smaller, and the page says how exact it is. Each layer is packed on its own, and unpacked when it is
chosen.
"""

import base64
import hashlib
import html
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from regard.errors import UserError
from regard.pictures import shown
from regard.records.attention import AttentionRecord, grouped
from regard.records.tree import Node

# What each block is called, and its rows and columns.
NAMES = {
    "cross": (
        "cross: output looks at input",
        "output tokens, each while it is written",
        "input tokens, looked at",
    ),
    "encoder": (
        "encoder: input looks at itself",
        "input tokens, looking",
        "input tokens, looked at",
    ),
    "decoder": (
        "decoder: output looks back",
        "output tokens, each while it is written",
        "tokens read so far, looked at",
    ),
    "occlusion": (
        "drop in log-probability if hidden",
        "output tokens",
        "input tokens, each hidden in turn",
    ),
    "gradient": ("gradient × input", "output tokens", "input tokens"),
}
LIMIT = 20_000_000
LEVELS = (255, 180, 127, 90, 75, 63, 45, 31, 21, 15)


def attention_page(
    record: AttentionRecord,
    *,
    title: str = "Attention",
    tree: Sequence[Node] = (),
    alternatives: Sequence[tuple[str, float]] = (),
    evidence: Mapping[str, np.ndarray] | None = None,
    notes: Sequence[str] = (),
) -> str:
    """The page as text: of every token, where it looked and who looked at it, in each layer and
    head; and what the search tried.

    `alternatives` are other answers with their scores; `evidence` has signed matrices (T, S) named
    occlusion or gradient.
    """
    if not record.blocks:
        raise UserError("a page of attention needs a model that has some (model.attention is none)")
    if any(not -1 <= node.parent < i for i, node in enumerate(tree)):
        raise UserError("in a tree of the search, the parent of a node stands before it")
    whole = len(record.blocks) == 3  # as rollout needs it
    blocks = [
        _block(name, record, w.shape, norms=name in record.norms, rollout=whole)
        for name, w in record.blocks.items()
    ]
    chunks = {}
    for name, matrix in (evidence or {}).items():
        matrix = np.nan_to_num(matrix, posinf=0, neginf=0)
        scale = float(np.abs(matrix).max(initial=1e-9)) / 32767
        blocks.append(_block(name, record, (1, 1, *np.shape(matrix)), scale=scale))
        chunks[f"{name}-0"] = _packed(np.rint(matrix / scale).astype("<i2").tobytes())
    data: dict[str, Any] = {
        "in": record.text_in,
        "out": record.text_out,
        "blocks": blocks,
        "notes": list(notes),
    }
    data["words"] = (
        _words(record.text_in, record.source_spans),
        _words(record.text_out, record.target_spans),
    )
    data["tree"] = [
        [shown(n.token), n.parent, n.step, *_finite(np.exp(n.logprob), n.total), n.fate]
        for n in tree
    ]
    data["alternatives"] = [[text, *_finite(score)] for text, score in alternatives]
    data["candidates"] = [
        [[shown(token), *_finite(p)] for token, p in step] for step in record.candidates
    ]
    n, weights = _weights(
        record, LIMIT - 60_000 - len(json.dumps(data)) - sum(map(len, chunks.values()))
    )
    half, little = (f"{100 * (w**0.5 / n + 0.25 / n**2):.2g}" for w in (0.5, 0.01))
    exact = (
        f"Weights are kept in {n} steps of their square root: 50 % is exact to ±{half} points, 1 "
        f"% to ±{little}."
    )
    data |= {"levels": n, "exact": exact}
    # JSON, in ASCII, that cannot end its <script> element, whatever the tokens say.
    island = (
        json.dumps(data).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    )
    # shown while the rest is still being loaded
    first = f"{blocks[0]['name']}-{blocks[0]['shape'][0] - 1}"
    chunks = {first: weights[first]} | weights | chunks
    scripts = [
        f'<script type="text/plain" id="{key}">{text}</script>' for key, text in chunks.items()
    ]
    parts = {"DATA": island, "FIRST": scripts[0], "REST": "\n".join(scripts[1:])}
    parts["TITLE"] = html.escape(title).encode("ascii", "xmlcharrefreplace").decode()
    here = files("regard.pictures")
    template, style, script = (
        here.joinpath(f"page.{end}").read_text("utf-8") for end in ("html", "css", "js")
    )
    own = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (script, style)
    )  # only these may work
    policy = (
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; base-uri 'none'; "
        "form-action 'none'"
    )
    parts |= {"STYLE": style, "SCRIPT": script, "POLICY": policy.format(*own)}
    # In one pass, so that a title that says {{DATA}} stays a title.
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda found: parts[found[1]], template)


def write_page(path: str | PathLike[str], record: AttentionRecord, **more: Any) -> Path:
    """Write `attention_page(record, **more)` to `path` and say where it is."""
    place = Path(path)
    if place.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"cannot write a page to {place}: its name must end in .html")
    page = attention_page(record, **more)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(page, encoding="utf-8")
    return place


def _finite(*numbers: float) -> list[float]:
    return [
        round(float(x), 6)
        for x in np.nan_to_num(np.asarray(numbers, np.float64), posinf=1e9, neginf=-1e9)
    ]


def _block(
    name: str, record: AttentionRecord, shape: tuple[int, ...], **more: Any
) -> dict[str, Any]:
    """One kind of attention, or of evidence, for the page: its tokens and its shape."""
    if name not in NAMES or ("scale" in more and name in record.blocks):
        raise UserError(f"there is no page of {name}: there is {', '.join(NAMES)}")
    label, *headings = NAMES[name]
    kind = name if name in record.blocks else "cross"
    rows, columns = ([shown(token) for token in tokens] for tokens in record.sides(kind))
    if len(shape) != 4 or shape[2:] != (len(rows), len(columns)) or 0 in shape:
        raise UserError(
            f"{name} attention has shape {shape}, expected (layers, heads, {len(rows)}, "
            f"{len(columns)})"
        )
    return {
        "name": name,
        "label": label,
        "headings": headings,
        "rows": rows,
        "columns": columns,
        "shape": list(shape),
        **more,
    }


def _words(text: str, spans: Sequence[tuple[int, int]]) -> tuple[list[str], list[int]] | None:
    """The words of a text and, of each token, the number of its word."""
    words, numbers, _ = grouped(text, spans)
    return ([shown(word) for word in words], numbers) if spans else None


def _weights(record: AttentionRecord, room: int) -> tuple[int, dict[str, str]]:
    """The most levels whose chunks fit into that many characters, and the chunks."""
    layers = {
        f"{name}-{i}": w for name, weights in record.blocks.items() for i, w in enumerate(weights)
    }
    if len(record.blocks) == 3:
        layers |= {f"{name}-rollout": record.matrix(name, "rollout") for name in record.blocks}
    norms = {
        f"{name}-{i}": v.astype("<f4").tobytes()
        for name, lengths in record.norms.items()
        for i, v in enumerate(lengths)
    }

    def packed(key: str, n: int) -> str:
        codes = np.sqrt(np.clip(np.nan_to_num(layers[key].astype(np.float32)), 0, 1)) * n
        return _packed(np.rint(codes).astype(np.uint8).tobytes() + norms.get(key, b""))

    for n in LEVELS:  # first as if all layers were like the first one
        if (
            sum(len(packed(f"{name}-0", n)) * len(w) for name, w in record.blocks.items()) <= room
            or n == LEVELS[-1]
        ):
            chunks = {key: packed(key, n) for key in layers}
            if sum(map(len, chunks.values())) <= room:
                break
    return n, chunks


def _packed(raw: bytes) -> str:
    """Noise packs best by letter counts alone, and what is mostly zeros by runs; both are quick."""
    packers = [
        zlib.compressobj(strategy=strategy, memLevel=9)
        for strategy in (zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE)
    ]
    return base64.b64encode(
        min((packer.compress(raw) + packer.flush() for packer in packers), key=len)
    ).decode("ascii")
