"""`regard score`: how likely given targets are."""

import json

import pytest

import regard
from regard.cli import main


@pytest.fixture
def said(monkeypatch, capfd, tmp_path):
    """What a command prints on standard output and error; `code` is how it ends."""
    monkeypatch.chdir(tmp_path)

    def call(*words, code=None):
        monkeypatch.setattr("sys.argv", ["regard", "score", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
        output = capfd.readouterr()
        assert stopped.value.code == code, output.err
        return output

    return call


@pytest.fixture(scope="module")
def translator(run):
    return regard.load(run, device="cpu")


def test_a_file_is_a_line_for_each_pair_in_its_order(run, said, tmp_path, translator):
    (tmp_path / "pairs.tsv").write_text("12+34\t46\n1+1\t2\n12+34\t46\n")
    output = said(run.path, "--input", "pairs.tsv")
    lines = [line.split("\t") for line in output.out.splitlines()]
    assert [line[2:] for line in lines] == [["12+34", "46"], ["1+1", "2"], ["12+34", "46"]]

    likelihoods = [translator.score(source, target) for _, _, source, target in lines]
    for (total, per_token, *_), likelihood in zip(lines, likelihoods):
        assert float(total) == pytest.approx(likelihood.total, abs=1e-3)
        assert float(per_token) == pytest.approx(likelihood.per_token, abs=1e-3)
    assert output.err.startswith("3 pairs: log-probability ")
    all_of_them = float(output.err.split()[3].rstrip(","))
    assert all_of_them == pytest.approx(sum(found.total for found in likelihoods), abs=1e-2)


def test_other_kinds_of_files(run, said, tmp_path):
    (tmp_path / "sums.a").write_text("1+1\n2+2\n")
    (tmp_path / "sums.b").write_text("2\n4\n")
    (tmp_path / "sums.jsonl").write_text('{"q": "1+1", "a": "2"}\n{"q": "2+2", "a": "4"}\n')
    aligned = said(run.path, "--input", "sums.a", "sums.b").out
    assert len(aligned.splitlines()) == 2
    keys = said(run.path, "--input", "sums.jsonl", "data.source=q", "data.target=a").out
    assert keys == aligned


def test_every_target_of_a_source_is_scored(run, said, tmp_path):
    (tmp_path / "sums.jsonl").write_text('{"source": "1+1", "target": ["2", "3"]}\n')
    lines = said(run.path, "--input", "sums.jsonl", "--json").out.splitlines()
    assert [json.loads(line)["target"] for line in lines] == ["2", "3"]


def test_what_was_skipped_and_what_is_unknown_is_told(run, said, tmp_path):
    (tmp_path / "pairs.tsv").write_text("1+1\tx\nalone\n2+2\t4\n")
    error = said(run.path, "--input", "pairs.tsv").err
    assert "warning: pairs.tsv: skipped 1 line: one column (line 2)" in error
    assert "warning: 1 target with tokens that are not in the vocabulary (<unk>)" in error
    error = said(run.path, "1+y", "x").err
    assert "not in the vocabulary of the source, counted as <unk>: y" in error
    assert "not in the vocabulary of the target, counted as <unk>: x" in error


def test_an_ensemble_of_the_same_run_is_the_run(run, said):
    alone = json.loads(said(run.path, "1+1", "2", "--json").out)
    both = json.loads(said(run.path, "1+1", "2", "--json", "--with", run.path).out)
    assert both["logprobs"] == pytest.approx(alone["logprobs"], rel=1e-4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give a source and a target, or a file of pairs with --input"),
        (["1+1"], "give a source and a target, or a file of pairs with --input"),
        (["1", "2", "3"], "give a source and a target, or a file of pairs with --input"),
        (["1+1", "2", "--tokn"], "no option --tokn; did you mean --tokens?"),
        (["--input", "nothing.tsv"], "nothing.tsv: no such file"),
        (["--input", "."], ".: a folder, not a file"),
        (["--input", "pairs.tsv", "train.steps=5"], "train.steps cannot be set here"),
        (["--input", "empty.tsv"], "empty.tsv: the file is empty"),
    ],
)
def test_a_mistake_is_one_line(run, said, tmp_path, words, message):
    (tmp_path / "pairs.tsv").write_text("1+1\t2\n")
    (tmp_path / "empty.tsv").write_text("")
    error = said(run.path, *words, code=2).err
    assert message in error
    assert len(error.splitlines()) == 1
