"""The commands of language models: generate, fill, embed and score of texts."""

import json

import pytest

import regard
from regard.cli import main
from regard.recipes.reporter import Reporter

SIZES = {"width": 16, "ffn": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
TEXTS = [f"the {noun} {verb}" for noun in ("cat", "dog", "cow") for verb in ("sat", "ran")] * 10


def train(data, out, objective):
    """A run that has learned next to nothing."""
    return regard.train(
        data,
        out=out,
        reporter=Reporter(quiet=True),
        model=SIZES,
        data={"dev": 5, "test": 5, "batch_tokens": 200, "max_length": 8},
        text={"tokenizer": "characters"},
        train={
            "objective": objective,
            "steps": 2,
            "epochs": 0,
            "schedule": "constant",
            "warmup": 1,
            "tensorboard": "off",
            "threads": 1,
            "device": "cpu",
        },
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of each objective; nobody may change them."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "notes.txt").write_text("\n".join(TEXTS) + "\n")
    return {
        objective: train(folder / "notes.txt", folder / objective, objective)
        for objective in ("causal", "masked", "denoise")
    }


@pytest.fixture
def said(monkeypatch, capfd, tmp_path):
    """What a command prints on standard output and error; `code` is how it ends."""
    monkeypatch.chdir(tmp_path)

    def call(*words, code=None):
        monkeypatch.setattr("sys.argv", ["regard", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
        output = capfd.readouterr()
        assert stopped.value.code == code, output.err
        return output

    return call


def test_options_as_json(runs, said):
    run = runs["causal"]
    lines = said("generate", run.path, "the", "a", "--options", 3, "--json").out.splitlines()
    answers = [json.loads(line) for line in lines]
    assert [answer["prompt"] for answer in answers] == ["the", "a"]
    for answer in answers:
        expected = regard.load(run, device="cpu").options(answer["prompt"], 3)
        assert [option["text"] for option in answer["options"]] == [one.text for one in expected]
        assert answer["options"][0].keys() == {"token", "probability", "text"}


def test_a_text_longer_than_training_is_told(runs, said):
    output = said("generate", runs["causal"].path, "the cat sat", "--tokens", 4)
    assert "warning: longer than any row in training (" in output.err
    assert "data.max_length=8)" in output.err


def test_nothing_is_near_where_there_are_no_texts(runs, said, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    output = said("embed", runs["masked"].path, "--near", "cat", "--input", "empty.txt", code=2)
    assert output.out == ""
    assert output.err == "error: nearest: there are no texts to choose from\n"


@pytest.mark.parametrize("objective", ["causal", "denoise"])
def test_a_file_of_texts_is_scored_as_it_is_evaluated(runs, said, tmp_path, objective):
    texts = ["the cat sat", "a", "the dog ran the cow"]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    run = runs[objective].path
    output = said("score", run, "--input", "texts.txt")
    lines = [line.split("\t") for line in output.out.splitlines()]
    assert [line[2] for line in lines] == texts
    report = json.loads(said("evaluate", run, "texts.txt", "--json", "--device", "cpu").out)
    total = sum(float(line[0]) for line in lines)
    assert -total / report["tokens"] == pytest.approx(report["loss"], abs=1e-4)
    assert output.err.startswith("3 texts: log-probability ")


def test_a_run_of_texts_from_python_scores_a_file(said, tmp_path):
    (tmp_path / "texts.txt").write_text("the cat sat\na\n")
    run = train(TEXTS, tmp_path / "run", "causal")
    lines = said("score", run.path, "--input", "texts.txt").out.splitlines()
    assert [line.split("\t")[2] for line in lines] == ["the cat sat", "a"]
    report = json.loads(said("evaluate", run.path, "texts.txt", "--json").out)
    assert report["texts"] == 2


def test_a_denoiser_scores_a_text_and_a_pair(runs, said):
    run = runs["denoise"].path
    text = json.loads(said("score", run, "the cat", "--json").out)
    [expected] = regard.load(run, device="cpu").text_scores(["the cat"])
    assert text["tokens"] == [*"the cat", "<eos>"]
    assert text["logprobs"] == pytest.approx(expected.logprobs, abs=1e-5)
    pair = json.loads(said("score", run, "the <mask>", "the cat", "--json").out)
    assert (pair["source"], pair["target"]) == ("the <mask>", "the cat")


def test_a_text_without_tokens_is_refused_by_itself(runs, said):
    error = said("score", runs["masked"].path, "<mask>", code=2).err
    assert error == "error: '<mask>' has no tokens to predict: give a text with some\n"
