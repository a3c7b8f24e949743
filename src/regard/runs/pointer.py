"""The file `best`: the name of a checkpoint, and a sum by which a flipped bit is noticed.

The sum is written in blanks below the name, so that `cat best` and older versions read the name
alone. Older versions wrote no sum, and a person who points `best` elsewhere by hand writes none:
that is read, too.
"""

import hashlib
import re
from pathlib import Path

from regard.files.reading import read_bytes

MOST = 1024  # bytes
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")  # of a checkpoint: never outside its folder
BLANKS = {"0": " ", "1": "\t"}


def pointer_text(name: str) -> str:
    """The content of a file that points at this checkpoint."""
    return f"{name}\n{_sum(name)}\n"


def read_pointer(path: Path) -> str:
    """The name of the checkpoint that a file points at.

    Raises OSError if the file cannot be read, ValueError if it is damaged.
    """
    line, _, rest = read_bytes(path, MOST).decode("ascii").partition("\n")
    name = line.strip()
    if NAME.fullmatch(name) is None:
        raise ValueError(line)
    signature = rest.strip("\r\n")
    if signature and signature != _sum(name):
        raise ValueError(line)
    return name


def _sum(name: str) -> str:
    """The first 32 bits of the name's SHA-256, a blank for each."""
    digest = hashlib.sha256(name.encode()).digest()
    bits = f"{int.from_bytes(digest[:4], 'big'):032b}"
    return "".join(BLANKS[bit] for bit in bits)
