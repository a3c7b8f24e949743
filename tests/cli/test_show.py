"""`regard show`, as a person meets it."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.errors import UserError
from regard.recipes.reporter import Reporter

KINDS = ["model", "curves", "attention", "training", "beam", "embeddings", "gradients", "positions"]


def call(*given: object) -> str:
    done = CliRunner().invoke(app, ["show", *map(str, given)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(*given: object) -> str:
    with pytest.raises(UserError) as error:
        call(*given)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_an_example(kind):
    assert f"Example: regard show {kind}" in " ".join(
        call(kind, "--help").replace("│", " ").split()
    )


def test_model(run):
    said = call("model", run.path)
    total = sum(p.numel() for p in run.model().parameters())
    assert f"{total:,}" in said
    assert "encoder.blocks.0" in said
    assert "width = 16" in said


def test_attention_of_one_head_counts_from_1(run, here, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "regard.pictures.heatmaps.heatmap",
        lambda matrix, rows, columns, **more: drawn.append((matrix, more)),
    )
    record = regard.load(run)("1+1").attention
    for given, wanted in [
        (["--layer", 1, "--head", 2], {"layer": 0, "head": 1}),
        (["--head", 1], {"head": 0}),
        (["--how", "rollout", "--block", "encoder"], {"block": "encoder", "how": "rollout"}),
        (["--how", "norm"], {"how": "norm"}),
        (["--how", "max", "--block", "decoder"], {"block": "decoder", "how": "max"}),
    ]:
        call("attention", run.path, "1+1", "--out", "a.png", *given)
        assert (drawn[-1][0] == record.matrix(**wanted)).all(), given
    assert "layer 1, head 2" in drawn[0][1]["title"]


def test_attention_of_words(run, here):
    call("attention", run.path, "1+1 2", "--words", "--out", "w.svg")
    assert Path("w.svg").exists()


def test_attention_says_what_is_not_there(run, here):
    assert "counted from 1" in refused("attention", run.path, "1+1", "--layer", 2)
    assert "--head 3: cross attention has 2" in refused("attention", run.path, "1+1", "--head", 3)
    assert "blocks: cross, encoder, decoder;" in refused(
        "attention", run.path, "1+1", "--block", "foo"
    )
    assert "no cross attention by foo" in refused("attention", run.path, "1+1", "--how", "foo")
    assert "--heads draws all" in refused("attention", run.path, "1+1", "--heads", "--head", 1)
    assert "rollout combines all layers" in refused(
        "attention", run.path, "1+1", "--how", "rollout", "--layer", 1
    )
    assert "remove --words" in refused("attention", run.path, "1+1", "--how", "norm", "--words")
    assert "--how max combines heads" in refused(
        "attention", run.path, "1+1", "--how", "max", "--head", 1
    )
    assert "a page (.html) shows all layers" in refused(
        "attention", run.path, "1+1", "--layer", 1, "--out", "a.html"
    )
    assert "'': the answer is empty" in refused("attention", run.path, "")
    assert not list(here.iterdir())


def test_what_cannot_be_written_is_one_line(run, here, command):
    (here / "folder.png").mkdir()
    done = command("show", "attention", run.path, "1+1", "--out", "folder.png")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2,
        "error: folder.png: Is a directory",
    )
    assert "Traceback" not in done.stderr
    assert (
        "Errno"
        not in command("show", "positions", "--out", run.path / "config.toml" / "x.png").stderr
    )


def test_warnings_are_told(run, here, command):
    done = command("show", "attention", run.path, "1+x", "--out", "a.png")
    assert "warning: not in the vocabulary: x\n" in done.stderr
    done = command("show", "attention", run.path, "1+abcdef", "--out", "a.png")
    assert "warning: not in the vocabulary: a, b, c, d, e, …\n" in done.stderr


def test_runs_of_one_name_are_two_curves(run, here):
    for folder in ("a", "b"):
        shutil.copytree(run.path, here / folder / "same")
    call("curves", "a/same", "b/same", "--out", "two.svg")
    assert all(f"{folder}/same: loss" in Path("two.svg").read_text() for folder in "ab")


def test_training(run, here):
    answer = regard.load(run, checkpoint=run.checkpoints()[-1])("1+1").text
    said = call("training", run.path, "1+1", "--layer", 1, "--head", 2)
    assert said == f"{answer}\ntraining.png\n"
    assert Path("training.png").exists()
    assert "--head 3" in refused("training", run.path, "1+1", "--head", 3)


def test_training_needs_two_checkpoints_and_says_how_to_keep_them(tiny, here):
    data, text = (
        {"options": {"train": 20, "dev": 4, "test": 4}, "path": "arithmetic"},
        {"tokenizer": "characters"},
    )
    settings = tiny | {
        "data": data,
        "text": text,
        "train": tiny["train"] | {"steps": 2, "save_every": 2},
    }
    run = regard.train(regard.Config(), out=here / "one", reporter=Reporter(quiet=True), **settings)
    assert "train.keep=10 train.save_every=" in refused("training", run.path, "1+1")
    regard.config.build(
        regard.config.parse_overrides(["train.keep=10", "train.save_every=100"])
    )  # there are such settings


def test_beam(run, here):
    answer = regard.load(run, beam=3)("-1+1").text
    assert call("beam", run.path, "-1+1", "--beam", 3, "--out", "b.svg") == f"{answer}\nb.svg\n"
    assert "'': the answer is empty" in refused("beam", run.path, "")


def test_embeddings(run, here):
    assert call("embeddings", run.path, "--side", "target").split() == ["embeddings.png"]
    call("embeddings", run.path, "--count", 3, "--out", "three.pdf")
    assert "choose source or target" in refused("embeddings", run.path, "--side", "both")


def test_embeddings_of_named_tokens(run, here, monkeypatch):
    from regard.pictures import embeddings

    drawn = []
    draw = embeddings.embedding_map
    monkeypatch.setattr(
        embeddings,
        "embedding_map",
        lambda vectors, tokens, **more: (drawn.append(tokens), draw(vectors, tokens, **more)),
    )
    call("embeddings", run.path, "--tokens", "1, 2,+,1")
    assert drawn == [["1", "2", "+"]]
    assert Path("embeddings.png").exists()
    assert "--tokens: 'x' is not in the vocabulary" in refused(
        "embeddings", run.path, "--tokens", "x"
    )
    assert "'12' is split into several tokens in this run: 1,2" in refused(
        "embeddings", run.path, "--tokens", "12"
    )
    assert "remove one of them" in refused("embeddings", run.path, "--tokens", "1", "--count", 3)
    assert "give at least one" in refused("embeddings", run.path, "--tokens", ",")


def test_titles_keep_source_and_answer_in_order(run, here, monkeypatch):
    from regard.pictures import heatmaps

    titles = []
    draw = heatmaps.heatmap
    monkeypatch.setattr(
        heatmaps, "heatmap", lambda *a, title, **more: (titles.append(title), draw(*a, **more))
    )
    call("attention", run.path, "1+1")
    assert titles[0].startswith("\u20681+1\u2069 → \u2068")


def test_gradients(run, here):
    said = call("gradients", "--length", 10)
    assert "LSTM, forget bias 1" in said
    assert said.splitlines()[-1] == "gradients.png"
    assert call("gradients", run.path, "--length", 8, "--out", "run.svg") == "run.svg\n"
    assert "no such run" in refused("gradients", "nowhere")


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (["attention", "RUN", "1+1"], "attention.png"),
        (["attention", "RUN", "1+1", "--out", "a.html"], "a.html"),
        (["beam", "RUN", "1+1"], "beam.png"),
        (["training", "RUN", "1+1"], "training.png"),
        (["curves", "RUN"], "curves.png"),
        (["embeddings", "RUN"], "embeddings.png"),
        (["gradients", "--length", 8], "gradients.png"),
        (["positions"], "positions.png"),
        (["evidence", "RUN", "1+1", "--out", "e.png"], "e.png"),
    ],
)
def test_open_opens_what_was_written(words, file, run, here, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    words = [run.path if word == "RUN" else word for word in words]
    said = call(*words, "--open")
    assert opened == [(here / file).resolve().as_uri()]
    assert file in said.splitlines()


def test_no_browser_is_a_warning(here, monkeypatch, capfd):
    monkeypatch.setattr("webbrowser.open", lambda address: False)
    done = CliRunner().invoke(app, ["show", "positions", "--open"], catch_exceptions=False)
    assert done.exit_code == 0
    assert done.stderr == "warning: no browser found; open positions.png yourself\n"


def test_open_needs_something_to_open(run, here):
    assert "--out evidence.png" in refused("evidence", run.path, "1+1", "--open")


def test_what_attention_is_worth_is_told_in_lines(run, here):
    said = call("evidence", run.path, "1+1")
    assert "\\n" not in said
    assert any(line.startswith("Rank correlation (Spearman): ") for line in said.splitlines())
