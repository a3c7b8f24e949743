"""Thousands of damaged data files: right pairs and exact counts, or one line that says why not.

Every case follows from a seed and its number, which a failure prints; --law-seed N makes others.
"""

import csv
import gzip
import importlib.util
import io
import json
import random
import unicodedata
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from regard.data.pairs import Pair
from regard.data.splits import Splits, open_data
from regard.errors import UserError

SEED = 20261116
FEW = 300
MANY = 5_000
LONGEST_LINE = 400  # characters of an error, its path left out

WORDS = (
    *("the", "a", "cat", "dog", "sees", "is", "calm", "été", "Straße", "Привет", "мир", "日本"),
    *("😀", "e\u0301", "1+2", "x;y", "a,b"),
)


def text(lot: random.Random) -> str:
    return " ".join(lot.choice(WORDS) for _ in range(lot.randint(1, 6)))


def sound_pairs(lot: random.Random) -> list[tuple[str, str]]:
    """Pairs whose sources all differ, so that each can be found again."""
    return [(f"{text(lot)} {number}", text(lot)) for number in range(lot.randint(2, 40))]


# Sound files


def tsv(pairs: list[tuple[str, str]]) -> bytes:
    return "".join(f"{source}\t{target}\n" for source, target in pairs).encode()


def table(pairs: list[tuple[str, str]], separator: str) -> bytes:
    content = io.StringIO()
    csv.writer(content, delimiter=separator, lineterminator="\n").writerows(pairs)
    return content.getvalue().encode()


def objects(pairs: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"source": source, "target": target} for source, target in pairs]


def json_lines(pairs: list[tuple[str, str]]) -> bytes:
    return "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in objects(pairs)).encode()


def json_array(pairs: list[tuple[str, str]]) -> bytes:
    return json.dumps(objects(pairs), ensure_ascii=False, indent=1).encode()


def tmx(pairs: list[tuple[str, str]]) -> bytes:
    units = "".join(
        f'<tu><tuv xml:lang="en"><seg>{source}</seg></tuv>\n'
        f'<tuv xml:lang="de"><seg>{target}</seg></tuv></tu>\n'
        for source, target in pairs
    )
    return f'<?xml version="1.0"?>\n<tmx version="1.4"><body>\n{units}</body></tmx>\n'.encode()


def parquet(pairs: list[tuple[str, str]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    content = io.BytesIO()
    sources, targets = zip(*pairs, strict=True)
    columns = {"source": list(sources), "target": list(targets)}
    pq.write_table(pa.table(columns), content, row_group_size=16)
    return content.getvalue()


Write = Callable[[list[tuple[str, str]]], bytes]
KINDS: dict[str, Write] = {
    "pairs.tsv": tsv,
    "pairs.csv": lambda pairs: table(pairs, ","),
    "semicolons.csv": lambda pairs: table(pairs, ";"),
    "pairs.jsonl": json_lines,
    "pairs.json": json_array,
    "pairs.tmx": tmx,
    "pairs.parquet": parquet,
    "aligned.en": lambda pairs: "".join(f"{source}\n" for source, _ in pairs).encode(),
}
if importlib.util.find_spec("pyarrow") is None:
    del KINDS["pairs.parquet"]


# Mutations: bytes -> bytes

INSERTED = [
    *(b"\0", b"\xef\xbb\xbf", b'"', b'""', b"'", b"\t", b"\t\t", b"\r", b"\r\n", b"\n", b"\n\n"),
    *("\u2028".encode(), "\x85".encode(), b"\xff", b"\xc3", b"\xed\xa0\x80", b"\\ud800", b"\\"),
    *(b",", b";", b"|", b"<", b"&", b"&amp;", b"]", b"[", b"}", b"{", b"NaN", b"9" * 5000),
    *(b"[" * 2000, b"x" * 20_000, b"source\ttarget\n", b"<seg>", b"</tu>", b"<!ENTITY a 'b'>"),
]


def flip(data: bytes, lot: random.Random) -> bytes:
    place = lot.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << lot.randrange(8))]) + data[place + 1 :]


def delete(data: bytes, lot: random.Random) -> bytes:
    place = lot.randrange(len(data))
    return data[:place] + data[place + lot.choice([1, 1, 2, 5, 30]) :]


def insert(data: bytes, lot: random.Random) -> bytes:
    place = lot.randrange(len(data) + 1)
    return data[:place] + lot.choice(INSERTED) + data[place:]


def noise(data: bytes, lot: random.Random) -> bytes:
    place = lot.randrange(len(data) + 1)
    return data[:place] + lot.randbytes(lot.choice([1, 4, 40])) + data[place:]


def truncate(data: bytes, lot: random.Random) -> bytes:
    return data[: lot.randrange(len(data) + 1)]


def duplicate(data: bytes, lot: random.Random) -> bytes:
    start, end = sorted(lot.randrange(len(data) + 1) for _ in range(2))
    return data[:end] + data[start:end] + data[end:]


def swap_lines(data: bytes, lot: random.Random) -> bytes:
    lines = data.split(b"\n")
    one, other = lot.randrange(len(lines)), lot.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return b"\n".join(lines)


def splice(data: bytes, lot: random.Random) -> bytes:
    other = KINDS[lot.choice([*KINDS])](sound_pairs(lot))
    return data[: lot.randrange(len(data) + 1)] + other[lot.randrange(len(other) + 1) :]


MUTATIONS = [flip, delete, insert, insert, noise, truncate, duplicate, swap_lines, splice]


@dataclass(frozen=True)
class Case:
    """A damaged file; `sound` is what it was made from, `content` what it is when unpacked."""

    name: str
    pairs: list[tuple[str, str]]
    sound: bytes
    content: bytes
    packing: str  # "", "gz", or "damaged": its gzip is no gzip any more

    @property
    def file(self) -> str:
        return f"{self.name}.gz" if self.packing else self.name

    def write(self, folder: Path) -> Path:
        path = folder / self.file
        data = self.content
        if self.packing:
            data = gzip.compress(self.content, 1)
        if self.packing == "damaged":
            lot = random.Random(len(data))
            data = data[:10] + lot.choice([flip, delete, truncate, noise])(data[10:], lot)
        path.write_bytes(data)
        if self.name == "aligned.en":
            targets = "".join(f"{target}\n" for _, target in self.pairs)
            (folder / "aligned.de").write_text(targets, encoding="utf-8")
        return path


def make_case(seed: int, number: int) -> Case:
    lot = random.Random(f"{seed} {number}")
    name = [*KINDS][number % len(KINDS)]
    pairs = sound_pairs(lot)
    sound = KINDS[name](pairs)
    content = sound
    for _ in range(lot.choice([1, 1, 1, 2, 4])):
        content = lot.choice(MUTATIONS)(content, lot) if content else content
    packing = lot.choice(["", "", "", "gz", "damaged"])
    return Case(name, pairs, sound, content, packing)


# What must hold


def clean(source: str) -> str:
    return unicodedata.normalize("NFC", source.strip(" \t\r\n"))


def read(case: Case, path: Path) -> tuple[Splits, list[Pair]]:
    options: dict[str, Any] = {"dev": 0, "test": 0, "header": "no"}
    if case.name == "aligned.en":
        options |= {"source": "en", "target": "de"}
    if case.name == "pairs.tmx":
        options |= {"source": "en", "target": "de"}
    splits = open_data(str(path), **options)
    return splits, list(splits.train)


def check(case: Case, folder: Path) -> str:
    """Read the file; returns what came of it."""
    path = case.write(folder)
    try:
        splits, pairs = read(case, path)
    except UserError as error:
        said = str(error)
        assert case.name.split(".")[0] in said
        assert "\n" not in said
        assert said.isprintable()
        assert len(said.replace(str(folder), "")) <= LONGEST_LINE
        return "refused"

    skipped = Counter()
    for (_, reason), count in splits.skipped.counts.items():
        skipped[reason] += count
        lines = splits.skipped.first[_, reason]
        assert len(lines) == min(count, 10)
    assert [pair.line for pair in pairs] == sorted({pair.line for pair in pairs})
    assert all(pair.source and all(pair.targets) for pair in pairs)
    if case.packing != "damaged":
        check_counts(case, pairs, sum(skipped.values()))
        check_untouched(case, pairs)
    return "read"


def check_counts(case: Case, pairs: list[Pair], skipped: int) -> None:
    """Every line, item, unit or row gives a pair or is counted, as another program counts them."""
    rows = None
    if lines_are_rows(case):
        lines = case.content.split(b"\n")
        rows = len(lines) - (not lines[-1])
    elif case.name == "pairs.json":
        rows = items_of_array(case.content)
    elif case.name == "pairs.tmx":
        rows = units_of_tmx(case.content)
    elif case.name == "pairs.parquet":
        rows = rows_of_parquet(case.content)
    if rows is not None:
        assert len(pairs) + skipped == rows


def lines_are_rows(case: Case) -> bool:
    """Whether what lies between two line ends is one row, whatever is in it.

    Of CSV that is so if no quote is open at the end of a line; and what separates its columns can
    be told only if most of it is as it was.
    """
    content = case.content
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):  # looks like UTF-16
        return False
    if case.name == "pairs.jsonl":
        return is_json_lines(content)
    if case.name.endswith(".csv"):
        lines = content.split(b"\n")
        even = all(line.count(b'"') % 2 == 0 for line in lines)
        sound = {*case.sound.split(b"\n")}
        same = sum(line in sound for line in lines) >= 0.8 * max(10, len(lines))
        return same and even and b"\r" not in content and b"\\" not in content
    return case.name in ("pairs.tsv", "aligned.en")


def is_json_lines(content: bytes) -> bool:
    """Whether the first line is an item of its own, so that the file is read line by line."""
    first = content.removeprefix(b"\xef\xbb\xbf").strip().split(b"\n")[0]
    try:
        return isinstance(json.loads(first), dict | list)
    except (ValueError, RecursionError):
        return False


def items_of_array(content: bytes) -> int | None:
    try:
        value = json.loads(content.decode("utf-8-sig", "surrogateescape"), parse_int=str)
    except (ValueError, RecursionError):
        return None
    return len(value) if isinstance(value, list) else None


def units_of_tmx(content: bytes) -> int | None:
    try:
        return len(list(ElementTree.fromstring(content).iter("tu")))
    except (ElementTree.ParseError, ValueError, LookupError):
        return None


def rows_of_parquet(content: bytes) -> int:
    import pyarrow.parquet as pq

    return int(pq.read_table(io.BytesIO(content)).num_rows)


def check_untouched(case: Case, pairs: list[Pair]) -> None:
    """Lines that a mutation left as they were give the pairs that they gave before, in order."""
    if not lines_are_rows(case):
        return
    before = dict(zip(case.sound.split(b"\n"), case.pairs, strict=False))
    by_line = {pair.line: pair for pair in pairs}
    for number, line in enumerate(case.content.split(b"\n"), 1):
        if line not in before or not line:
            continue
        source, target = before[line]
        if case.name == "aligned.en":  # the other file was not touched: line n with line n
            target = case.pairs[number - 1][1]
        found = by_line.get(number)
        assert found is not None, f"line {number} is lost"
        assert (found.source, *found.targets) == (clean(source), clean(target))


def run_cases(numbers: range, folder: Path, seed: int) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    print(f"seed {seed}, cases {numbers}")
    for number in numbers:
        case = make_case(seed, number)
        place = folder / str(number)
        place.mkdir()
        try:
            outcomes[check(case, place)] += 1
        except Exception as error:
            error.add_note(f"seed {seed}, case {number}: {case.file}, in {place}")
            raise
        for file in place.iterdir():
            file.unlink()
        place.rmdir()
    print(dict(outcomes))
    return outcomes


def test_damaged_files_are_read_right_or_refused(tmp_path: Path, law_seed: int) -> None:
    outcomes = run_cases(range(FEW), tmp_path, SEED + law_seed)
    assert outcomes["read"] > FEW / 4  # the damage leaves something to read
    assert outcomes["refused"] > FEW / 20


@pytest.mark.slow
def test_thousands_of_damaged_files_are_read_right_or_refused(
    tmp_path: Path, law_seed: int
) -> None:
    outcomes = run_cases(range(FEW, MANY), tmp_path, SEED + law_seed)
    assert outcomes.total() == MANY - FEW


def test_the_same_seed_makes_the_same_files() -> None:
    numbers = [n for n in range(40) if [*KINDS][n % len(KINDS)] != "pairs.parquet"]
    assert [make_case(1, n) for n in numbers] == [make_case(1, n) for n in numbers]
    assert len({make_case(1, n).content for n in numbers}) == len(numbers)


@pytest.mark.parametrize("name", KINDS)
def test_sound_files_are_read_whole(tmp_path: Path, name: str) -> None:
    lot = random.Random(SEED)
    pairs = sound_pairs(lot)
    sound = KINDS[name](pairs)
    for packing in ["", "gz"] if name != "pairs.parquet" else [""]:
        case = Case(name, pairs, sound, sound, packing)
        _, found = read(case, case.write(tmp_path))
        expected = [(clean(source), clean(target)) for source, target in pairs]
        assert [(pair.source, *pair.targets) for pair in found] == expected
