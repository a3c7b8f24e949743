"""The commands of language models: generate, fill, embed and score of texts."""

import json
import os
import sys
from pathlib import Path

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


# vectors and their texts


def same(path):
    return path


def with_dots(path):
    return path.parent / "folder" / ".." / path.name


def soft_link(path):
    (path.parent / "soft.npy").symlink_to(path)
    return path.parent / "soft.npy"


def hard_link(path):
    (path.parent / "hard.npy").hardlink_to(path)
    return path.parent / "hard.npy"


@pytest.mark.parametrize("spell", [same, with_dots, soft_link, hard_link])
def test_vectors_never_replace_their_texts(runs, said, tmp_path, spell):
    texts = tmp_path / "texts.txt"
    texts.write_text("the cat\n")
    (tmp_path / "folder").mkdir()
    output = spell(texts)
    error = said("embed", runs["masked"].path, "--input", texts, "--output", output, code=2).err
    assert "this is the file of the texts, and vectors would replace them" in error
    assert error.count("\n") == 1
    assert texts.read_text() == "the cat\n"


def test_nor_do_they_replace_standard_input(runs, said):
    Path("texts.txt").write_text("the cat\n")
    kept = os.dup(0)
    with open("texts.txt") as texts:
        os.dup2(texts.fileno(), 0)
    try:
        error = said("embed", runs["masked"].path, "--output", "texts.txt", code=2).err
    finally:
        os.dup2(kept, 0)
        os.close(kept)
    assert error.startswith("error: texts.txt: this is the file of the texts")
    assert Path("texts.txt").read_text() == "the cat\n"


def test_an_output_that_cannot_be_written_is_told_before_the_work(runs, said, monkeypatch):
    def work(*_):
        raise AssertionError("an hour of work")

    monkeypatch.setattr(regard.MaskedLanguageModel, "embed", work)
    Path("texts.txt").write_text("the cat\n")
    Path("vectors").mkdir()
    words = ["embed", runs["masked"].path, "--input", "texts.txt", "--output", "vectors"]
    assert said(*words, code=2).err == "error: vectors: Is a directory\n"


def test_near_writes_no_vectors(runs, said):
    words = ["--near", "cat", "--input", "texts.txt", "--output", "vectors.npy"]
    error = said("embed", runs["masked"].path, *words, code=2).err
    assert "--near shows texts and writes no vectors" in error


# texts that are none


@pytest.mark.parametrize(
    ("verb", "objective", "more"),
    [("generate", "causal", ["--tokens", 2]), ("embed", "masked", ["--near", "cat"])],
)
def test_bytes_that_are_not_utf8_are_told(runs, said, verb, objective, more):
    Path("texts.txt").write_bytes(b"the cat\nthe d\xe9g\nthe c\xe9w\n")
    error = said(verb, runs[objective].path, "--input", "texts.txt", *more).err
    [told] = [line for line in error.splitlines() if "UTF-8" in line]
    assert told.startswith("warning: line 2 is not valid UTF-8; invalid bytes are replaced")


@pytest.mark.skipif(sys.platform == "win32", reason="Unix has these files")
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("pipe", "pipe: a named pipe, not a file"),
        ("/dev/zero", "/dev/zero: a device, not a file"),
        (".", ".: a folder, not a file"),
        ("gone", "gone: no such file"),
    ],
)
@pytest.mark.parametrize(
    ("verb", "objective"), [("generate", "causal"), ("embed", "masked"), ("score", "causal")]
)
def test_what_is_no_file_is_not_waited_for(runs, said, verb, objective, name, told):
    os.mkfifo("pipe")
    more = ["--near", "cat"] if verb == "embed" else []
    error = said(verb, runs[objective].path, "--input", name, *more, code=2).err
    assert error.startswith(f"error: {told}")
    assert error.count("\n") == 1


def test_a_file_of_empty_lines_says_so(runs, said):
    Path("texts.txt").write_text("\n\n")
    error = said("evaluate", runs["causal"].path, "texts.txt", code=2).err
    assert error.endswith("no usable texts: all lines are empty\n")


def test_utf16_without_its_mark_is_told(runs, said):
    Path("texts.txt").write_text("the cat\n")
    words = ["evaluate", runs["causal"].path, "texts.txt", "data.encoding=utf-16"]
    error = said(*words, code=2).err
    assert "texts.txt: not in the encoding utf-16 (" in error
    assert error.count("\n") == 1


# wishes that cannot be met


@pytest.mark.parametrize(
    "fault", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_that_memory_is_too_small_is_told_in_a_line(runs, said, monkeypatch, fault):
    def options(*_):
        raise fault

    monkeypatch.setattr(regard.LanguageModel, "options", options)
    error = said("generate", runs["causal"].path, "the", "--options", 3, code=2).err
    assert error.startswith("error: out of memory: give shorter texts")
    assert error.count("\n") == 1


def test_options_are_not_drawn(runs, said):
    words = ["--options", 3, "--sample", "--temperature", 0.1]
    error = said("generate", runs["causal"].path, "the", *words, code=2).err
    assert error == "error: --options shows the probabilities of the model: remove --sample\n"


@pytest.mark.parametrize(
    "words",
    [
        ["--temperature", "nan"],
        ["--temperature", "1e-300"],
        ["--top-p", "inf"],
        ["--top-p", "1e-300"],
        ["--tokens", "9" * 30],
        ["--nbest", "9" * 30],
        ["--beam", "9" * 30],
        ["--options", "9" * 30],
        ["--seed", "9" * 5000],
    ],
    ids=lambda words: words[0] + words[1][:8],
)
def test_numbers_out_of_all_bounds(runs, said, words):
    draws = words[0] in ("--temperature", "--top-p")
    more = ["--sample"] if draws else []
    error = said("generate", runs["causal"].path, "the", *words, *more, code=2).err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert len(error) < 300
