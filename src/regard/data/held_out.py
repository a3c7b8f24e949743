"""The dev and test pairs that a run keeps, where it was trained on pairs given from Python.

They are JSON lines, so that `regard evaluate RUN FILE` can read them too.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from regard.data.pairs import Pair
from regard.errors import UserError
from regard.files import writing
from regard.files.reading import open_regular, parse_json
from regard.text.tags import read_tags, split_tags, tag_text, tagged


def write_held_out(folder: Path, split: str, pairs: Iterable[Pair], features: str = "") -> None:
    """Write the pairs of a split into a folder, which is made if need be.

    features: the key of the tags of the sources; empty: they have none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with writing(folder / f"{split}.jsonl") as file:
        for pair in pairs:
            item: dict[str, Any] = {"source": pair.source, "target": pair.targets}
            if features:
                text, tags = split_tags(pair.source)
                item["source"] = text
                item[features] = tag_text(tags)
            if pair.positions:
                item["positions"] = pair.positions
            line = json.dumps(item, ensure_ascii=False) + "\n"
            file.write(line.encode())


def read_held_out(folder: Path, split: str, features: str = "") -> list[Pair] | None:
    """The pairs of a split; None: the folder has none. features: the key of their tags."""
    path = folder / f"{split}.jsonl"
    if not path.exists():
        return None
    pairs = []
    with open_regular(path) as file:
        for line, text in enumerate(file, 1):
            try:
                pairs.append(_pair(parse_json(text), line, features))
            except (ValueError, KeyError, TypeError):
                raise UserError(f"{path} line {line}: damaged") from None
    return pairs


def _pair(item: Any, line: int, features: str) -> Pair:
    """The pair of a line. Raises ValueError, KeyError or TypeError if it is none."""
    texts = [item["source"], *item["target"]]
    tags = item[features] if features else ""
    if len(texts) < 2 or not all(isinstance(text, str) for text in (*texts, tags)):
        raise ValueError("not texts")
    if features:
        texts[0] = tagged(texts[0], read_tags(tags))
    positions = item.get("positions", [])
    if not all(type(number) is int and number >= 0 for number in positions):
        raise ValueError("not positions")
    return Pair(texts[0], tuple(texts[1:]), line, tuple(positions))
