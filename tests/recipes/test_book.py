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


@pytest.mark.parametrize("seed", range(1, 6))
def test_three_sentences_of_the_file_come_out_as_their_references(seed, tmp_path):
    """512 pairs to train, 128 to validate; the fourth sentence of the course is not in the file.

    Right with AVX-512, also for seeds 6 to 20. With AVX2, seed 3 says "vas-y ." for "go .", and 17
    of 20 seeds are right (docs/log.md, 2026-11-18).
    """
    run = regard.train(
        str(FILE),
        preset="d2l",
        out=tmp_path / "run",
        train={"seed": seed},
        reporter=Reporter(quiet=True),
    )
    assert run.manifest["pairs"] == 512
    assert run.best == run.checkpoints()[-1]

    translator = regard.load(run)
    print(f"{NOT_THERE} -> {translator(NOT_THERE).text} (not in the file)")
    assert {source: translator(source).text for source in REFERENCES} == REFERENCES
