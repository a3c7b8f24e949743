"""The how-to pages: their Python runs, and so do the options in their tables."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.nn.devices import cpu_has_bf16
from regard.recipes.reporter import Reporter

PAGES = Path(__file__).parents[1] / "docs" / "how-to"
TEXT = "1+2"


def python_of(page):
    """The Python of a page, which has one block of it."""
    (code,) = re.findall(r"^```python\n(.*?)^```", (PAGES / page).read_text("utf-8"), re.M | re.S)
    return code


def column(number, page="decode.md"):
    """What is between backticks in a column of the first table of a page."""
    lines = (PAGES / page).read_text("utf-8").split("## ")[0].splitlines()
    rows = [line.split("|") for line in lines if line.startswith("| ") and "device" not in line]
    return [code for row in rows for code in re.findall(r"`([^`]+)`", row[number])]


@pytest.fixture(scope="module")
def folder(tiny, tmp_path_factory):
    """A folder with runs/demo and runs/live: one wait-k run of bytes, which can write any text."""
    here = tmp_path_factory.mktemp("how-to")
    settings = {
        "data": {"path": "arithmetic", "options": {"train": 60, "dev": 12, "test": 12}},
        "text": {"tokenizer": "bytes"},
        "model": tiny["model"] | {"causal": True, "wait": 3},
    }
    live = here / "runs" / "live"
    regard.train(regard.Config(), out=live, reporter=Reporter(quiet=True), **tiny | settings)
    shutil.copytree(live, here / "runs" / "demo")
    return here


def test_look_inside(folder, monkeypatch):
    monkeypatch.chdir(folder)
    exec(compile(python_of("look-inside.md"), "look-inside.md", "exec"), {})
    assert (folder / "page.html").exists()


def test_long_texts():
    names = {}
    exec(compile(python_of("long-texts.md"), "long-texts.md", "exec"), names)
    assert names["output"].shape == names["x"].shape


def test_own_data(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    few = 'data={"features": "tags"}'
    code = python_of("own-data.md")
    assert code.count(few) == 1
    code = code.replace("]  # and some thousand more", "] * 10").replace(few, f"{few}, **tiny")
    exec(compile(code, "own-data.md", "exec"), {"tiny": tiny})
    assert capsys.readouterr().out.strip()


def test_simultaneous(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    code = "import regard\n" + python_of("simultaneous.md")
    exec(compile(code, "simultaneous.md", "exec"), {})
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("code", column(3))
def test_decode_in_python(folder, code):
    if "bf16" in code and not cpu_has_bf16():
        pytest.skip("this CPU has no bfloat16 products")
    path = folder / "runs" / "demo"
    translator = regard.load(path)
    names = {"regard": regard, "load": regard.load, "translator": translator, "text": TEXT}
    runs = {"run": path, "run2": path, "run3": path}
    assert eval(code, names | runs | {"result": translator("1+2+3")})


@pytest.mark.parametrize("options", column(2))
def test_decode_on_the_command_line(folder, options):
    if "bf16" in options and not cpu_has_bf16():
        pytest.skip("this CPU has no bfloat16 products")
    path = str(folder / "runs" / "demo")
    words = shlex.split(options.removeprefix("regard translate RUN TEXT"))
    words = [path if word.startswith("RUN") else word for word in words]
    done = CliRunner().invoke(app, ["translate", path, TEXT, *words])
    assert done.exit_code == 0, done.output


def test_evaluate_in_python(folder, monkeypatch):
    monkeypatch.chdir(folder)
    Path("pairs.tsv").write_text("1+1\t2\n2+2\t4\n")
    path = folder / "runs" / "demo"
    names = {"regard": regard, "translator": regard.load(path), "run": path, "run2": path}
    names |= {"source": "1+1", "target": "2", "pairs": [("1+1", "2")]}
    names |= {"items": [("1+1", "2", "3", "digit")]}
    codes = column(3, "evaluate.md")
    assert len(codes) >= 8
    for code in codes:
        assert eval(code, names), code


def test_evaluate_on_the_command_line(folder, monkeypatch):
    monkeypatch.chdir(folder)
    Path("pairs.tsv").write_text("1+1\t2\n2+2\t4\n")
    Path("contrasts.tsv").write_text("1+1\t2\t3\tdigit\n")
    monkeypatch.setattr("regard.pictures.drawn", lambda *_, **__: b"")
    real = {"RUN": "runs/demo", "SOURCE": "1+1", "TARGET": "2"}
    commands = column(2, "evaluate.md")
    assert len(commands) == 10
    for command in commands:
        words = [real.get(word, word) for word in shlex.split(command)[1:]]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, (command, done.output)
    assert Path("lengths.png").exists()


def test_pictures_on_the_command_line(folder, monkeypatch):
    """The table of embeddings and positions; other tests look at what is drawn."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("regard.pictures.drawn", lambda *_, **__: b"")
    page = (PAGES / "look-inside.md").read_text("utf-8")
    commands = re.findall(r"^\| .* \| `regard (show .*)` \|$", page, re.M)
    assert len(commands) == 6
    for command in commands:
        words = [word.replace("RUN", "runs/demo") for word in shlex.split(command)]
        done = CliRunner().invoke(app, [word.replace("il,elle", "1,2") for word in words])
        assert done.exit_code == 0, (command, done.output)


@pytest.fixture(scope="module")
def texts_folder(tiny, tmp_path_factory):
    """A folder with notes/, texts.txt, pairs.tsv, and runs that have learned from the texts."""
    here = tmp_path_factory.mktemp("texts")
    lines = [f"The {what} is {how}." for what in ("weather", "cat") for how in ("cold", "wet")]
    (here / "notes").mkdir()
    (here / "notes" / "one.txt").write_text("\n".join(lines * 20))
    (here / "texts.txt").write_text("\n".join(lines))
    (here / "pairs.tsv").write_text("\n".join(f"{line}\t{line.upper()}" for line in lines * 5))
    for name in ("causal", "masked"):
        given = {**tiny, "train": {**tiny["train"], "objective": name}}
        regard.train(here / "notes", out=here / name, reporter=Reporter(quiet=True), **given)
    return here


def test_language_models_in_python(texts_folder, monkeypatch):
    monkeypatch.chdir(texts_folder)
    names = {
        "regard": regard,
        "causal": "causal",
        "writer": regard.load("causal", kind=regard.LanguageModel),
        "reader": regard.load("masked", kind=regard.MaskedLanguageModel),
    }
    codes = column(3, "language-models.md")
    assert len(codes) == 15
    for code in codes:
        assert eval(code, names) is not None, code


def test_language_models_on_the_command_line(texts_folder, monkeypatch):
    monkeypatch.chdir(texts_folder)
    real = {"CAUSAL": "causal", "MASKED": "masked"}
    for command in column(2, "language-models.md"):
        words = [real.get(word, word) for word in shlex.split(command)[1:]]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, (command, done.output)
    assert Path("page.html").exists()
    assert Path("vectors.npy").exists()


def test_language_models_from_training_to_translating(texts_folder, monkeypatch):
    """All commands in blocks, one after the other, with models of a few steps."""
    monkeypatch.chdir(texts_folder)
    page = (PAGES / "language-models.md").read_text("utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", page, re.M | re.S)
    commands = [shlex.split(line)[1:] for block in blocks for line in block.splitlines()]
    assert len(commands) == 6
    short = ["train.steps=4", "model.width=16", "model.encoder_layers=1", "model.decoder_layers=1"]
    for words in commands:
        if words[0] == "train":
            words += short[:1] if "--from" in words else short
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, (words, done.output)


def test_language_models_from_python(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = python_of("language-models.md")
    objective = 'train={"objective": "causal"}'
    assert code.count(objective) == 1
    given = {**tiny, "train": {**tiny["train"], "objective": "causal"}}
    code = code.replace(objective, "**given")
    exec(compile(code, "language-models.md", "exec"), {"given": given})
    assert "The weather" in capsys.readouterr().out
