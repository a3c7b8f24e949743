"""A comparison from its experiment to its report, whatever happens between."""

from pathlib import Path

import pytest

from regard.comparison.folder import Folder

TOY = """
question = "Which score?"
seeds = [1, 2]
preset = "demo"
metric = "loss"

[data]
path = "phrases"
batch_sentences = 20
[data.options]
train = 200
dev = 20
test = 20

[model]
width = 16
ffn = 16
heads = 2
encoder_layers = 1
decoder_layers = 1

[train]
save_every = 4
evaluate_every = 10
log_every = 2

[search]
width = 1
limit_ratio = 1.0

[budget]
steps = 12

[axes]
"model.score" = ["additive", "scaled_dot"]
"""
CLOCK = {"seconds", "decoding", "machine"}
"""What of the scores a clock says."""


@pytest.fixture
def toy(tmp_path):
    """The file of an experiment of two systems with two seeds."""
    file = tmp_path / "toy.toml"
    file.write_text(TOY)
    return file


def found_in(folder: Path) -> dict:
    """All that was learned and answered in a comparison, without what a clock says."""
    plan = Folder(folder).plan()
    assert plan is not None
    found = {}
    for cell in plan.cells:
        scores = Folder(folder).scores(cell)
        assert scores is not None, cell.label
        values = {name: value for name, value in vars(scores).items() if name not in CLOCK}
        values["curve"] = [(step, loss) for step, _, loss in scores.curve]
        found[cell.label] = values
    return found


@pytest.fixture(scope="module")
def whole(processes, tmp_path_factory):
    """A comparison that nobody disturbed, one run after the other; nobody may change it."""
    from_conftest = pytest.importorskip  # silence linters: fixtures of a module cannot use ours
    del from_conftest
    place = tmp_path_factory.mktemp("whole")
    (place / "toy.toml").write_text(TOY)
    return place
