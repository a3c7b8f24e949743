"""Tags on the command line: given by an option, after a tab, or refused."""

import json
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.cli import main


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """What a command prints on standard output and error; `code` is how it ends."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words: object, code: int | None = None) -> Any:
        monkeypatch.setattr("sys.argv", ["regard", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
        output = capfd.readouterr()
        assert stopped.value.code == code, output.err
        return output

    return call


def answers(run: regard.Run, *sources: str) -> str:
    translator = regard.load(run, device="cpu")
    return "".join(f"{result.text}\n" for result in translator(list(sources)))


def test_translate_with_an_option(tagged_run: regard.Run, said: Any) -> None:
    output = said("translate", tagged_run.path, "tab", "kan", "--features", "N;DAT;SG")
    assert output.out == answers(tagged_run, "tab\tN;DAT;SG", "kan\tN;DAT;SG")
    assert "no tags" not in output.err
    as_json = said("translate", tagged_run.path, "tab", "--features", "N DAT SG", "--json")
    assert json.loads(as_json.out)["source"] == "tab\tN DAT SG"
    assert said("translate", tagged_run.path, "tab", "--features", "N", "--at", "0").out


@pytest.mark.filterwarnings("default")
def test_translate_lines_with_tags_of_their_own(
    tagged_run: regard.Run, said: Any, tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_text("tab\tN;DAT;SG\n\nkan\n")
    path = tagged_run.path
    output = said("translate", path, "--input", "in.txt", "--features", "N;NOM;PL")
    assert output.out == answers(tagged_run, "tab\tN;DAT;SG", "", "kan\tN;NOM;PL")
    output = said("translate", path, "--input", "in.txt")
    [line] = [line for line in output.err.splitlines() if "no tags" in line]
    assert line.startswith("warning: 'kan' has no tags")


def test_a_run_without_tags_refuses_them(run: regard.Run, said: Any) -> None:
    output = said("translate", run.path, "1+2", "--features", "N;DAT;SG", code=2)
    [line] = output.err.splitlines()
    assert "was trained without tags; leave it out, or train a run with data.features" in line
    assert output.out == ""


def test_score_and_evaluate(tagged_run: regard.Run, inflections: Path, said: Any) -> None:
    path = tagged_run.path
    output = said("score", path, "--input", inflections, "--json")
    first = json.loads(output.out.splitlines()[0])
    assert first["source"] == "tab\tN;NOM;SG"
    output = said("score", path, "tab\tN;NEW", "tab")
    assert "not in the vocabulary of the source, counted as <unk>: <NEW>" in output.err
    output = said("evaluate", path, inflections, "--json")
    assert json.loads(output.out)["examples"] == 144
    output = said("evaluate", path, inflections, "data.target=2", "data.features=2", code=2)
    assert "data.features is a column that is read as something else already" in output.err


def test_train_says_how_to_go_on(inflections: Path, said: Any) -> None:
    words = ["model.width=16", "model.heads=2", "model.ffn=16", "train.steps=2"]
    output = said("train", inflections, "data.features=3", *words, "--out", "run")
    assert "looks like" not in output.out + output.err
    [line] = [line for line in output.out.splitlines() if "regard translate" in line]
    assert ' --features "N;' in line
    assert "--features" in Path("run", "README.md").read_text()


@pytest.mark.usefixtures("quick_pace")
def test_inspect_offers_tags_and_ignores_counts(said: Any, inflections: Path) -> None:
    output = said("data", "inspect", inflections)
    assert "column 3 looks like tags (N;NOM;SG): add data.features=3 to use them" in output.out
    assert "not used" not in output.out
    output = said("data", "inspect", inflections, "data.features=3")
    assert "<NOM>" in output.out
    assert "looks like" not in output.out
    lines = [f"{name}\t{name.upper()}\t{n}\n" for n, name in enumerate("abcdefghij")]
    Path("names.tsv").write_text("".join(lines))
    output = said("data", "inspect", "names.tsv")
    assert output.out.count("column 3") == 1
    assert "names.tsv: column 3 looks like counts: ignored" in output.out
