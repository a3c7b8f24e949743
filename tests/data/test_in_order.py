"""`data.order=file`: the first pairs of a file train, the next are held out."""

import pytest

import regard
from regard.data.splits import open_data
from regard.errors import UserError

TINY = {"width": 16, "ffn": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"source {i}\ttarget {i}\n" for i in range(100)))
    return path


def numbers(stream):
    return [int(pair.source.split()[1]) for pair in stream]


def test_first_next_and_next(file):
    splits = open_data(str(file), order="file", limit=50, dev=20, test=10)
    assert numbers(splits.train) == [*range(50)]
    assert numbers(splits.dev) == [*range(50, 70)]
    assert numbers(splits.test) == [*range(70, 80)]


def test_without_a_limit_all_pairs_are_used(file):
    splits = open_data(str(file), order="file", dev=20, test=10)
    assert numbers(splits.train) == [*range(70)]
    assert numbers(splits.test) == [*range(90, 100)]


def test_nothing_left_to_train_on(file):
    with pytest.raises(UserError, match="leave none of the 100 pairs for training"):
        open_data(str(file), order="file", dev=60, test=40)


def test_evaluate_finds_the_same_pairs(file, tmp_path):
    run = regard.train(
        file,
        out=tmp_path / "run",
        data={"order": "file", "limit": 50, "dev": 20, "test": 10},
        model=TINY,
        train={"steps": 2},
    )
    evaluation = regard.evaluate(run, split="dev")
    assert [pair.source for pair in evaluation.pairs] == [f"source {i}" for i in range(50, 70)]
