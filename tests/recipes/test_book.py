"""The preset `d2l` on the book's own file: a minute for each seed. `make test-slow`"""

import os
from pathlib import Path

import pytest

import regard
from regard.recipes.reporter import Reporter

DATA = Path(os.environ.get("REGARD_DATA", Path(__file__).parents[3] / "shared" / "data"))
FILE = DATA / "tatoeba-fra-eng" / "train.tsv.gz"
REFERENCES = {
    "go .": "va !",
    "i lost .": "j'ai perdu .",
    "i'm home .": "je suis chez moi .",
}
NOT_THERE = "he's calm ."

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FILE.is_file(), reason=f"needs {FILE} (set REGARD_DATA)"),
]


def answers(seed, folder):
    """What the model of this seed says: 512 pairs to train, 128 to validate."""
    run = regard.train(
        str(FILE),
        preset="d2l",
        out=folder / f"run-{seed}",
        train={"seed": seed},
        reporter=Reporter(quiet=True),
    )
    assert run.manifest["pairs"] == 512
    assert run.best == run.checkpoints()[-1]

    translator = regard.load(run)
    print(f"seed {seed}: {NOT_THERE} -> {translator(NOT_THERE).text} (not in the file)")
    return {source: translator(source).text for source in REFERENCES}


def test_three_sentences_of_the_file_come_out_as_their_references(tmp_path):
    """With five seeds; the fourth sentence of the course is not in the file.

    The file says "Go." once, and "Go" with something behind it thirty times: whether "go ." comes
    out right is up to rounding for one seed in ten. With AVX-512 seeds 1 to 20 are right; with AVX2
    seed 3 says "vas-y .", and 17 of 20 are right (docs/log.md, 2026-11-18).
    """
    said = [answers(seed, tmp_path) for seed in range(1, 6)]
    for source, reference in REFERENCES.items():
        right = sum(answer[source] == reference for answer in said)
        print(f"{source} -> {reference}: {right} of 5 seeds")
        assert right >= (4 if source == "go ." else 5), [answer[source] for answer in said]
