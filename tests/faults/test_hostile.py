"""Runs whose sums are right and whose content is hostile: refused in one line, in little time and
memory, or read as if nothing were wrong.

Every case is a function that changes a copy of a run. Afterwards its manifests are signed anew.
"""

import json
import re
import struct
from hashlib import sha256

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

STEP = "checkpoints/step-00000012"
WEIGHTS = f"{STEP}/model.safetensors"
DEEP = 100_000


def setting(name, text):
    """A case: config.toml says this of a setting."""

    def change(run):
        section, _, key = name.partition(".")
        path = run / "config.toml"
        head, mark, tail = path.read_text().partition(f"[{section}]\n")
        tail, count = re.subn(rf"(?m)^{key} = .*$", lambda _: f"{key} = {text}", tail, count=1)
        assert count == 1, name
        path.write_text(head + mark + tail)

    return change


def content(name, new):
    """A case: a file has this content."""
    return lambda run: (run / name).write_bytes(new if isinstance(new, bytes) else new.encode())


def added(name, more):
    """A case: a file has this at its end."""

    def change(run):
        with (run / name).open("ab") as file:
            file.write(more if isinstance(more, bytes) else more.encode())

    return change


def edited(name, edit):
    """A case: a JSON file after edit(its value), or the value that edit returns."""

    def change(run):
        path = run / name
        value = json.loads(path.read_text())
        result = edit(value)
        path.write_text(json.dumps(value if result is None else result))

    return change


def nested(value, *keys):
    """edit: the entry under these keys becomes the value."""

    def edit(table):
        for key in keys[:-1]:
            table = table[key]
        table[keys[-1]] = value

    return edit


def without(*keys):
    """edit: the entry under these keys is gone."""

    def edit(table):
        for key in keys[:-1]:
            table = table[key]
        del table[keys[-1]]

    return edit


def header(edit):
    """A case: edit(header, data) of the weights' file; it may return other data."""

    def change(run):
        path = run / WEIGHTS
        old = path.read_bytes()
        (length,) = struct.unpack("<Q", old[:8])
        table, data = json.loads(old[8 : 8 + length]), old[8 + length :]
        data = edit(table, data) or data
        text = json.dumps(table).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + data)

    return change


def tensors(edit, name=WEIGHTS):
    """A case: the tensors of a file after edit(them)."""

    def change(run):
        values = load((run / name).read_bytes())
        edit(values)
        (run / name).write_bytes(save(values))

    return change


def first(edit):
    """edit: the first tensor becomes edit(it)."""

    def change(values):
        name = sorted(values)[0]
        values[name] = edit(values[name]).contiguous()

    return change


def cast(dtype):
    return tensors(lambda values: values.update({k: v.to(dtype) for k, v in values.items()}))


def first_entry(key, value):
    """edit of a header: the first tensor's entry says this."""

    def edit(table, data):
        table[sorted(table)[0]][key] = value

    return edit


def overlapping(table, data):
    one, two = sorted(name for name in table if name != "__metadata__")[:2]
    table[two] = dict(table[one])


def many_tensors(table, data):
    for number in range(200_000):
        table[f"t{number}"] = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}


def huge_header(run):
    (run / WEIGHTS).write_bytes(struct.pack("<Q", 99_000_000) + b"{" + b" " * 98_999_998 + b"}")


def sparse(run):
    """Weights of 100 GB, nearly all of them a hole."""
    numbers = 25 * 10**9
    entry = {"dtype": "F32", "shape": [numbers], "data_offsets": [0, 4 * numbers]}
    text = json.dumps({"w": entry}).encode()
    with (run / WEIGHTS).open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + 4 * numbers)


def data(name, array):
    """A case: an array of the corpus is another, and every digest is right."""

    def change(run):
        folder = run / "data" / "train"
        old = np.fromfile(folder / name, "<u2" if name == "ids.bin" else "<i4")
        array(old).tofile(folder / name)
        digest = sha256(b"<u2")
        for file in ("ids.bin", "lengths.bin"):
            digest.update((folder / file).read_bytes())
        edited("data/train/corpus.json", nested(digest.hexdigest(), "digest"))(run)
        setting("data.digest", f'"{digest.hexdigest()}"')(run)

    return change


def changed(index, value):
    def edit(array):
        array[index] = value
        return array

    return edit


def subwords(*edits):
    """A case: a BPE model in place of the run's tokenizer, after the edits."""

    def change(run):
        from regard.text.tokenizer import train_tokenizer

        model = train_tokenizer("bpe", ["a b c d"], size=300).to_json()
        for edit in edits:
            edit(model)
        table = {"format": 1, "source": model, "target": "source"}
        (run / "tokenizer.json").write_text(json.dumps(table))

    return change


def listed(tokens):
    """A case: a list of words in place of the run's tokenizer."""
    table = {"format": 1, "source": {"kind": "words", "tokens": tokens}, "target": "source"}
    return content("tokenizer.json", json.dumps(table))


REGEX = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
SLOW = {"type": "Replace", "pattern": {"Regex": "(a|a)*b"}, "content": ""}
TOKEN = {"id": 10**9, "content": "a", "single_word": False, "lstrip": False, "rstrip": False}
TOKEN |= {"normalized": False, "special": True}
LOG = '{"kind": "dev", "step": 9, "loss": 0.1, "accuracy": 1, "tokens": 9}\n'

# What must be refused by `translate`.
READ = {
    "a million layers": setting("model.encoder_layers", 10**6),
    "many layers": setting("model.decoder_layers", 900),
    "width 10^9": setting("model.width", 10**9),
    "width 2^20": setting("model.width", 2**20),
    "another width": setting("model.width", 32),
    "ffn 10^12": setting("model.ffn", 10**12),
    "heads 10^9": setting("model.heads", 10**9),
    "negative width": setting("model.width", -16),
    "negative layers": setting("model.encoder_layers", -1),
    "width is text": setting("model.width", '"wide"'),
    "width is a list": setting("model.width", "[1, 2]"),
    "width is true": setting("model.width", "true"),
    "width is nan": setting("model.width", "nan"),
    "no such norm": setting("model.norm", '"none of these"'),
    "learned positions": setting("model.position", '"learned"'),
    "another model": setting("model.kind", '"rnn"'),
    "a model of one's own": setting("model.kind", '"custom:Evil"'),
    "a score of one's own": setting("model.score", '"custom:Evil"'),
    "config deeply nested": added("config.toml", f"x = {'[' * DEEP}{']' * DEEP}\n"),
    "config not UTF-8": content("config.toml", b"[model]\nwidth = \xff\xfe\n"),
    "config with an unknown section": added("config.toml", "\n[evil]\nx = 1\n"),
    "config with an unknown key": added("config.toml", "\n[model.evil]\nx = 1\n"),
    "config of text only": content("config.toml", "hello"),
    "config without sections": content("config.toml", "x = 1\n"),
    "config of 2 MB": content("config.toml", "# \n" * 700_000),
    "config of NULs": content("config.toml", b"\0" * 100),
    "config is empty": content("config.toml", "[model]\nwidth = 256\n"),
    "weights of int64": cast(torch.int64),
    "weights of bool": cast(torch.bool),
    "weights of int8": cast(torch.int8),
    "weights of float8": cast(torch.float8_e4m3fn),
    "weights of complex numbers": cast(torch.complex64),
    "one weight of int32": tensors(first(lambda tensor: tensor.to(torch.int32))),
    "NaN in a weight": tensors(first(lambda tensor: tensor * float("nan"))),
    "infinity in a weight": tensors(first(lambda tensor: tensor / 0)),
    "a flat weight": tensors(first(lambda tensor: tensor[None])),
    "a longer weight": tensors(first(lambda tensor: torch.cat((tensor, tensor)))),
    "a weight too many": tensors(lambda values: values.update(evil=torch.ones(3))),
    "a weight too few": tensors(lambda values: values.pop(sorted(values)[0])),
    "no weights": tensors(lambda values: values.clear()),
    "an empty weight": tensors(first(lambda tensor: tensor[:0])),
    "a huge header": huge_header,
    "weights of 100 GB": sparse,
    "many tensors": header(many_tensors),
    "overlapping tensors": header(overlapping),
    "a shape that overflows": header(first_entry("shape", [2**62, 2**62, 4])),
    "a negative shape": header(first_entry("shape", [-1, -16])),
    "a shape of text": header(first_entry("shape", "16")),
    "a shape of a thousand sizes": header(first_entry("shape", [1] * 1000)),
    "offsets behind the end": header(first_entry("data_offsets", [0, 10**12])),
    "offsets the wrong way round": header(first_entry("data_offsets", [64, 0])),
    "no type": header(first_entry("dtype", None)),
    "a type of its own": header(first_entry("dtype", "\x1b[31mF32")),
    "a name with a newline": header(lambda table, data: table.update({"a\nb": table.popitem()[1]})),
    "a hole at the end": header(lambda table, data: data + b"\0" * 64),
    "a header that is a list": content(WEIGHTS, struct.pack("<Q", 2) + b"[]"),
    "a header too long": content(WEIGHTS, struct.pack("<Q", 2**63) + b"{}"),
    "a header deeply nested": content(WEIGHTS, struct.pack("<Q", 2 * DEEP) + b"[" * 2 * DEEP),
    "empty weights": content(WEIGHTS, b""),
    "a regular expression": subwords(nested(REGEX, "model", "pre_tokenizer")),
    "a slow normaliser": subwords(nested(SLOW, "model", "normalizer")),
    "an unknown normaliser": subwords(nested({"type": "Evil"}, "model", "normalizer")),
    "an unknown decoder": subwords(nested({"type": "Evil"}, "model", "decoder")),
    "an added token": subwords(nested([TOKEN], "model", "added_tokens")),
    "a model that drops merges": subwords(nested(0.5, "model", "model", "dropout")),
    "a model of another type": subwords(nested("WordLevel", "model", "model", "type")),
    "an odd id": subwords(nested(10**12, "model", "model", "vocab", "a")),
    "a negative id": subwords(nested(-1, "model", "model", "vocab", "a")),
    "an id that is text": subwords(nested("1", "model", "model", "vocab", "a")),
    "no byte a": subwords(without("model", "model", "vocab", "a")),
    "a merge of nothing": subwords(nested([["evil", "b"]], "model", "model", "merges")),
    "merges that are numbers": subwords(nested([1, 2], "model", "model", "merges")),
    "another vocabulary": subwords(),
    "no such tokenizer": edited("tokenizer.json", nested("evil", "source", "kind")),
    "a tokenizer of a list": edited("tokenizer.json", nested(["bpe"], "source", "kind")),
    "tokens that are numbers": listed([1, 2]),
    "tokens of two words": listed(["a b", ""]),
    "a token twice": listed(["a", "a"]),
    "a lone surrogate": listed(["\ud800"]),
    "a million tokens": listed([f"t{i}" for i in range(10**6)]),
    "no tokens": listed(None),
    "a normaliser of text": edited(
        "tokenizer.json", nested({"lowercase": "yes"}, "source", "normalise")
    ),
    "an unknown normalisation": edited(
        "tokenizer.json", nested({"evil": True}, "source", "normalise")
    ),
    "tokenizers of tomorrow": edited("tokenizer.json", nested(3, "format")),
    "tokenizers of no format": edited("tokenizer.json", nested("x", "format")),
    "a tokenizer that is a list": content("tokenizer.json", "[]"),
    "a tokenizer not JSON": content("tokenizer.json", "{"),
    "a tokenizer not UTF-8": content("tokenizer.json", b'{"format": "\xff"}'),
    "a tokenizer deeply nested": content("tokenizer.json", "[" * DEEP + "]" * DEEP),
    "a tokenizer of many lists": content("tokenizer.json", "[" + "[]," * 6_000_000 + "[]]"),
    "a number of 5,000 digits": content("tokenizer.json", f'{{"format": {"9" * 5000}}}'),
}

# What must be refused when training goes on, or fall back aloud; `translate` answers as before.
RESUMED = {
    "a step of text": edited(f"{STEP}/progress.json", nested("12", "step")),
    "another step": edited(f"{STEP}/progress.json", nested(3, "step")),
    "a step of 10^18": edited(f"{STEP}/progress.json", nested(10**18, "step")),
    "no step": edited(f"{STEP}/progress.json", without("step")),
    "seconds that are nan": edited(f"{STEP}/progress.json", nested(float("nan"), "seconds")),
    "a best that is nan": edited(f"{STEP}/progress.json", nested(float("nan"), "best")),
    "a best outside": edited(f"{STEP}/progress.json", nested("../../decoy", "best_name")),
    "a factor of 10^9": edited(f"{STEP}/progress.json", nested(10**9, "factor")),
    "skipped steps of text": edited(f"{STEP}/progress.json", nested("all", "skipped")),
    "totals of text": edited(f"{STEP}/progress.json", nested(["x"], "totals")),
    "no guard": edited(f"{STEP}/progress.json", without("guard")),
    "a guard of another size": edited(f"{STEP}/progress.json", nested([[1, 2]], "guard", "seen")),
    "a guard of text": edited(f"{STEP}/progress.json", nested("x", "guard", "count")),
    "progress that is a list": content(f"{STEP}/progress.json", "[]"),
    "progress deeply nested": content(f"{STEP}/progress.json", "[" * DEEP),
    "no state of the optimizer": tensors(
        lambda values: values.pop(sorted(values)[0]), f"{STEP}/optimizer.safetensors"
    ),
    "another optimizer's state": tensors(
        lambda values: values.update({k + "s": values.pop(k) for k in sorted(values)}),
        f"{STEP}/optimizer.safetensors",
    ),
    "a state of another shape": tensors(first(lambda x: x[:1]), f"{STEP}/optimizer.safetensors"),
    "a state that is nan": tensors(
        first(lambda tensor: tensor * float("nan")), f"{STEP}/optimizer.safetensors"
    ),
    "too many pairs": edited("data/train/corpus.json", nested(10**12, "pairs")),
    "too few pairs": edited("data/train/corpus.json", nested(1, "pairs")),
    "no pairs": edited("data/train/corpus.json", nested(0, "pairs")),
    "negative pairs": edited("data/train/corpus.json", nested(-3, "pairs")),
    "pairs of text": edited("data/train/corpus.json", nested("60", "pairs")),
    "ids of objects": edited("data/train/corpus.json", nested("O", "dtype")),
    "ids of four bytes": edited("data/train/corpus.json", nested("<i4", "dtype")),
    "a corpus that is a list": content("data/train/corpus.json", "[]"),
    "a corpus deeply nested": content("data/train/corpus.json", "[" * 30_000),
    "another digest": edited("data/train/corpus.json", nested("0" * 64, "digest")),
    "another dev digest": edited("data/dev/corpus.json", nested("0" * 64, "digest")),
    "an id too large": data("ids.bin", changed(-1, 60_000)),
    "a negative length": data("lengths.bin", changed(0, -5)),
    "a huge length": data("lengths.bin", changed(0, 2**31 - 1)),
}

# What changes no answer, and stops nothing.
HARMLESS = {
    "a log of other records": added("log.jsonl", '{"kind": "dev"}\n{"kind": "train", "step": 3}\n'),
    "a log of texts": added("log.jsonl", LOG.replace("0.1", '"low"').replace("9,", '"9",')),
    "a log of NaN": added("log.jsonl", LOG.replace("0.1", "NaN")),
    "a log of lists": added("log.jsonl", LOG.replace("0.1", "[0.1]")),
    "a log of a huge number": added("log.jsonl", LOG.replace("0.1", "9" * 5000)),
    "a log not JSON": added("log.jsonl", "hello\n{\n]\n"),
    "a log not UTF-8": added("log.jsonl", b"\xff\xfe\x00\n"),
    "a log deeply nested": added("log.jsonl", "[" * 50_000 + "\n"),
    "a log of a million lines": added("log.jsonl", '{"kind": "x"}\n' * 10**6),
    "a log of a line of 50 MB": added("log.jsonl", "x" * 50_000_000),
    "samples not UTF-8": content("samples.txt", b"\xff\xfe"),
    "a card not UTF-8": content("README.md", b"\xff\xfe"),
}

# What the manifests themselves say.
FACTS = {
    "pairs of text": {"pairs": "many"},
    "negative pairs": {"pairs": -1},
    "parameters that are a list": {"parameters": [1]},
    "characters that are a number": {"characters": 3},
    "a share of text": {"several_sentences": "half"},
    "a source length of 10^30": {"longest_source": 10**30},
    "pruned text": {"pruned": "all"},
    "trials of text": {"trials": ["all"]},
    "another format": {"format": 2},
    "files outside": {"files": {"../decoy": []}},
    "files that are a list": {"files": ["config.toml"]},
    "no files": {"files": {}},
    "sums that are text": {"files": {"config.toml": "x", "tokenizer.json": "x"}},
}


def check(case, copied, sound, ask, digests, sign):
    """Change a copy, sign it, and ask for answers."""
    kind, name = case
    if kind == "facts":
        facts = FACTS[name]
        if "files" in facts:
            write_signed(copied, facts)
        else:
            sign(copied, **facts)
    else:
        {"read": READ, "resumed": RESUMED, "harmless": HARMLESS}[kind][name](copied)
        if name == "weights of 100 GB":  # to read it all for a sum would take minutes
            sign(copied)
        else:
            sign(copied)
            sign(copied / STEP)

    translated, listed, curves, resumed = ask(
        ["translate", copied, "a b c"],
        ["runs", copied],
        ["show", "curves", copied, "--out", copied.with_name("curves.png")],
        ["train", "copy", "--config", copied.with_name("run.toml"), "--out", copied, "--resume"],
    )
    assert listed.code == 0, listed
    assert curves.code == 0 or curves.is_one_line, curves
    if kind in ("read", "facts"):
        assert translated.is_one_line, translated
    else:
        assert translated.code == 0, translated
    if kind == "harmless":
        assert resumed.code == 0, resumed
    elif kind == "resumed":
        assert resumed.is_one_line or "using the previous checkpoint" in resumed.err, resumed
    if resumed.code == 0 and kind != "read":
        weights = f"{STEP}/model.safetensors"
        assert digests(copied)[weights] == digests(sound)[weights]
    assert copied.with_name("decoy").read_text() == "untouched"


def write_signed(folder, facts):
    """A manifest that is signed, but not by its files."""
    manifest = json.loads((folder / "manifest.json").read_text()) | facts
    manifest.pop("sum")
    text = json.dumps(manifest, sort_keys=True).encode()
    manifest["sum"] = sha256(text).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


ALL = [("read", name) for name in READ] + [("resumed", name) for name in RESUMED]
ALL += [("harmless", name) for name in HARMLESS] + [("facts", name) for name in FACTS]
FAST = [
    ("read", "a million layers"),
    ("read", "weights of int64"),
    ("read", "a regular expression"),
    ("resumed", "a guard of text"),
    ("resumed", "an id too large"),
    ("harmless", "a log of texts"),
    ("facts", "files outside"),
]


@pytest.mark.parametrize("case", FAST, ids=lambda case: " ".join(case))
def test_some_hostile_runs(case, copied, sound, ask, digests, sign):
    check(case, copied, sound, ask, digests, sign)


@pytest.mark.slow
@pytest.mark.parametrize("case", ALL, ids=lambda case: " ".join(case))
def test_hostile_runs(case, copied, sound, ask, digests, sign):
    check(case, copied, sound, ask, digests, sign)


def test_there_are_a_hundred():
    assert len(ALL) >= 100
    assert set(FAST) <= set(ALL)
