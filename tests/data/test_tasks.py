"""Tasks: right answers, the mission's numbers, the same pairs for the same seed, nothing held out
twice.
"""

import re
from datetime import date
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.splits import leaks, open_data
from regard.data.tasks import TASKS
from regard.errors import UserError
from regard.presets import preset

OURS = [name for name in TASKS if name != "phrases"]


def test_the_first_five_of_arithmetic() -> None:
    pairs = list(TASKS["arithmetic"].pairs(5, 123456, options={"complexity": 3}))
    assert [f"{source} = {target}" for source, target in pairs] == [
        "649+864 = 1513",
        "-940-819 = -1759",
        "954-2 = 952",
        "-896-274 = -1170",
        "-762-954 = -1716",
    ]


@given(complexity=st.integers(0, 6), signed=st.booleans(), seed=st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_arithmetic_is_right(complexity: int, signed: bool, seed: int) -> None:
    options = {"complexity": str(complexity), "signed": str(signed).lower()}
    for source, target in TASKS["arithmetic"].pairs(20, seed, options=options):
        match = re.fullmatch(r"(-?\d+)([+-])(\d+)", source)
        assert match
        a, b = int(match[1]), int(match[3])
        assert int(target) == (a + b if match[2] == "+" else a - b)
        assert max(abs(a), b) <= 10**complexity
        assert signed or (a >= 0 and match[2] == "+")


def test_arithmetic_seeds_of_the_splits() -> None:
    task = TASKS["arithmetic"]
    assert list(task.pairs(9, 1, split="dev")) == list(task.pairs(9, 2))
    assert list(task.pairs(9, 1, split="test")) == list(task.pairs(9, 3))


@pytest.mark.parametrize("name", OURS)
def test_fewer_is_a_prefix_of_more(name: str) -> None:
    task = TASKS[name]
    for split in task.splits:
        more = list(task.pairs(50, 7, split=split))
        assert len(more) == 50
        assert more[:20] == list(task.pairs(20, 7, split=split))
        assert more != list(task.pairs(50, 8, split=split))


@pytest.mark.parametrize("name", OURS)
def test_held_out_examples_are_not_in_training(name: str) -> None:
    found = leaks(open_data(name, options={"train": 3_000, "dev": "300", "test": 300}))
    assert (found.dev, found.test) == (0, 0)


@pytest.mark.parametrize(
    ("name", "answer"),
    [("copy", list), ("reverse", lambda letters: letters[::-1]), ("sort", sorted)],
)
def test_letters(name: str, answer) -> None:
    task = TASKS[name]
    for split, lengths in {"train": range(1, 6), "long": range(6, 11)}.items():
        for source, target in task.pairs(50, split=split, options={"length": 5, "symbols": 4}):
            letters = source.split(" ")
            assert target.split(" ") == answer(letters)
            assert len(letters) in lengths
            assert set(letters) <= set("abcd")
    assert all(" " not in source for source, _ in task.pairs(20, options={"spaced": "false"}))


def test_dates() -> None:
    for source, target in TASKS["dates"].pairs(200, options={"first": 1990, "last": 2001}):
        day = date.fromisoformat(target)
        assert 1990 <= day.year <= 2001
        assert str(day.year) in source
        assert str(day.day) in source
    assert any("1st of " in source for source, _ in TASKS["dates"].pairs(2_000))


def _value(tokens: list[str]) -> int:
    token = tokens.pop(0)
    if not token.startswith("["):
        return int(token)
    values = []
    while tokens[0] != "]":
        values.append(_value(tokens))
    tokens.pop(0)
    ordered = sorted(values)
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2
    return {"[MAX": ordered[-1], "[MIN": ordered[0], "[MED": middle, "[SM": sum(values) % 10}[token]


@pytest.mark.parametrize(("depth", "length"), [(1, 8), (3, 40), (5, 300)])
def test_listops(depth: int, length: int) -> None:
    options = {"depth": depth, "length": length}
    for split, lengths in {
        "train": range(4, length + 1),
        "long": range(length + 1, 2 * length + 1),
    }.items():
        for source, target in TASKS["listops"].pairs(30, split=split, options=options):
            tokens = source.split(" ")
            assert len(tokens) in lengths
            level = deepest = 0
            for token in tokens:
                level += token.startswith("[") - (token == "]")
                deepest = max(deepest, level)
            assert deepest <= depth
            assert str(_value(tokens)) == target


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("arithmetic", {"complxity": 3}, "did you mean complexity"),
        ("arithmetic", {"complexity": "three"}, "whole number"),
        ("arithmetic", {"signed": "perhaps"}, "true or false"),
        ("arithmetic", {"train": 0}, "nothing to train on"),
        ("copy", {"symbols": 30}, "from 1 to 26"),
        ("copy", {"symbols": 1, "length": 1}, "too few different"),
        ("dates", {"first": 2000, "last": 1999}, "years"),
        ("listops", {"depth": 0}, "depth must be at least 1"),
    ],
)
def test_wrong_options(name: str, options: dict[str, str | int], said: str) -> None:
    with pytest.raises(UserError, match=said):
        open_data(name, options=options)


def test_a_split_that_is_not_there() -> None:
    with pytest.raises(UserError, match="no split 'long'"):
        TASKS["phrases"].pairs(1, split="long")
    assert len(list(islice(open_data("copy").split("long"), 5))) == 5
    with pytest.raises(UserError, match="it has train, dev, test"):
        open_data("phrases").split("long")


def formulas(split: str, count: int, options: dict[str, int]) -> list[str]:
    return [source for source, _ in TASKS["arithmetic"].pairs(count, split=split, options=options)]


@pytest.mark.parametrize("split", ["dev", "test"])
def test_arithmetic_holds_out_what_training_did_not_draw(split: str) -> None:
    """It is the split's own stream, drawn on, without the formulas of training."""
    options = {"complexity": 1}  # 462 different formulas, of which 300 draws leave about half
    splits = open_data("arithmetic", options={**options, "train": 300, "dev": 50, "test": 50})
    train = {pair.source for pair in splits.train}
    held_out = [pair.source for pair in splits.split(split)]
    assert (
        held_out
        == [source for source in formulas(split, 1_000, options) if source not in train][:50]
    )
    assert [pair.source for pair in splits.split(split)] == held_out  # read twice


def test_arithmetic_may_keep_the_overlap() -> None:
    options = {"complexity": 1, "train": 300, "dev": 50}
    splits = open_data("arithmetic", options={**options, "overlap": "true"})
    held_out = [pair.source for pair in splits.dev]
    assert held_out == formulas("dev", 50, {"complexity": 1})
    train = {pair.source for pair in splits.train}
    assert splits.seen_in_training(held_out) == len({*held_out} & train) > 0
    with pytest.raises(UserError, match="overlap=perhaps: must be true or false"):
        open_data("arithmetic", options={"overlap": "perhaps"})
    with pytest.raises(UserError, match="copy has no option 'overlap'"):
        open_data("copy", options={"overlap": "true"})


@pytest.mark.parametrize(
    ("complexity", "signed", "space"),
    [(0, True, 12), (0, False, 4), (1, True, 462), (1, False, 121)],
)
def test_arithmetic_says_that_too_few_formulas_are_left(
    complexity: int, signed: bool, space: int
) -> None:
    options = {"complexity": complexity, "signed": signed}
    assert len({*formulas("train", 20_000, options)}) == space  # all of them
    splits = open_data("arithmetic", options={**options, "train": 20_000, "dev": 5, "test": 0})
    with pytest.raises(
        UserError,
        match=rf"training uses all but 0 of the {space} different formulas, but dev needs 5 more",
    ):
        list(splits.dev)
    few = open_data("arithmetic", options={**options, "train": 1, "dev": space - 1, "test": space})
    assert len(list(few.dev)) == space - 1
    with pytest.raises(
        UserError, match=rf"all but {space - 1} of the {space} .*, but test needs {space} more"
    ):
        list(few.test)


@pytest.mark.parametrize("name", ["arithmetic", "sort", "phrases"])
def test_how_many_sources_stand_in_training(name: str) -> None:
    splits = open_data(name, options={"train": 200, "dev": 20, "test": 20})
    train = [pair.source for pair in splits.train]
    assert splits.seen_in_training(pair.source for pair in splits.test) == 0
    assert splits.seen_in_training([*train[:5], *train[:5], "nothing like it"]) == len({*train[:5]})


def test_the_presets_of_arithmetic() -> None:
    """The course keeps its own dev formulas; the calculator's test has none of its training."""
    course = open_data("arithmetic", options=preset("course")["data"]["options"])
    assert [pair.source for pair in course.dev] == formulas("dev", 5_000, {"complexity": 3})
    calculator = open_data(
        "arithmetic", options={**preset("calculator")["data"]["options"], "train": 100_000}
    )
    assert leaks(calculator).test == leaks(calculator).dev == 0


def test_long_dates_are_two() -> None:
    [(written, answer)] = TASKS["dates"].pairs(1, split="long")
    first, second = answer.split()
    assert date.fromisoformat(first).strftime("%Y") in written
    assert date.fromisoformat(second).strftime("%Y") in written


@pytest.mark.parametrize(
    ("task", "options", "told"),
    [
        (
            "arithmetic",
            {"complexity": 5000},
            "complexity=5000: must be a whole number from 0 to 1,0",
        ),
        ("arithmetic", {"complexity": "9" * 5000}, "complexity=9+…: must be a whole number"),
        (
            "copy",
            {"length": 10**12},
            "length=1000000000000: must be a whole number from 0 to 10,000",
        ),
        ("listops", {"depth": 10**6}, "depth=1000000: must be a whole number from 0 to 100"),
        ("copy", {"spaced": 2**20000}, "spaced=.*: must be true or false"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) else "",
)
def test_options_are_bounded(task, options, told):
    with pytest.raises(UserError, match=told):
        next(TASKS[task].pairs(1, options=options))
