"""Bits that flip, files that are cut or swapped: all of it is noticed, and the checkpoint before is
used, loudly.
"""

import random
import shutil

import pytest

import regard
from regard.errors import UserError
from regard.runs.storage import Corrupt, read_directory


@pytest.fixture(scope="module")
def finished(tmp_path_factory, train):
    """Do not change it."""
    return train(tmp_path_factory.mktemp("finished") / "run").path


@pytest.fixture
def path(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


@pytest.fixture
def files(path):
    """Of the newest checkpoint, with their content."""
    return {p: p.read_bytes() for p in sorted((path / "checkpoints" / "step-00000012").iterdir())}


def noticed(file, damaged, content):
    file.write_bytes(damaged)
    try:
        read_directory(file.parent)
    except Corrupt as error:
        return str(file.parent) in str(error)
    finally:
        file.write_bytes(content)
    return False


def test_a_thousand_flipped_bits(files):
    chance, found = random.Random(6), 0
    for number in range(1000):
        file = list(files)[number % len(files)]
        damaged = bytearray(files[file])
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        found += noticed(file, damaged, files[file])
    assert found == 1000


def test_every_flipped_bit_of_a_manifest(files):
    file = next(f for f in files if f.name == "manifest.json")
    for place in range(len(files[file])):
        damaged = bytearray(files[file])
        damaged[place] ^= 1 << place % 8
        assert noticed(file, damaged, files[file]), place


def test_five_hundred_truncations(files):
    chance, found = random.Random(7), 0
    for number in range(500):
        file = list(files)[number % len(files)]
        found += noticed(file, files[file][: chance.randrange(len(files[file]))], files[file])
    assert found == 500


def test_files_of_another_checkpoint(path, files):
    for file, content in files.items():
        other = (path / "checkpoints" / "step-00000009" / file.name).read_bytes()
        assert noticed(file, other, content), file.name


def damage(path, names):
    for name in names:
        file = path / "checkpoints" / name / "model.safetensors"
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)


@pytest.mark.parametrize("count", [1, 2])
def test_the_one_before_is_used_and_this_is_on_record(finished, path, train, digests, log, count):
    newest = regard.Run.open(path).checkpoints()[::-1]
    damage(path, newest[:count])
    run = train(path)
    assert run.said.count("using the previous checkpoint") == count
    step = int(newest[count].removeprefix("step-"))
    fallbacks = [r for r in run.records() if r["kind"] == "fallback"]
    assert fallbacks == [{"kind": "fallback", "step": step, "damaged": newest[:count]}]
    assert digests(path) == digests(finished)
    assert [r for r in log(path) if r["kind"] != "fallback"] == log(finished)
    assert regard.load(path).translate(["a b"])


def test_all_damaged(path, child):
    """One sentence, and not a byte is touched."""
    damage(path, regard.Run.open(path).checkpoints())
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    one = child(path)
    assert one.end() in (1, 2)
    assert (
        f"error: {path}: no intact checkpoint (3 damaged); nothing was deleted"
        in one.errors.read_text()
    )
    assert "Traceback" not in one.errors.read_text()
    assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file()} == before


def test_a_checkpoint_older_than_a_damaged_one_is_kept(path, train, monkeypatch):
    """After a fallback the damaged one still is the newest by name: it must not push out what is
    saved now.
    """
    damage(path, ["step-00000012"])
    real = regard.recipes.fitting.save_checkpoint

    def saved(run, trainer):
        trainer.progress.step, step = 10, trainer.progress.step  # as if asked to stop there
        real(run, trainer)
        trainer.progress.step = step
        raise UserError("stopped")

    monkeypatch.setattr("regard.recipes.fitting.save_checkpoint", saved)
    with pytest.raises(UserError, match="stopped"):
        train(path)
    assert read_directory(path / "checkpoints" / "step-00000010")


def test_a_best_that_is_gone(path, train, monkeypatch):
    """What was the best at step 9 was retired at step 12, which is damaged: `best` still names one
    that is there.
    """
    shutil.rmtree(path / "checkpoints" / "step-00000006")
    damage(path, ["step-00000012"])

    def stop(*args):
        raise UserError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr("regard.recipes.fitting._train", stop)
        with pytest.raises(UserError, match="stopped"):
            train(path)
    assert regard.Run.open(path).best == "step-00000009"
    assert train(path).best == "step-00000012"


@pytest.mark.parametrize("name", ["model.safetensors", "manifest.json"])
def test_a_file_that_cannot_be_read(path, train, name):
    file = path / "checkpoints" / "step-00000012" / name
    file.unlink()
    file.mkdir()
    assert f"{name}: Is a directory; using the previous checkpoint" in train(path).said.replace(
        "\n", " "
    )


def test_folders_beside_the_checkpoints(path, train):
    """A copy that somebody made is none of ours."""
    shutil.copytree(
        path / "checkpoints" / "step-00000012", path / "checkpoints" / "step-00000012-copy"
    )
    damage(path, ["step-00000012"])
    assert train(path).checkpoints()[-1] == "step-00000012"
    assert (path / "checkpoints" / "step-00000012-copy").exists()


@pytest.mark.parametrize(
    "line", [b'{"kind": "tr', b"\xff\xfe\x00", b"3", b"null", b"[]", b"\0" * 100]
)
def test_a_damaged_log(path, train, log, finished, line):
    with (path / "log.jsonl").open("ab") as file:
        file.write(line)
    train(path)
    assert log(path) == log(finished)
