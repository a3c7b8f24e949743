"""One HTML file that shows attention: no network, no other files, opens anywhere.

A weight w is kept as the byte n·√w, n = 255 levels: 0 and 1 stay what they are, the small weights
of long inputs stay apart, and all come back within √w/n + 1/4n². Where the page would grow over
20 MB, n is smaller, and the page says how exact it is. Each layer is packed on its own into a chunk
of text, and unpacked when it is chosen.
"""

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard.display import html, page_text
from regard.display.template import page_from_template
from regard.errors import UserError
from regard.pictures import shown
from regard.records.attention import AttentionRecord, isolated, words_of_tokens
from regard.records.page import Page, page_path
from regard.records.tree import Node

# What each block is called, and its rows and columns.
NAMES = {
    "cross": (
        "cross: output looks at input",
        "output tokens, each as it is generated",
        "input tokens, looked at",
    ),
    "encoder": (
        "encoder: input looks at itself",
        "input tokens, looking",
        "input tokens, looked at",
    ),
    "decoder": (
        "decoder: output looks back",
        "output tokens, each as it is generated",
        "tokens read so far, looked at",
    ),
    "occlusion": (
        "drop in log-probability if hidden",
        "output tokens",
        "input tokens, each hidden in turn",
    ),
    "gradient": ("gradient × input", "output tokens", "input tokens"),
}
LIMIT = 20_000_000  # characters of a page
FRAME = 60_000  # characters kept free for the template, its style and its script
LEVELS = (255, 180, 127, 90, 75, 63, 45, 31, 21, 15)
Chunks = dict[str, str]  # by name, such as cross-0: block and layer


class PackedWeights(NamedTuple):
    """The weights of every layer as chunks, and the number of levels that they were rounded to."""

    levels: int
    chunks: Chunks


def attention_page(
    record: AttentionRecord,
    *,
    title: str = "Attention",
    tree: Sequence[Node] = (),
    alternatives: Sequence[tuple[str, float]] = (),
    evidence: Mapping[str, np.ndarray] | None = None,
    notes: Sequence[str] = (),
) -> str:
    """The HTML of a page that shows one answer and its attention.

    It shows of every token where it looked and who looked at it, in each layer and head, and what
    the search tried. `alternatives` are other answers with their scores; `evidence` has signed
    matrices (T, S) named occlusion or gradient.
    """
    if not record.blocks:
        raise UserError("an attention page needs a model with attention (model.attention is none)")
    if any(not -1 <= node.parent < number for number, node in enumerate(tree)):
        raise UserError("in a search tree, each node must come after its parent")

    blocks = _attention_blocks(record)
    evidence_chunks: Chunks = {}
    for name, matrix in (evidence or {}).items():
        block, chunk = _evidence_block(name, record, matrix)
        blocks.append(block)
        evidence_chunks[f"{name}-0"] = chunk

    data = _answer_data(record, blocks, tree, alternatives, notes)
    room = LIMIT - FRAME - len(json.dumps(data)) - sum(map(len, evidence_chunks.values()))
    weights = _pack_weights(record, room)
    data["levels"] = weights.levels
    data["exact"] = _precision(weights.levels)

    # The last layer of the first block is shown while the other chunks are still being loaded.
    layers = blocks[0]["shape"][0]
    first = f"{blocks[0]['name']}-{layers - 1}"
    chunks = {first: weights.chunks[first]} | weights.chunks | evidence_chunks
    return _fill_template(title, _tab_title(record, title), data, chunks)


def write_page(path: str | PathLike[str], record: AttentionRecord, **more: Any) -> Path:
    """Write `attention_page(record, **more)` to `path` and say where it is."""
    place = page_path(path)  # a wrong name is told before the page is made
    return Page(attention_page(record, **more)).write(place)


def _tab_title(record: AttentionRecord, title: str) -> str:
    """What the browser's tab is called: the sentence and its answer, shortened, then the title."""
    if not (record.text_in or record.text_out):
        return title
    answer = isolated(_shortened(record.text_out, 40))
    if not record.text_in:  # of a language model
        return f"{answer} · {title}"
    source = isolated(_shortened(record.text_in, 40))
    return f"{source} → {answer} · {title}"


def _shortened(text: str, limit: int) -> str:
    """A text on one line, with no more characters than `limit`."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _answer_data(
    record: AttentionRecord,
    blocks: list[dict[str, Any]],
    tree: Sequence[Node],
    alternatives: Sequence[tuple[str, float]],
    notes: Sequence[str],
) -> dict[str, Any]:
    """All that the page's script reads as JSON, apart from the precision of the weights."""
    return {
        "in": page_text(record.text_in),
        "out": page_text(record.text_out),
        "blocks": blocks,
        "notes": [page_text(note) for note in notes],
        "words": (
            _words(record.text_in, record.source_spans),
            _words(record.text_out, record.target_spans),
        ),
        "tree": [_tree_row(node) for node in tree],
        "alternatives": [[page_text(text), *_finite(score)] for text, score in alternatives],
        "candidates": [
            [[shown(token), *_finite(probability)] for token, probability in step]
            for step in record.candidates
        ],
    }


def _attention_blocks(record: AttentionRecord) -> list[dict[str, Any]]:
    """Every kind of attention of the record, for the page."""
    has_rollout = _has_rollout(record)
    return [
        _block(name, record, weights.shape, norms=name in record.norms, rollout=has_rollout)
        for name, weights in record.blocks.items()
    ]


def _evidence_block(
    name: str, record: AttentionRecord, matrix: np.ndarray
) -> tuple[dict[str, Any], str]:
    """One kind of evidence (T, S) for the page, and its chunk of 16-bit numbers."""
    matrix = np.nan_to_num(matrix, posinf=0, neginf=0)  # (T, S)
    scale = float(np.abs(matrix).max(initial=1e-9)) / 32767
    block = _block(name, record, (1, 1, *np.shape(matrix)), scale=scale)
    codes = np.rint(matrix / scale).astype("<i2")
    return block, _pack(codes.tobytes())


def _block(
    name: str, record: AttentionRecord, shape: tuple[int, ...], **more: Any
) -> dict[str, Any]:
    """One kind of attention, or of evidence, for the page: its tokens and its shape."""
    is_evidence = "scale" in more
    if name not in NAMES or (is_evidence and name in record.blocks):
        raise UserError(f"no page for {name!r}; available: {', '.join(NAMES)}")

    label, *headings = NAMES[name]
    row_tokens, column_tokens = record.sides(name if name in record.blocks else "cross")
    rows = [shown(token) for token in row_tokens]
    columns = [shown(token) for token in column_tokens]
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


def _has_rollout(record: AttentionRecord) -> bool:
    """Rollout follows the input through encoder, decoder and cross attention: it needs all."""
    return len(record.blocks) == 3 and record.has_rollout


def _words(text: str, spans: Sequence[tuple[int, int]]) -> tuple[list[str], list[int]] | None:
    """The words of a text and, of each token, the number of its word."""
    if not spans:
        return None
    words, numbers, _ = words_of_tokens(text, spans)
    return [shown(word) for word in words], numbers


def _tree_row(node: Node) -> list[Any]:
    """A node of the search as the page reads it."""
    probability, total = _finite(np.exp(node.logprob), node.total)
    return [shown(node.token), node.parent, node.step, probability, total, node.fate]


def _finite(*numbers: float) -> list[float]:
    """The numbers as JSON can hold them: rounded, and neither infinite nor NaN."""
    finite = np.nan_to_num(np.asarray(numbers, np.float64), posinf=1e9, neginf=-1e9)
    return [round(float(number), 6) for number in finite]


def _precision(levels: int) -> str:
    """A sentence that says how exact the weights of the page are."""
    half = _error_in_points(0.5, levels)
    hundredth = _error_in_points(0.01, levels)
    return (
        f"Weights are stored in {levels} steps of their square root: 50 % is accurate to "
        f"±{half:.2g} points, 1 % to ±{hundredth:.2g}."
    )


def _error_in_points(weight: float, levels: int) -> float:
    """By how many percentage points a weight may be off after rounding."""
    return 100 * (weight**0.5 / levels + 0.25 / levels**2)


def _pack_weights(record: AttentionRecord, room: int) -> PackedWeights:
    """Pack all layers with as many levels as fit into `room` characters.

    If even the fewest levels do not fit, they are used nevertheless.
    """
    layers = _layers(record)
    norms = _norms(record)

    def pack_layer(key: str, levels: int) -> str:
        return _pack(_weight_codes(layers[key], levels) + norms.get(key, b""))

    def estimate(levels: int) -> int:
        """Characters of all layers, if each were as long as the first one of its block."""
        return sum(
            len(pack_layer(f"{name}-0", levels)) * len(block)
            for name, block in record.blocks.items()
        )

    for levels in LEVELS[:-1]:
        if estimate(levels) > room:
            continue
        chunks = {key: pack_layer(key, levels) for key in layers}
        if sum(map(len, chunks.values())) <= room:
            return PackedWeights(levels, chunks)

    fewest = LEVELS[-1]
    return PackedWeights(fewest, {key: pack_layer(key, fewest) for key in layers})


def _layers(record: AttentionRecord) -> dict[str, np.ndarray]:
    """The weights of each layer (H, T, S), and the rollout (T, S) of each block, by chunk name."""
    layers: dict[str, np.ndarray] = {}
    for name, block in record.blocks.items():
        for number, weights in enumerate(block):
            layers[f"{name}-{number}"] = weights  # (H, T, S)

    if _has_rollout(record):
        for name in record.blocks:
            layers[f"{name}-rollout"] = record.matrix(name, "rollout")  # (T, S)
    return layers


def _norms(record: AttentionRecord) -> dict[str, bytes]:
    """The value norms of each layer (H, S) as bytes, by chunk name."""
    norms: dict[str, bytes] = {}
    for name, block in record.norms.items():
        for number, lengths in enumerate(block):
            norms[f"{name}-{number}"] = lengths.astype("<f4").tobytes()  # (H, S)
    return norms


def _weight_codes(weights: np.ndarray, levels: int) -> bytes:
    """A byte for each weight: its square root in so many levels. NaN becomes 0."""
    clipped = np.clip(np.nan_to_num(weights.astype(np.float32)), 0, 1)
    codes = np.rint(np.sqrt(clipped) * levels)
    return codes.astype(np.uint8).tobytes()


def _pack(raw: bytes) -> str:
    """Compress bytes in the better of two quick ways, and write them as Base64.

    Noise packs best by the frequency of bytes alone (Huffman), what is mostly zeros by runs (RLE).
    """
    candidates = []
    for strategy in (zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE):
        compressor = zlib.compressobj(strategy=strategy, memLevel=9)
        candidates.append(compressor.compress(raw) + compressor.flush())
    shortest = min(candidates, key=len)
    return base64.b64encode(shortest).decode("ascii")


def _fill_template(title: str, tab: str, data: Mapping[str, Any], chunks: Chunks) -> str:
    """The page's HTML, from its template, style and script beside this file."""
    first, *rest = [
        f'<script type="text/plain" id="{key}">{chunk}</script>' for key, chunk in chunks.items()
    ]
    parts = {
        "TITLE": _ascii_html(title),
        "TAB": _ascii_html(tab),
        "DATA": _script_safe_json(data),
        "FIRST": first,
        "REST": "\n".join(rest),
    }
    return page_from_template("regard.pictures", "page", parts)


def _ascii_html(text: str) -> str:
    """The text as HTML, in ASCII."""
    return html(text).encode("ascii", "xmlcharrefreplace").decode()


def _script_safe_json(data: Mapping[str, Any]) -> str:
    """JSON, in ASCII, that cannot end its <script> element, whatever the tokens say."""
    text = json.dumps(data)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
