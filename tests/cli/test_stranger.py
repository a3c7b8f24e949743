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
        "a text of more than 10,000 characters": "23",
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
    "folder without files": (
        ["train", "folder"],
        "contains nothing: expected a file such as train.tsv",
    ),
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
    "nothing short enough": (
        ["train", "good.tsv", "data.max_length=1"],
        "every pair has more than",
    ),
    "column of a TSV": (
        ["train", "good.tsv", "data.source=en"],
        "no column 'en'; it has 'I have 1 cats', \"j'ai 1 chats\"",
    ),
    "a table twice": (["train", "good.tsv", "good.tsv"], "a file of pairs alone"),
    "a second file that is not there": (["train", "text.en", "text.fr"], "text.fr: no such file"),
    "three files": (["train", "text.en", "text.de", "good.tsv"], "good.tsv: a third file"),
    "a task and a file": (["train", "copy", "text.de"], "copy is a task"),
    "a lone file": (["train", "text.en"], "give two files: regard train text.en text.de"),
    "lines that do not match": (["train", "text.en", "short.de"], "has 2 lines and"),
    "a file for a count": (
        ["train", "good.tsv", "data.dev=good.tsv"],
        "must be a whole number of pairs; for a file write data.dev_file=good.tsv",
    ),
    "a dev file that is not there": (
        ["train", "good.tsv", "data.dev_file=dev.tsv"],
        "dev.tsv: no such file",
    ),
    "a spreadsheet": (["train", "book.xlsx"], "save the sheet as CSV UTF-8"),
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
    (here / "text.en").write_text("one\ntwo\n")
    (here / "text.de").write_text("eins\nzwei\n")
    (here / "short.de").write_text("eins\n")
    (here / "book.xlsx").write_bytes(b"PK\x03\x04" + bytes(40))
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


def texts_side_by_side(here: Path) -> None:
    (here / "text.en").write_text("".join(f"I have {n} cats\n" for n in range(40)))
    (here / "text.de").write_text("".join(f"ich habe {n} Katzen\n" for n in range(40)))


def test_two_files_on_the_command_line(here, command):
    texts_side_by_side(here)
    done = command("train", "text.en", "text.de", *TINY, cwd=here)
    assert done.returncode == 0, done.stderr
    run = regard.Run.open("runs/text")
    assert (run.config.data.source, run.config.data.target) == ("en", "de")
    assert run.manifest["pairs"] == 36
    told = command("data", "inspect", "text.en", "text.de", cwd=here).stdout
    assert "36" in told


def test_a_spreadsheets_csv_trains(here, command):
    rows = "".join(f'"Yes, {n}";"Ja, {n}";{n}\n' for n in range(40))
    (here / "pairs.csv").write_bytes(f"english;german;id\n{rows}".encode("utf-16"))
    done = command(
        *("train", "pairs.csv", "data.source=german", "data.target=english", *TINY), cwd=here
    )
    assert done.returncode == 0, done.stderr
    assert "pairs.csv: line 1 is a header, german → english" in done.stderr
    assert "pairs.csv: column id is not used" in done.stderr
    assert {pair.source[:2] for pair in regard.evaluate("runs/pairs").pairs} == {"Ja"}
