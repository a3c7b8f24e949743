"""`regard evaluate`: which data it reads, and what it prints."""

import json

import pytest

from regard.cli import main


@pytest.fixture
def said(monkeypatch, capfd, tmp_path):
    """What a command prints on standard output, or its error."""
    monkeypatch.chdir(tmp_path)

    def call(*words, code=None):
        monkeypatch.setattr("sys.argv", ["regard", "evaluate", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
        output = capfd.readouterr()
        assert stopped.value.code == code, output.err
        return output.err if code else output.out

    return call


@pytest.fixture
def two_files(tmp_path):
    (tmp_path / "sums.a").write_text("1+1\n2+2\n3+3\n")
    (tmp_path / "sums.b").write_text("2\n4\n6\n")


def test_two_files_side_by_side(run, said, two_files):
    scores = json.loads(said(run.path, "sums.a", "sums.b", "--json"))
    assert scores["examples"] == 3


def test_settings_say_how_a_file_is_read(run, said, tmp_path):
    (tmp_path / "sums.csv").write_bytes("n,sum,é\n1,2,1+1\n2,4,2+2\n".encode("latin-1"))
    words = ["data.source=é", "data.target=sum", "data.encoding=latin-1"]
    assert json.loads(said(run.path, "sums.csv", *words, "--json"))["examples"] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sums.a", "sums.c"], "sums.c: no such file, and not a setting"),
        (["sums.a", "sums.b", "sums.a"], "sums.a: a third file"),
        (["sums.a", "sums.b", "train.steps=5"], "train.steps cannot be set here; only data.source"),
        (["sums.a", "data.limit=5"], "data.limit cannot be set here; only data.source"),
        (["arithmetic", "sums.b"], "arithmetic is a task; a second file needs a first one"),
        (["arithmetic", "data.encoding=latin-1"], "data.encoding says how to read a file"),
    ],
)
def test_what_cannot_be_read_is_refused(words, message, run, said, two_files):
    assert message in said(run.path, *words, code=2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "a.png"], "--out draws the scores by length: add --by-length"),
        (["--by-length", "--out", "a.txt"], "cannot write a picture to a.txt"),
        (["--wait", "1", "--by-length"], "remove --beam, --against, --by-length"),
        (["--wait", "1", "--sentence-bleu", "2"], "remove --beam, --against, --by-length"),
        (["--sentence-bleu", "0"], "--sentence-bleu"),
    ],
)
def test_what_does_not_fit_together_is_refused_at_once(words, message, said):
    """Before a run is opened, which here is not even there."""
    assert message in said("runs/none", *words, code=2)


def test_waiting_has_no_bleu_where_it_says_nothing(said, monkeypatch):
    from regard.recipes.evaluation import Waiting

    rows = [Waiting(1, None, 0.5, 1.0, 2.0), Waiting(3, None, 0.75, 1.5, 2.5)]
    monkeypatch.setattr("regard.recipes.evaluation.evaluate_waiting", lambda *_, **__: rows)
    text = said("runs/none", "--wait", "1,3")
    assert "BLEU" not in text
    assert "exact match" in text
    assert "50.0%" in text
    assert json.loads(said("runs/none", "--wait", "1,3", "--json"))[0]["bleu"] is None
