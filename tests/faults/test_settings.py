"""Settings that nobody sensible writes: each is a valid config, or refused in one short line."""

import datetime
import math
import random
import time

import pytest

from regard.bounds import specs_of
from regard.config import (
    MODELS,
    Config,
    all_settings,
    build,
    load_config,
    merge,
    parse_overrides,
    read_toml,
    to_settings,
    to_toml,
)
from regard.errors import UserError
from regard.presets import preset, presets

SEED = 15
LONGEST_MESSAGE = 300  # characters, without the path of a file
SLOWEST = 2.0  # seconds of computing: far from what any of them takes, and far from a hang
SPECS = all_settings()

NUMBERS = [0, 1, -1, 2, 3, 7, 2**31, 2**63 - 1, 2**63, -(2**63), 10**18, 10**400, 2**20000]
FLOATS = [0.0, -0.0, 0.5, 1.0, 1.5, 1e-300, 5e-324, 1e308, -1e308, math.nan, math.inf, -math.inf]
TEXTS = ["", " ", "a", "auto", "none", "true", "nan", "1e999", "٣", "１２", "²", "½", "0x10", "1_0"]
TEXTS += ["\0", "\x1b[31m", "\n", "a\nb = 1", "\r", "\u202e", "\ufeff", "\udcff", "é", "😀", '"']
TEXTS += ["'", "\\", "#", "[", "]", "{", "}", "=", "[1", "{a=1}", "[0.9, 0.98]", "2024-01-01"]
TEXTS += ["custom:", "custom:Name", "custom:\n", "x" * 5000, "9" * 5000, "0x" + "f" * 4000]
TEXTS += ["[" * 4000, "{a=" * 1500, "a." * 4000 + "b", "-" * 100, "../../x", "/dev/null", "12:00"]
ODDITIES = [
    True,
    False,
    None,
    b"bytes",
    {},
    {"a": 1},
    {5: 5},
    {"a b": 1},
    {"a": {"b": {}}},
    [],
    [1],
]
ODDITIES += [(0.9, 0.98), [math.nan, 1], [[]], [[[[[[[]]]]]]], ["x"] * 10_000, {1, 2}, object()]
ODDITIES += [datetime.date(2024, 1, 1), 1j, range(3), Config, {f"k{i}": i for i in range(5000)}]
NAMES = ["", " ", ".", "..", '"steps"', "'", "stesp", "STEPS", "steps ", "a" * 5000, "\n", "\0"]
NAMES += ["😀", "options", "options.a", "__class__", "section", "model_kind", "\x1b[2J", "a=b"]


def nested(depth):
    """A list of lists of lists …"""
    value = []
    for _ in range(depth):
        value = [value]
    return value


def odd_value(rng, spec):
    """A value for a setting: at or beyond its bounds, of another type, or absurd."""
    bounds = [bound for bound in (spec.least, spec.most, spec.below) if bound is not None]
    kind = rng.randrange(8)
    if kind == 0 and bounds:
        return rng.choice(bounds) + rng.choice([-1, 0, 1, 1e-9, -1e-9])
    if kind == 1:
        return rng.choice(NUMBERS) * rng.choice([1, -1])
    if kind == 2:
        return rng.choice(FLOATS)
    if kind == 3:
        return rng.choice(TEXTS)
    if kind == 4:
        return rng.choice([*ODDITIES, nested(rng.choice([3, 50, 900, 20_000]))])
    if kind == 5:
        return "".join(
            chr(rng.choice([rng.randrange(128), rng.randrange(0x3000)])) for _ in range(9)
        )
    if kind == 6:
        return rng.choice(
            [rng.gauss(0, 10), rng.randrange(10**6), 10.0 ** rng.randrange(-308, 308)]
        )
    return spec.default


def as_text(value):
    """The value as a person would type it behind a name; "" where nobody can."""
    if isinstance(value, int) and value.bit_length() > 10_000:
        return hex(value)
    try:
        return str(value)
    except (ValueError, RecursionError):
        return ""


def through_python(rng, spec):
    values = {spec.name: odd_value(rng, spec)}
    if rng.random() < 0.1:
        values = {rng.choice(NAMES): values[spec.name]}
    if spec.kind and rng.random() < 0.9:
        values.setdefault("kind", spec.kind)
    return build({spec.section: values})


def through_overrides(rng, spec):
    name = spec.full_name if rng.random() < 0.9 else f"{spec.section}.{rng.choice(NAMES)}"
    words = [f"{name}={as_text(odd_value(rng, spec))}"]
    if spec.kind:
        words.append(f"model.kind={spec.kind}")
    if rng.random() < 0.1:
        words.append(rng.choice([*TEXTS, *NAMES]))
    if rng.random() < 0.1:
        words.append(f"{name}={as_text(odd_value(rng, spec))}")
    return build(parse_overrides(words))


def through_layers(rng, spec):
    below = preset(rng.choice(list(presets())))
    return build(merge(below, {spec.section: {spec.name: odd_value(rng, spec)}}))


def through_constructor(rng, spec):
    section_class = MODELS[spec.kind] if spec.kind else type(getattr(Config(), spec.section))
    assert spec.name in specs_of(section_class)
    return Config(**{spec.section: section_class(**{spec.name: odd_value(rng, spec)})})


WAYS = [through_python, through_overrides, through_layers, through_constructor]


def held_or_refused(make, folder):
    """Whether a config was made: it reads back equal. Else it was refused in one short line."""
    began = time.process_time()
    try:
        config = make()
    except UserError as error:
        message = str(error).replace(str(folder), "")
        assert len(message) <= LONGEST_MESSAGE, message
        assert message.isprintable(), ascii(message)
        return False
    finally:
        assert time.process_time() - began < SLOWEST

    path = folder / "written.toml"
    path.write_text(to_toml(to_settings(config)), encoding="utf-8")
    assert load_config(path) == config
    return True


def settings_of_seed(seed, count, folder):
    """Try so many settings; how many of them were valid."""
    rng = random.Random(seed)
    valid = 0
    for number in range(count):
        spec = rng.choice(SPECS)
        way = rng.choice(WAYS)
        print(f"seed {seed}, number {number}: {spec.full_name} {way.__name__}")
        valid += held_or_refused(lambda way=way, spec=spec: way(rng, spec), folder)
    print(f"seed {seed}: {valid} of {count} settings are valid")
    return valid


def test_300_settings(tmp_path):
    assert 30 < settings_of_seed(SEED, 300, tmp_path) < 270


@pytest.mark.slow
@pytest.mark.parametrize("part", range(9))
def test_3000_settings(part, tmp_path):
    assert 30 < settings_of_seed(SEED + 1 + part, 300, tmp_path) < 270


# ---- files ----

LITERALS = [
    "nan",
    "inf",
    "-inf",
    "1e308",
    "1e999",
    "-1",
    "0",
    "true",
    '""',
    '"x"',
    "[]",
    "{}",
    "''",
]
LITERALS += ["9" * 5000, "0x" + "f" * 4000, "[" * 3000, "{a = " * 800, '"""', "'''", "1979-05-27"]
LITERALS += ["٣", "0b101", "1__0", "[1, 2", "[1, 2]", "[0.9, 0.9]", '"\\ud800"', '"\\u0000"', "--1"]
LINES = [
    "[train]",
    "[trian]",
    "[[train]]",
    "[train.x]",
    "[model.options]",
    "[data.options]",
    "=",
    "[",
]
LINES += [
    "x = 1",
    "[data]\npath = 'a'",
    "a." * 2000 + "b = 1",
    '"" = 1',
    "'a.b' = 2",
    "[" + "a." * 3000,
]
LINES += ["train = 5", "train.steps = 5", "[" + "x" * 9000 + "]", "options = {a = {b = {c = 1}}}"]


def mutated(rng, text):
    """The bytes of a TOML file with some of it changed."""
    lines = text.split("\n")
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(lines))
        name, equals, _ = lines[place].partition(" = ")
        kind = rng.randrange(6)
        if kind <= 1 and equals:
            lines[place] = f"{name} = {rng.choice(LITERALS)}"
        elif kind == 2 and equals:
            lines[place] = lines[place].replace(name, rng.choice(NAMES), 1)
        elif kind == 3:
            lines.insert(place, rng.choice([*LINES, lines[place]]))
        elif kind == 4:
            del lines[place]
            lines = lines or [""]
        else:
            lines = lines[: rng.randrange(1, len(lines) + 1)]

    content = bytearray("\n".join(lines).encode(errors="replace"))
    kind = rng.randrange(8)
    if kind == 0:
        for _ in range(rng.randrange(1, 20)):
            content[rng.randrange(len(content)) : 0] = bytes([rng.randrange(256)])
    elif kind == 1:
        content = bytearray(rng.randbytes(rng.randrange(3000)))
    elif kind == 2:
        content = bytearray(content.replace(b"\n", rng.choice([b"\r\n", b"\r", b"\n\0", b"\n\n"])))
    elif kind == 3:
        content[0:0] = rng.choice([b"\xef\xbb\xbf", b"\xff\xfe", b"\x1f\x8b", b"PK\x03\x04"])
    elif kind == 4:
        content *= rng.choice([2, 40])
    return bytes(content)


def files_of_seed(seed, count, folder):
    """Try so many files; how many of them were valid."""
    rng = random.Random(seed)
    texts = [to_toml(to_settings(build(preset(name)))) for name in presets()]
    path = folder / "mutated.toml"
    valid = 0
    for number in range(count):
        path.write_bytes(mutated(rng, rng.choice(texts)))
        print(f"seed {seed}, file {number}")
        valid += held_or_refused(lambda: build(read_toml(path)), folder)
    print(f"seed {seed}: {valid} of {count} files are valid")
    return valid


def test_60_files(tmp_path):
    assert 0 < files_of_seed(SEED, 60, tmp_path) < 60


@pytest.mark.slow
@pytest.mark.parametrize("part", range(9))
def test_600_files(part, tmp_path):
    assert 0 < files_of_seed(SEED + 1 + part, 60, tmp_path) < 60
