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


def write_held_out(folder: Path, split: str, pairs: Iterable[Pair]) -> None:
    """Write the pairs of a split into a folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    with writing(folder / f"{split}.jsonl") as file:
        for pair in pairs:
            item: dict[str, Any] = {"source": pair.source, "target": pair.targets}
            if pair.positions:
                item["positions"] = pair.positions
            line = json.dumps(item, ensure_ascii=False) + "\n"
            file.write(line.encode())


def read_held_out(folder: Path, split: str) -> list[Pair] | None:
    """The pairs of a split; None: the folder has none."""
    path = folder / f"{split}.jsonl"
    if not path.exists():
        return None
    pairs = []
    with open_regular(path) as file:
        for line, text in enumerate(file, 1):
            try:
                pairs.append(_pair(parse_json(text), line))
            except (ValueError, KeyError, TypeError):
                raise UserError(f"{path} line {line}: damaged") from None
    return pairs


def _pair(item: Any, line: int) -> Pair:
    """The pair of a line. Raises ValueError, KeyError or TypeError if it is none."""
    texts = [item["source"], *item["target"]]
    if len(texts) < 2 or not all(isinstance(text, str) for text in texts):
        raise ValueError("not texts")
    positions = item.get("positions", [])
    if not all(type(number) is int and number >= 0 for number in positions):
        raise ValueError("not positions")
    return Pair(texts[0], tuple(texts[1:]), line, tuple(positions))
