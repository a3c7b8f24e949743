"""One hostile text as data, name, setting and answer through every verb: it is shown, not obeyed.

The names have a byte that is not UTF-8, the data has none: no reader would take it.
"""

import os
import re
import shutil
from pathlib import Path

import pytest

import regard
from regard.cli import main
from regard.recipes.reporter import Reporter

TEXT = "\x1b]0;x\x07\x1b[31m[bold]<script>|\u202e$\\frac$"
SETTING = TEXT + "\nerror: spoof\udcff"
NAME = SETTING.replace("/", "")
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def pairs(folder):
    """A file whose every text is hostile."""
    file = folder / f"{TEXT}.tsv"
    lines = [f"{TEXT} {number}\t{TEXT}\n" for number in range(40)]
    file.write_text("".join(lines), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def run(pairs, folder, tiny):
    """A run of a hostile name that has learned one hostile answer."""
    settings = tiny | {
        "text": {"tokenizer": "words"},
        "train": tiny["train"] | {"steps": 30, "rate": 0.05, "keep": 5, "save_every": 10},
    }
    out = folder / f"run {TEXT}"
    return regard.train(pairs, out=out, preset="tiny", reporter=Reporter(quiet=True), **settings)


@pytest.fixture
def said(monkeypatch, capfd, tmp_path):
    """All that a command prints, after a look for what a terminal would obey."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")  # so that no table folds a name

    def call(*words: object, code: int = 0, answers: bool = False) -> str:
        monkeypatch.setattr("sys.argv", ["regard", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
        output = capfd.readouterr()
        # A pipe gets an answer as it is, but for control characters.
        out = output.out.replace("\u202e", "") if answers else output.out
        text = out + output.err
        assert (stopped.value.code or 0) == code, text
        assert not RAW.search(text), text.encode("unicode-escape")
        assert not re.search(r"^error: spoof", text, re.MULTILINE), text
        if code:
            assert len(output.err.splitlines()) == 1, output.err
            assert len(output.err) < 1000, output.err
        return text

    return call


# data and answers


@pytest.mark.parametrize(
    "options",
    [[], ["--json"], ["--nbest", "2"], ["--at", "0"], ["--coverage"], ["--attention", "p.html"]],
    ids=" ".join,
)
def test_translate(options, run, said):
    words = ["translate", run.path, f"{TEXT} 1", f"{TEXT} unknown", *options]
    text = said(*words, answers=True)
    assert "[bold]<script>" in text


def test_translate_on_a_terminal(run, said, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert r"\x1b]0;x\x07\x1b[31m[bold]<script>|\u202e" in said("translate", run.path, f"{TEXT} 1")


def test_translate_breaks_no_line_of_a_file(run, tmp_path, said):
    (tmp_path / "in.txt").write_text(f"{TEXT} 1\n{TEXT} 2\n", encoding="utf-8")
    said("translate", run.path, "--input", "in.txt", "--output", "out.txt")
    lines = (tmp_path / "out.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2
    assert "<script>" in lines[0]
    assert not re.search("[\x00-\x08\x0a-\x1f\x7f-\x9f]", lines[0])


@pytest.mark.parametrize(
    "options",
    [[], ["--json"], ["--split", "train"], ["--sentence-bleu", "2"], ["--by-length", "--json"]],
    ids=" ".join,
)
def test_evaluate(options, run, said):
    said("evaluate", run.path, *options)


def test_evaluate_a_file(run, pairs, said):
    said("evaluate", run.path, pairs)


@pytest.mark.parametrize("options", [[], ["--json"], ["--tokens"]], ids=" ".join)
def test_score(options, run, pairs, said):
    said("score", run.path, f"{TEXT} 1", f"{TEXT} unknown", *options)
    said("score", run.path, "--input", pairs, *options, answers=True)


@pytest.mark.usefixtures("quick_pace")
@pytest.mark.parametrize("options", [[], ["--json"]], ids=" ".join)
def test_data_inspect(options, pairs, said):
    assert "[bold]<script>" in said("data", "inspect", pairs, *options)


def test_train(pairs, said, tmp_path):
    small = ["model.width=16", "model.ffn=16", "model.heads=2", "train.steps=2"]
    out = tmp_path / f"new {TEXT}"
    text = said("train", pairs, "--preset", "tiny", *small, "--out", out)
    assert "[bold]<script>" in text


@pytest.mark.parametrize("verb", ["doctor", "show model", "runs"])
def test_a_look_at_a_run(verb, run, said):
    words = verb.split()
    code = 0
    said(*words, run.path, code=code)
    if verb != "show model":
        said(*words, run.path, "--json", code=code)


@pytest.mark.parametrize("verb", ["attention", "beam", "evidence", "training"])
def test_pictures_of_an_answer(verb, run, said):
    words = ["show", verb, run.path, f"{TEXT} 1", "--out", f"{NAME}.svg"]
    assert "[bold]<script>" in said(*words, answers=True)
    (picture,) = [name for name in os.listdir(b".") if name.endswith(b".svg")]
    with open(picture, encoding="utf-8") as file:
        drawn = file.read()
    ours = re.compile("[\u2068\u2069]")  # around source and answer
    assert not RAW.search(ours.sub("", drawn))
    assert "<script" not in drawn


@pytest.mark.parametrize("verb", ["curves", "embeddings"])
def test_pictures_of_a_run(verb, run, said):
    said("show", verb, run.path, "--out", "picture.svg")
    assert not RAW.search(Path("picture.svg").read_text(encoding="utf-8"))


def test_the_card_has_no_markup_of_names(run):
    card = (run.path / "README.md").read_text(encoding="utf-8")
    assert not RAW.search(card)
    outside_code = re.sub(r"```.*?```", "", card, flags=re.DOTALL)
    assert "<script" not in outside_code
    assert r"\[bold\]" in outside_code
    rows = [line for line in card.splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 3 for row in rows)


def test_samples_are_plain(run):
    assert not RAW.search((run.path / "samples.txt").read_text(encoding="utf-8"))


def test_the_page_has_no_markup_of_texts(run):
    translator = regard.load(run.path)
    result = next(translator.translate([f"{TEXT} 1"]))
    for page in (result.page(evidence=False).html, result._repr_html_(), run._repr_html_()):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", page)
        assert "[bold]<script>" not in page
        assert "\\u202e" not in page


def test_a_table_in_a_notebook(run):
    page = regard.evaluate(run)._repr_html_()
    assert not RAW.search(page)
    assert "<script" not in page


# names and settings


@pytest.mark.parametrize(
    "words",
    [
        [SETTING],
        ["train"],
        [f"--{SETTING}"],
        ["train", SETTING],
        ["train", "copy", SETTING],
        ["train", "copy", f"train.steps={SETTING}"],
        ["train", "copy", f"train.{SETTING}=1"],
        ["train", "copy", f"{SETTING}.steps=1"],
        ["train", "copy", "--preset", SETTING],
        ["train", "copy", "--config", SETTING],
        ["train", "copy", "--parts", SETTING],
        ["train", "copy", f"train.device={SETTING}"],
        ["train", "copy", f"--{SETTING}"],
        ["train", "x" * 2000],
        ["train", "copy", f"train.steps={'x' * 2000}"],
        ["train", "copy", f"train.metric={'x y ' * 500}"],
        ["translate", SETTING, "text"],
        ["evaluate", SETTING],
        ["doctor", SETTING],
        ["prune", SETTING, "--out", "p"],
        ["runs", SETTING],
        ["settings", SETTING],
        ["show", SETTING],
        ["show", "curves", SETTING],
        ["show", "positions", SETTING],
        ["data", "inspect", SETTING],
        ["data", "generate", SETTING],
        ["data", "generate", "copy", SETTING],
    ],
    ids=lambda words: " ".join(words).encode("ascii", "replace").decode()[:60].replace("/", ""),
)
def test_a_mistake_is_told_in_one_plain_line(words, said):
    text = said(*words, code=2)
    assert text.startswith("error: ")


@pytest.mark.parametrize(
    "words",
    [
        ["translate", "RUN", TEXT, "--device", SETTING],
        ["translate", "RUN", TEXT, "--set", SETTING],
        ["translate", "RUN", "--input", SETTING],
        ["translate", "RUN", TEXT, "--must", SETTING],
        ["evaluate", "RUN", "--split", SETTING],
        ["evaluate", "RUN", "--wait", SETTING],
        ["evaluate", "RUN", SETTING],
        ["evaluate", "RUN", "--by-length", "--out", SETTING],
        ["score", "RUN", SETTING],
        ["score", "RUN", "--input", SETTING],
        ["show", "positions", "--columns", SETTING],
        ["show", "attention", "RUN", TEXT, "--block", SETTING],
        ["show", "attention", "RUN", TEXT, "--how", SETTING],
        ["show", "attention", "RUN", TEXT, "--out", SETTING],
        ["show", "evidence", "RUN", TEXT, "--token", SETTING],
        ["show", "embeddings", "RUN", "--tokens", SETTING],
        ["show", "embeddings", "RUN", "--side", SETTING],
    ],
    ids=lambda words: " ".join(word for word in words if word not in (SETTING, TEXT)),
)
def test_a_mistake_with_a_run_is_told_in_one_plain_line(words, run, said):
    text = said(*(run.path if word == "RUN" else word for word in words), code=2)
    assert "error: " in text


def test_names_in_a_folder_of_data(said, tmp_path, monkeypatch):
    (tmp_path / NAME).mkdir()
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    assert "[bold]<script>" in said("data", "list")
    said("data", "list", "--json")


def test_names_of_runs(said, tmp_path, run):
    shutil.copytree(run.path, tmp_path / "runs" / NAME)
    (tmp_path / "runs" / "broken").mkdir()
    for file in ("manifest.json", "config.toml"):
        (tmp_path / "runs" / "broken" / file).write_text(TEXT)
    assert "[bold]<script>" in said("runs")
    said("runs", "--json")
