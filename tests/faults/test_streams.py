"""Standard streams that are full, closed, or left by who reads them: one line, no traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="needs /dev/full and a POSIX shell"
)
# What needs no torch is quick to start; every verb prints through the same door.
QUICK = ["--help", "--version", "presets", "settings", "data list", "runs", "train --help"]
SLOW = [
    "translate RUN 1+1",
    "translate RUN 1+1 --json",
    "translate RUN 1+1 --at 0",
    "translate RUN --input TEXTS",
    "evaluate RUN",
    "doctor RUN",
    "show model RUN",
    "data generate arithmetic",
    "data inspect arithmetic",
    "show positions --out p.png",
    "train arithmetic --config CONFIG --out new",
    "generate CAUSAL 1+1",
    "generate CAUSAL --input TEXTS --tokens 3",
    "generate CAUSAL 1+1 --options 3",
    "fill MASKED '1+<mask>'",
    "embed MASKED --input TEXTS",
    "embed MASKED --input TEXTS --near 1+1",
    "score CAUSAL 1+1",
    "score MASKED --input TEXTS",
    "score RUN --contrasts CONTRASTS",
    "evaluate CAUSAL",
    "data inspect TEXTS train.objective=causal",
    "compare EXPERIMENT --plan --out new",
    "compare EXPERIMENT --out new",
]


EXPERIMENT = """
preset = "demo"
seeds = [1]
metric = "loss"
data = { path = "phrases", options = { train = 60, dev = 8, test = 8 } }
model = { width = 16, ffn = 16, heads = 2, encoder_layers = 1, decoder_layers = 1 }
search = { width = 1, limit_ratio = 1.0 }
budget = { steps = 2 }
axes = { "model.score" = ["additive", "dot"] }
"""


@pytest.fixture
def shell(run, writers, tmp_path):
    """A command with its streams as a shell sets them: exit code and standard error."""
    texts = tmp_path / "texts.txt"
    texts.write_text("1+1\n" * 3000)
    contrasts = tmp_path / "contrasts.tsv"
    contrasts.write_text("1+1\t2\t3\n")
    experiment = tmp_path / "experiment.toml"
    experiment.write_text(EXPERIMENT)
    places = {"RUN": run.path, "CONFIG": run.path / "config.toml", "TEXTS": texts}
    places |= {"CONTRASTS": contrasts, "EXPERIMENT": experiment, **writers}

    def call(words: str, streams: str) -> subprocess.CompletedProcess[str]:
        for name, place in places.items():
            words = words.replace(name, str(place))
        return subprocess.run(
            ["bash", "-c", f"{sys.executable} -m regard {words} {streams}"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=300,
            cwd=tmp_path,
            env={**os.environ, "NO_COLOR": "1", "PYTHONUNBUFFERED": ""},
        )

    return call


def lines_of(stderr: str) -> list[str]:
    """What went wrong; progress and warnings are left out."""
    assert "Traceback" not in stderr, stderr
    assert "Exception ignored" not in stderr, stderr
    return [line for line in stderr.splitlines() if line.startswith("error: ")]


verbs = pytest.mark.parametrize(
    "words", [*QUICK, *(pytest.param(words, marks=pytest.mark.slow) for words in SLOW[1:]), SLOW[0]]
)


@verbs
def test_standard_output_is_full(words, shell):
    done = shell(words, "> /dev/full")
    assert lines_of(done.stderr) == [
        "error: standard output cannot be written (No space left on device)"
    ]
    assert done.returncode == 1


def test_there_is_no_room_for_vectors(shell):
    """They are bytes, which no text stream writes."""
    done = shell("embed MASKED --input TEXTS", "> /dev/full")
    assert lines_of(done.stderr) == [
        "error: standard output cannot be written (No space left on device)"
    ]
    assert done.returncode == 1


@verbs
def test_standard_output_is_closed(words, shell):
    done = shell(words, ">&-")
    assert lines_of(done.stderr) == [
        "error: standard output cannot be written (Bad file descriptor)"
    ]
    assert done.returncode == 1


@verbs
def test_standard_error_is_closed_or_full(words, shell):
    for number, streams in enumerate(("2>&-", "2> /dev/full")):
        done = shell(words.replace("--out new", f"--out new{number}"), streams)
        assert done.returncode == 0
        assert done.stdout
        assert "warning:" not in done.stdout


@verbs
def test_the_reader_leaves(words, shell):
    done = shell(words, '| true; exit "${PIPESTATUS[0]}"')
    assert lines_of(done.stderr) == []
    assert done.returncode == 0


def test_an_error_with_all_streams_closed(shell):
    done = shell("settings nothing_like_that", "<&- >&- 2>&-")
    assert done.returncode == 2


def test_an_error_where_nothing_can_be_written(shell):
    done = shell("settings nothing_like_that", "> /dev/full 2> /dev/full")
    assert done.returncode == 2


def test_standard_input_is_closed(shell):
    done = shell("translate RUN", "<&-")
    assert lines_of(done.stderr) == [
        "error: standard input is closed: give a text, or a file with --input"
    ]
    assert done.returncode == 2


def test_a_closed_standard_input_disturbs_nothing_else(shell):
    done = shell("translate RUN 1+1", "<&-")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.slow
def test_training_goes_on_without_its_reader(shell):
    """Who reads the progress may leave; the training is not lost."""
    done = shell("train arithmetic --config CONFIG --out new", "2>&1 >/dev/null | true")
    assert lines_of(done.stderr) == []
    again = shell("runs new --json", "")
    assert '"score": {' in again.stdout
