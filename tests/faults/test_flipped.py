"""Bits that flip and files that are cut, in every file of a run: the same answer as before, or one
line; never another answer.

Deterministic by SEED, which a failure shows.
"""

import random
import shutil

import pytest

import regard
from regard.recipes.reporter import Reporter

SEED = 15
FAST = 10
CASES = 300
QUICK = ("lock", "README.md", "samples.txt")  # nothing depends on them


def files_of(path):
    """All files of a run, without those that nothing reads."""
    return sorted(file for file in path.rglob("*") if file.is_file() and file.name not in QUICK)


def damage(path, number):
    """Flip a bit of one file, or cut it; the number says which, where and how."""
    chance = random.Random(SEED * 1_000_000 + number)
    files = files_of(path)
    file = files[number % len(files)]
    content = bytearray(file.read_bytes())
    if chance.random() < 0.3:
        content = content[: chance.randrange(len(content))]
        how = f"cut to {len(content)}"
    else:
        place = chance.randrange(len(content))
        content[place] ^= 1 << chance.randrange(8)
        how = f"flipped at {place}"
    file.write_bytes(content)
    return f"seed {SEED}, case {number}: {file.relative_to(path)} {how}"


def weights_of(digests, path):
    """Sums of the last weights; a damaged checkpoint before them stays as it is."""
    return {name: value for name, value in digests(path).items() if "step-00000012" in name}


def check(number, copied, sound, ask, digests, expected):
    what = damage(copied, number)
    resume = ["train", "copy", "--config", copied.with_name("run.toml"), "--out", copied]
    commands = [
        ["translate", copied, "a b c"],
        ["runs", copied],
        [*resume, "--resume"],
        ["translate", copied, "a b c"],
    ]
    before, listed, resumed, after = ask(*commands)
    assert before.is_one_line or before.out == expected, (what, before)
    assert listed.code == 0, (what, listed)
    if resumed.code == 0:
        assert weights_of(digests, copied) == weights_of(digests, sound), what
        assert after.out == expected, (what, after)
    else:
        assert resumed.err.splitlines()[-1].startswith("error: "), (what, resumed)
    assert copied.with_name("decoy").read_text() == "untouched", what


@pytest.fixture(scope="module")
def expected(sound, ask):
    """What the sound run answers."""
    (answer,) = ask(["translate", sound, "a b c"])
    assert answer.code == 0
    return answer.out


@pytest.mark.parametrize("number", range(0, CASES, CASES // FAST))
def test_some_flips_and_cuts(number, copied, sound, ask, digests, expected):
    check(number, copied, sound, ask, digests, expected)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(CASES))
def test_flips_and_cuts(number, copied, sound, ask, digests, expected):
    check(number, copied, sound, ask, digests, expected)


def test_a_bit_of_best(copied, ask, expected):
    """It names another checkpoint, which is there: refused, until training writes it anew."""
    checkpoints = copied / "checkpoints"
    shutil.copytree(checkpoints / "step-00000006", checkpoints / "step-00000013")
    best = copied / "best"
    assert best.read_text().startswith("step-00000012")
    best.write_bytes(best.read_bytes().replace(b"12", b"13", 1))
    refused, resumed, answer = ask(
        ["translate", copied, "a b c"],
        ["train", "copy", "--config", copied.with_name("run.toml"), "--out", copied, "--resume"],
        ["translate", copied, "a b c"],
    )
    assert refused.is_one_line, refused
    assert "best: damaged; write the name of a checkpoint alone into it" in refused.err
    assert resumed.code == 0, resumed
    assert "best: damaged; it is written anew" in " ".join(resumed.err.split())
    assert answer.out == expected


@pytest.mark.parametrize("content", [b"..", b"\xff\xfe", b"step-00000099", b"../../decoy"])
def test_a_best_that_names_nothing(copied, ask, content):
    (copied / "best").write_bytes(content)
    for answer in ask(["translate", copied, "a"], ["evaluate", copied]):
        assert answer.is_one_line, answer


@pytest.mark.parametrize(
    "name", ["train/ids.bin", "train/lengths.bin", "dev/ids.bin", "train/corpus.json"]
)
def test_changed_data_is_not_trained_on(copied, ask, name):
    file = copied / "data" / name
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    resume = ["train", "copy", "--config", copied.with_name("run.toml"), "--out", copied]
    (answer,) = ask([*resume, "--resume", "train.steps=15"])
    assert answer.is_one_line, answer
    assert str(file.parent) in answer.err
    assert not (copied / "checkpoints" / "step-00000015").exists()


@pytest.mark.parametrize("name", ["dev", "test"])
def test_changed_pairs_are_not_judged_by(tmp_path, ask, name):
    """A run on pairs from Python keeps those that it did not learn from."""
    pairs = [(f"a {number}", f"b {number}") for number in range(60)]
    model = {"width": 8, "ffn": 8, "heads": 1, "encoder_layers": 1, "decoder_layers": 1}
    train = {"steps": 1, "epochs": 0, "tensorboard": "off", "threads": 1}
    run = regard.train(
        pairs, out=tmp_path / "run", reporter=Reporter(quiet=True), model=model, train=train
    )
    (before,) = ask(["evaluate", run.path, "--split", name])
    assert before.code == 0, before
    file = run.path / "data" / f"{name}.jsonl"
    file.write_text(file.read_text().replace("b ", "c ", 1))
    (answer,) = ask(["evaluate", run.path, "--split", name])
    assert answer.is_one_line, answer
