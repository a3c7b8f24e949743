"""The folder of a comparison: what is damaged is made again, what is somebody else's is refused."""

import json
from contextlib import suppress
from dataclasses import asdict, replace

import pytest

from regard.comparison.cells import Cell, Plan
from regard.comparison.folder import Folder
from regard.comparison.outcome import Outcome
from regard.comparison.page import report_page
from regard.comparison.scores import Scores
from regard.errors import UserError


@pytest.fixture
def outcome(made_outcome):
    return made_outcome()


@pytest.fixture
def folder(tmp_path, outcome):
    """A folder with a plan and the scores of all of its cells."""
    folder = Folder(tmp_path / "comparison")
    folder.make()
    folder.keep_plan(outcome.plan, "this one")
    for system in outcome.systems:
        for scores in system.scores:
            folder.keep_scores(cell_of(outcome, scores), scores)
    return folder


def cell_of(outcome, scores) -> Cell:
    return next(cell for cell in outcome.plan.cells if cell.key == scores.key)


def test_plan_and_scores_are_read_as_they_were_written(folder, outcome):
    assert folder.plan() == outcome.plan
    assert folder.plan("this one") == outcome.plan
    assert folder.plan("another one") is None
    cell = outcome.plan.cells[0]
    scores = outcome.systems[0].scores[0]
    kept = folder.scores(cell)
    assert replace(kept, curve=scores.curve) == scores
    assert [tuple(point) for point in kept.curve] == scores.curve


def test_scores_are_those_of_a_system_by_any_name(folder, outcome):
    renamed = replace(outcome.plan.cells[0], system="other name")
    assert folder.scores(renamed).system == "other name"


DAMAGES = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"{}",
    b'{"sum": "", "values": {}}',
    b'{"values": []}',
    b"\xff\xfe",
    b"[" * 100_000,
]


@pytest.mark.parametrize("content", DAMAGES, ids=range(len(DAMAGES)))
def test_damage_is_the_same_as_nothing(folder, outcome, content):
    cell = outcome.plan.cells[0]
    (folder.path / "experiment.json").write_bytes(content)
    next((folder.path / "scores").glob(f"{cell.key}.json")).write_bytes(content)
    assert folder.plan() is None
    assert folder.has_plan
    assert folder.scores(cell) is None


def test_every_changed_character_is_noticed(folder, outcome):
    cell = outcome.plan.cells[0]
    file = folder.path / "scores" / f"{cell.key}.json"
    content = file.read_bytes()
    sound = folder.scores(cell)
    for place in range(0, len(content) - 1, 41):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert folder.scores(cell) in (None, sound), place  # a space may be another space


def test_files_of_another_version_are_the_same_as_nothing(folder, outcome):
    cell = outcome.plan.cells[0]
    for file in (folder.path / "experiment.json", folder.path / "scores" / f"{cell.key}.json"):
        text = json.dumps({"identity": "this one", "new": 1})
        import hashlib

        digest = hashlib.sha256(text.encode()).hexdigest()
        file.write_text(f'{{"sum": "{digest}", "values": {text}}}')
    assert folder.plan() is None
    assert folder.scores(cell) is None


def test_scores_under_another_name_are_not_taken(folder, outcome):
    one, other = outcome.plan.cells[:2]
    scores = folder.path / "scores"
    (scores / f"{one.key}.json").write_bytes((scores / f"{other.key}.json").read_bytes())
    assert folder.scores(one) is None


def test_a_run_is_found_by_its_hash(folder, outcome):
    cell = outcome.plan.cells[0]
    assert folder.run(cell).name == cell.run_name
    other = folder.path / "runs" / f"older-name-seed-1-{cell.run}"
    other.mkdir()
    (folder.path / "runs" / f".{cell.run_name}.lock").touch()
    assert folder.run(cell) == other
    assert folder.run(outcome.plan.cells[1]) != other


def test_what_is_not_ours_is_refused(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match=r"holds something else \(thesis\.tex\); choose another"):
        Folder(tmp_path).make()
    with pytest.raises(UserError, match="not a folder"):
        Folder(tmp_path / "thesis.tex").make()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_empty_folder_is_taken(tmp_path):
    Folder(tmp_path).make()
    Folder(tmp_path).make()
    assert Folder(tmp_path).plan() is None
    assert not Folder(tmp_path).has_plan


@pytest.mark.parametrize("name", ["logs", "runs", "scores"])
def test_a_folder_of_somebody_else_with_a_name_of_ours_is_refused(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "mine.txt").touch()
    with pytest.raises(UserError, match="holds something else"):
        Folder(tmp_path).make()


def test_a_folder_without_a_plan_but_with_runs_that_has_a_damaged_plan_is_ours(folder, tmp_path):
    (folder.path / "experiment.json").write_text("{")
    folder.make()


def test_a_plan_whose_hashes_lead_elsewhere_is_not_read(folder, outcome):
    cells = [replace(outcome.plan.cells[0], key="../../evil"), *outcome.plan.cells[1:]]
    folder.keep_plan(replace(outcome.plan, cells=cells), "hostile")
    assert folder.plan() is None


@pytest.mark.parametrize("name", ["experiment.json", "lock"])
def test_a_file_of_somebody_else_with_a_name_of_ours_is_refused(tmp_path, name):
    (tmp_path / name).write_text('{"mine": 1}\n')
    with pytest.raises(UserError, match=f"holds something else \\({name}\\)"):
        Folder(tmp_path).make()
    assert (tmp_path / name).read_text() == '{"mine": 1}\n'


@pytest.mark.parametrize("note", ["", "123\nsome.host\n"])
def test_the_lock_of_a_killed_process_is_ours(tmp_path, note):
    (tmp_path / "lock").write_text(note)
    Folder(tmp_path).make()


def test_damaged_scores_are_dropped_and_sound_ones_kept(folder, outcome):
    damaged, sound = outcome.plan.cells[:2]
    (folder.path / "scores" / f"{damaged.key}.json").write_text("{")
    for cell in (damaged, sound):
        folder.drop_damaged_scores(cell)
    assert not folder.has_scores(damaged)
    assert folder.scores(sound) is not None


HOSTILE = (None, True, 5, -1.5, "x", [], [5], [[]], {}, {"x": 5}, {"x": {}})


@pytest.mark.parametrize("name", Scores.__dataclass_fields__)
def test_scores_with_values_of_another_type_are_not_taken(folder, outcome, name):
    cell = outcome.plan.cells[0]
    sound = folder.scores(cell)
    taken = []
    for value in HOSTILE:
        folder.keep_scores(cell, replace(sound, **{name: value}))
        found = folder.scores(cell)
        taken += [] if found is None else [type(getattr(found, name))]
    ours = type(getattr(sound, name))
    assert set(taken) <= {ours, type(None), int, float, list}
    assert len(taken) < len(HOSTILE) / 2


@pytest.mark.parametrize("name", Plan.__dataclass_fields__)
def test_a_plan_with_values_of_another_type_is_not_read(folder, outcome, name):
    plan = outcome.plan
    for value in HOSTILE:
        values = asdict(plan) | {name: value}
        try:
            read = Plan.of(values)
        except (KeyError, TypeError, ValueError, UserError):
            continue
        assert type(getattr(read, name)) in (type(getattr(plan, name)), type(None), str)
        with suppress(UserError):  # such as a metric that nobody knows
            report_page(Outcome(read, [one for of in outcome.systems for one in of.scores]), "")
