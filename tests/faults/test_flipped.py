"""Bits that flip and files that are cut, in every file of a run: the same answer as before, or one
line; never another answer.

Deterministic by SEED, which a failure shows.
"""

import random

import pytest

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
