"""A stranger's first minute: a file as it comes out of a spreadsheet, and every first mistake."""

import os
from pathlib import Path

import pytest

import regard

TINY = ["train.steps=5", "train.tensorboard=off", "model.width=16", "model.ffn=16", "model.heads=2"]
TINY += [
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "search.width=1",
    "search.limit_extra=2",
    "search.limit_ratio=1",
]

EMOJI, ARABIC = ("I am happy 😀", "je suis content 😀"), ("صباح الخير", "bonjour")
LINES = [
    *(f"I have {n} cats\tj'ai {n} chats" for n in range(1, 21)),  # lines 1 to 20
    "",
    "only one column",
    "x" * 50_000 + "\ttoo long",
    "\t".join(EMOJI),
    "\t".join(ARABIC),
    "",
    "a source\t",
    "three\tcolumns\ta note",
]


@pytest.fixture
def file(here: Path) -> Path:
    """UTF-8 with a BOM and CRLF, as some programs write it; one line is Latin-1."""
    path = here / "pairs.tsv"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(LINES).encode() + b"\r\ncaf\xe9\tcoffee\r\n")
    return path


def test_a_strangers_file_trains(file, command):
    done = command("train", file.name, *TINY)
    assert done.returncode == 0, done.stderr
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    reasons = {
        "empty line": "21, 26",
        "one column": "22",
        "too long": "23",
        "empty target": "27",
        "not UTF-8": "29",
    }
    for reason, numbers in reasons.items():
        (line,) = (line for line in warnings if f": {reason} (" in line)
        assert "pairs.tsv: skipped" in line
        assert f"(line{'s' if ',' in numbers else ''} {numbers})" in line
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stdout + done.stderr  # no colours into a pipe

    assert done.stdout.split("\n") == [
        "",
        "Saved in runs/pairs. Try next:",
        '  regard translate runs/pairs "a text"',
        "  regard evaluate runs/pairs",
        "",
    ]
    run = regard.Run.open("runs/pairs")
    assert run.manifest["skipped"] == 6
    assert sorted(os.listdir()) == ["pairs.tsv", "runs"]
    for source, _ in (EMOJI, ARABIC):
        assert run.source.decode(run.source.encode(source)) == source
        assert regard.load(run)(source).source == source
    assert "\ufeff" not in (run.path / "tokenizer.json").read_text(encoding="utf-8")
    assert "\\r" not in (run.path / "tokenizer.json").read_text(encoding="utf-8")


MISTAKES = {
    "empty file": (["train", "empty.tsv"], "empty"),
    "only blank lines": (["train", "blank.tsv"], "blank.tsv"),
    "folder without files": (["train", "folder"], "no train"),
    "binary file": (["train", "picture.tsv"], "binary file"),
    "missing file": (["train", "missing.tsv"], "missing.tsv"),
    "unknown data": (["train", "arithmetik"], "did you mean arithmetic?"),
    "unknown preset": (
        ["train", "good.tsv", "--preset", "curse"],
        "no preset curse; did you mean course?",
    ),
    "misspelt setting": (
        ["train", "good.tsv", "train.stesp=3"],
        "no setting train.stesp; did you mean train.steps?",
    ),
    "wrong value": (
        ["train", "good.tsv", "train.steps=many"],
        "train.steps=many: must be a whole number",
    ),
    "not a setting": (
        ["train", "good.tsv", "steps=3"],
        "'steps=3' is not a setting: write train.steps=3",
    ),
    "missing config": (["train", "good.tsv", "--config", "my.toml"], "my.toml: no such file"),
    "nothing short enough": (["train", "good.tsv", "data.max_length=1"], "no pair is left"),
    "column of a TSV": (
        ["train", "good.tsv", "data.source=en"],
        "the columns of a TSV have no names",
    ),
    "no run": (["translate", "runs/none", "hello"], "runs/none: no such run"),
    "not a run": (["evaluate", "folder"], "folder: not a run"),
    "start from nothing": (["train", "good.tsv", "--from", "runs/none"], "runs/none: no such run"),
}


@pytest.fixture
def mistakes(here: Path) -> Path:
    (here / "empty.tsv").touch()
    (here / "blank.tsv").write_text("\n\n   \n")
    (here / "folder").mkdir()
    (here / "picture.tsv").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8)
    (here / "good.tsv").write_text(
        "".join(f"I have {n} cats\tj'ai {n} chats\n" for n in range(1, 9))
    )
    return here


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line(name, mistakes, monkeypatch, capfd):
    """Exit code 2, one line that says what to do, nothing written. In this process: starting one
    for each would take long.
    """
    from regard.cli import main

    words, said = MISTAKES[name]
    before = sorted(mistakes.rglob("*"))
    monkeypatch.setattr("sys.argv", ["regard", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    told = capfd.readouterr()
    assert stopped.value.code == 2
    assert told.out == ""
    *earlier, line = told.err.splitlines()
    assert (
        not earlier or name == "nothing short enough"
    )  # only that is found out after the plan was told
    assert line.startswith("error: ")
    assert said in line
    assert sorted(mistakes.rglob("*")) == before


@pytest.mark.parametrize("name", ["missing file", "misspelt setting"])
def test_a_mistake_in_a_process_of_its_own(name, mistakes, command):
    words, said = MISTAKES[name]
    done = command(*words, cwd=mistakes)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert said in line
    assert not (mistakes / "runs").exists()
