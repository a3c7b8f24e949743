"""A cell that is run again: resume, overwrite, and what is said in Python's words."""

import pytest

import regard
from regard.errors import UserError
from regard.recipes.reporter import Reporter

DATA = {"options": {"train": 60, "dev": 12}, "batch_sentences": 20}


@pytest.fixture
def train(tiny, tmp_path):
    def call(**arguments):
        given = {"out": tmp_path / "run", "reporter": Reporter(quiet=True), **tiny, "data": DATA}
        return regard.train("copy", **{**given, **arguments})

    return call


def test_the_second_run_of_a_cell(train, tmp_path):
    first = train()
    with pytest.raises(UserError) as caught:
        train()
    assert str(caught.value) == (
        f"{tmp_path / 'run'} already exists: pass resume=True to continue it, overwrite=True to "
        f"replace it, or another out="
    )

    again = train(resume=True)
    assert again.checkpoints() == first.checkpoints()
    (first.path / "mark").touch()
    new = train(overwrite=True, model={"width": 8, "heads": 2})
    assert new.path == first.path
    assert new.config.model.width == 8
    assert not (new.path / "mark").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_overwrite_works_the_first_time_too(train):
    assert train(overwrite=True).checkpoints()


def test_a_mistake_deletes_nothing(train, tmp_path):
    old = train()
    with pytest.raises(UserError, match=r"no setting train\.stesp"):
        train(overwrite=True, train={"stesp": 3})
    with pytest.raises(UserError, match="only one of them"):
        train(overwrite=True, resume=True)
    with old.locked(), pytest.raises(UserError, match="another process is training"):
        train(overwrite=True)
    assert regard.load(old)("a b").tokens is not None

    (tmp_path / "photos").mkdir()
    with pytest.raises(UserError, match="not a run, so it is not overwritten"):
        train(overwrite=True, out=tmp_path / "photos")
    assert (tmp_path / "photos").exists()


def test_the_command_line_says_it_in_its_own_words(train, command):
    path = train().path
    done = command("train", "copy", "--out", path)
    assert done.returncode == 2
    assert done.stderr == (
        f"error: {path} already exists: resume it with --resume, replace it with --overwrite, "
        f"or choose another folder with --out\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epochs": 1}, 'train() has no argument epochs: write train={"epochs": 1}'),
        (
            {"seed": 7},
            'train() has no argument seed: write data={"seed": 7} or train={"seed": 7}',
        ),
        ({"epoch": 1}, 'train() has no argument epoch: write train={"epochs": 1}'),
        ({"train": 5}, "train=5: pass a dict of settings, such as "),
        ({"presett": "demo"}, "train() has no argument presett; did you mean preset?"),
    ],
)
def test_a_setting_outside_its_section(arguments, message):
    with pytest.raises(UserError) as caught:
        regard.train("pairs.tsv", **arguments)
    assert str(caught.value).startswith(message)
