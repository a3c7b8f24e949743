"""The header of a safetensors file: which tensors it holds, checked before any is allocated."""

import math
import os
import re
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import counted
from regard.files.reading import open_regular, parse_json
from regard.runs.storage import MANIFEST, Corrupt, unreadable

MOST = 16 << 20  # bytes of a header; that of a thousand layers has less than two million
VALUES = 1_000_000  # of a header, some ten for each tensor
NAME = re.compile(r"[\w./-]{1,300}")
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Of a number, by its type. Weights and the optimiser's state have no others."""


class Stored(NamedTuple):
    """A tensor in a file."""

    shape: tuple[int, ...]
    numbers: int
    start: int  # byte of the data
    end: int


Header = dict[str, Stored]


def numbers_in(header: Header) -> int:
    """How many numbers all the tensors have."""
    return sum(tensor.numbers for tensor in header.values())


def read_header(path: Path) -> Header:
    """The tensors of a file; nothing but its header is read.

    Raises Corrupt unless the tensors are of floating-point numbers, lie one behind the other, and
    end where the file does.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(MOST, size - 8):
                raise ValueError(f"a header of {counted(length, 'byte')}")
            tensors = parse_json(file.read(length), VALUES)
        if not isinstance(tensors, dict):
            raise ValueError("it is not a table of tensors")
        tensors.pop("__metadata__", None)
        header = {name: _stored(name, tensor) for name, tensor in tensors.items()}
        _check_places(header, size - 8 - length)
    except FileNotFoundError:
        raise Corrupt(f"{path}: missing, but listed in {MANIFEST}") from None
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        raise Corrupt(f"{path}: not a file of weights, or damaged ({error})") from None
    return header


def _stored(name: str, tensor: Any) -> Stored:
    """What the header says of one tensor. Raises ValueError if that cannot be."""
    if NAME.fullmatch(name) is None:
        raise ValueError("a tensor has an impossible name")
    if not isinstance(tensor, dict):
        raise ValueError(f"{name} is not described")
    dtype = tensor.get("dtype")
    if not isinstance(dtype, str) or dtype not in BYTES:
        raise ValueError(f"{name} has type {dtype!s:.20}, not one of {', '.join(BYTES)}")
    shape = _sizes(name, tensor.get("shape"))
    places = _sizes(name, tensor.get("data_offsets"))
    numbers = math.prod(shape)
    if numbers == 0:
        raise ValueError(f"{name} is empty")
    if len(places) != 2 or places[1] - places[0] != numbers * BYTES[dtype]:
        raise ValueError(f"{name} has another size than its shape")
    return Stored(shape, numbers, *places)


def _sizes(name: str, values: Any) -> tuple[int, ...]:
    """A few whole numbers that sizes of tensors may be. Raises ValueError for others."""
    if not isinstance(values, list) or len(values) > 8:
        raise ValueError(f"{name} has no shape")
    if not all(type(value) is int and 0 <= value < 1 << 60 for value in values):
        raise ValueError(f"{name} has an impossible shape")
    return tuple(values)


def _check_places(header: Header, size: int) -> None:
    """Refuse tensors that overlap, leave a hole, or end elsewhere than the file does."""
    stored = sorted(header.values(), key=lambda tensor: tensor.start)
    starts = [tensor.start for tensor in stored]
    ends = [tensor.end for tensor in stored]
    is_first_at_start = not starts or starts[0] == 0
    is_close = all(before.end == after.start for before, after in pairwise(stored))
    if not is_first_at_start or not is_close or ends[-1:] != [size]:
        raise ValueError("its tensors do not fill the file one behind the other")
