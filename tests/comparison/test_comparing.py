"""A comparison from its experiment to its report, whatever happens between."""

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

import regard
from regard.comparison.folder import Folder
from regard.errors import UserError
from regard.nn.scores import ScaledDot
from regard.recipes.reporter import Reporter

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
CLOCK = {"seconds", "decoding", "machine", "curve"}
"""What of the scores a clock says; of a curve, only a part."""


def found_in(folder: Path) -> dict[str, dict[str, object]]:
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


def write_toy(folder: Path, text: str = TOY) -> Path:
    file = folder / "toy.toml"
    file.write_text(text)
    return file


@pytest.fixture(scope="module")
def whole(comparing, tmp_path_factory):
    """A comparison that nobody disturbed, one run after the other; nobody may change it."""
    place = tmp_path_factory.mktemp("whole")
    write_toy(place)
    ended = comparing(place, "toy.toml", "--out", "compared", "--jobs", 1).end()
    assert ended.returncode == 0, ended.stderr
    return place / "compared"


@pytest.fixture
def kept(whole, tmp_path):
    """A copy of that comparison, beside its experiment."""
    write_toy(tmp_path)
    shutil.copytree(whole, tmp_path / "compared")
    return tmp_path / "compared"


# a report, and what it rests on


def test_three_reports_are_there_and_agree(whole):
    values = json.loads((whole / "report.json").read_text())
    found = found_in(whole)
    assert len(found) == 4
    assert set(values["systems"]) == {"additive", "scaled_dot"}
    for name, system in values["systems"].items():
        for seed, scores in system["seeds"].items():
            assert scores == found[f"{name}, seed {seed}"]["values"]
    for report in ("report.html", "report.md"):
        text = (whole / report).read_text()
        assert "Which score?" in text
        assert values["command"] in text
        assert "12 training steps" in text


def test_runs_side_by_side_give_the_same_numbers(whole, comparing, tmp_path):
    """One after the other or two at a time: the same answers, scores and curves, bit for bit."""
    write_toy(tmp_path)
    ended = comparing(tmp_path, "toy.toml", "--out", "compared", "--jobs", 2).end()
    assert ended.returncode == 0, ended.stderr
    assert found_in(tmp_path / "compared") == found_in(whole)


def test_a_second_start_only_draws_the_report(kept, comparing):
    before = {
        place: (place.stat().st_mtime_ns, place.read_bytes())
        for place in kept.rglob("*")
        if place.is_file() and place.parent.name != "compared" and place.name != "lock"
    }
    report = (kept / "report.html").read_bytes()
    (kept / "report.html").unlink()
    again = comparing(kept.parent, "toy.toml", "--out", "compared")
    ended = again.end()
    assert ended.returncode == 0, ended.stderr
    assert again.started == []
    assert (kept / "report.html").read_bytes() == report
    for place, (changed, content) in before.items():
        assert (place.stat().st_mtime_ns, place.read_bytes()) == (changed, content)


def test_the_folder_of_a_comparison_can_be_given_instead(kept, comparing):
    again = comparing(kept.parent, "compared", "--json")
    ended = again.end()
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == json.loads((kept / "report.json").read_text())
    assert again.started == []


# what is trained again, and what is not


def test_only_new_seeds_and_systems_are_trained(kept, comparing):
    text = TOY.replace("[1, 2]", "[1, 2, 3]").replace('["additive",', '["dot", "additive",')
    write_toy(kept.parent, text)
    found = found_in(kept)
    more = comparing(kept.parent, "toy.toml", "--out", "compared", "--jobs", 2)
    ended = more.end()
    assert ended.returncode == 0, ended.stderr
    assert len(more.started) == 5  # three seeds of dot, the third one of the others
    now = found_in(kept)
    assert {label: now[label] for label in found} == found


@pytest.mark.parametrize(
    ("old", "new", "count"),
    [
        ("steps = 12", "steps = 10", 4),
        ("width = 1\n", "width = 2\n", 4),  # of the search: decoded again, not trained
        ("train = 200", "train = 210", 4),
    ],
)
def test_what_changes_a_run_is_noticed(kept, comparing, old, new, count):
    trained = {place.name for place in (kept / "runs").iterdir()}
    write_toy(kept.parent, TOY.replace(old, new))
    changed = comparing(kept.parent, "toy.toml", "--out", "compared", "--jobs", 2)
    assert changed.end().returncode == 0
    assert len(changed.started) == count
    is_trained_again = {place.name for place in (kept / "runs").iterdir()} != trained
    assert is_trained_again == ("width" not in old)


def test_damaged_scores_are_made_again_from_the_run(kept, comparing, whole):
    [victim, *_] = sorted((kept / "scores").iterdir())
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    mended = comparing(kept.parent, "compared")
    ended = mended.end()
    assert ended.returncode == 0, ended.stderr
    assert len(mended.started) == 1
    assert "3 runs of 4 done before; training 1 run, " in ended.stderr
    assert found_in(kept) == found_in(whole)


def test_a_run_without_its_log_is_not_called_the_fastest(kept, comparing):
    """Without the log nobody knows how long it was trained."""
    cell = Folder(kept).plan().cells[0]
    (kept / "scores" / f"{cell.key}.json").unlink()
    (kept / "runs" / cell.run_name / "log.jsonl").unlink()
    ended = comparing(kept.parent, "compared").end()
    assert ended.returncode == 1
    assert "its log.jsonl is gone or damaged" in ended.stderr.splitlines()[-1]


# interruptions


@pytest.mark.parametrize("round_", range(2))
def test_killed_five_times_at_random_it_ends_the_same(whole, comparing, tmp_path, round_):
    rng = random.Random(round_)
    write_toy(tmp_path)
    words = ("toy.toml", "--out", "compared", "--jobs", 2)
    for _ in range(5):
        killed = comparing(tmp_path, *words)
        killed.process.join(rng.uniform(0.1, 2.5))
        killed.process.kill()
        killed.process.join()
    ended = comparing(tmp_path, *words).end()
    assert ended.returncode == 0, ended.stderr
    assert found_in(tmp_path / "compared") == found_in(whole)


def test_runs_end_with_the_process_that_started_them(comparing, tmp_path):
    """`kill -9` of the one that shows the table leaves no training behind."""
    write_toy(tmp_path, TOY.replace("steps = 12", "steps = 5000"))
    killed = comparing(tmp_path, "toy.toml", "--out", "compared", "--jobs", 2)
    wait_for(lambda: trained_in(tmp_path / "compared") == 2)
    killed.process.kill()
    killed.process.join()
    runs = list((tmp_path / "compared" / "runs").iterdir())
    wait_for(lambda: not any(is_locked(run) for run in runs))
    assert all(list((run / "checkpoints").iterdir()) for run in runs)


def test_ctrl_c_saves_and_says_how_to_continue(comparing, tmp_path):
    write_toy(tmp_path, TOY.replace("steps = 12", "steps = 5000"))
    stopped = comparing(tmp_path, "toy.toml", "--out", "compared", "--jobs", 2)
    wait_for(lambda: trained_in(tmp_path / "compared") == 2)
    os.kill(stopped.process.pid, signal.SIGINT)
    ended = stopped.end()
    assert ended.returncode == 130
    assert "run the same command to continue" in ended.stderr
    assert "Traceback" not in ended.stderr + ended.stdout


def test_two_processes_do_not_work_on_one_comparison(comparing, tmp_path):
    write_toy(tmp_path, TOY.replace("steps = 12", "steps = 5000"))
    first = comparing(tmp_path, "toy.toml", "--out", "compared", "--jobs", 2)
    wait_for(lambda: trained_in(tmp_path / "compared"))
    second = comparing(tmp_path, "toy.toml", "--out", "compared").end()
    first.process.kill()
    assert second.returncode == 2
    assert "another process is working on this comparison" in second.stderr


def wait_for(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def trained_in(folder: Path) -> int:
    """How many runs have begun to train."""
    logs = [file.read_text() for file in (folder / "runs").glob("*/log.jsonl")]
    return sum('"kind": "train"' in log for log in logs)


def is_locked(run: Path) -> bool:
    from regard.files.lock import lock

    if not (run / "lock").exists():
        return False
    held = lock(run / "lock")
    if held is None:
        return True
    held.release()
    return False


# failures


def test_a_run_that_fails_does_not_end_the_others(comparing, tmp_path):
    (tmp_path / "broken.py").write_text(
        "import regard.nn.scores\n"
        "class Broken(regard.nn.scores.ScaledDot):\n"
        "    def __call__(self, query, prepared):\n"
        "        raise ValueError('broken on purpose')\n"
    )
    write_toy(tmp_path, TOY.replace('["additive",', '["custom:Broken",'))
    words = ("toy.toml", "--out", "compared", "--parts", "score=broken.py:Broken")
    failing = comparing(tmp_path, *words)
    ended = failing.end()
    assert ended.returncode == 1
    assert "broken on purpose" in ended.stderr
    assert "run the same command to try again" in ended.stderr
    assert len(failing.started) == 4
    text = (tmp_path / "compared" / "report.md").read_text()
    assert "Only scaled_dot has been scored so far" in text
    assert "Without scores: custom:Broken (seeds 1, 2)" in text


def test_a_part_that_is_changed_is_trained_again(comparing, tmp_path):
    part = tmp_path / "parts.py"
    part.write_text("from regard.nn.scores import Dot\nclass Mine(Dot):\n    scale = 0.5\n")
    write_toy(tmp_path, TOY.replace('["additive",', '["custom:Mine",'))
    words = ("toy.toml", "--out", "compared", "--parts", "parts.py:Mine")
    first = comparing(tmp_path, *words)
    assert first.end().returncode == 0
    assert len(first.started) == 4
    again = comparing(tmp_path, *words)
    assert again.end().returncode == 0
    assert again.started == []
    found = found_in(tmp_path / "compared")

    part.write_text(part.read_text().replace("0.5", "0.25"))
    by_folder = comparing(tmp_path, "compared", "--parts", "parts.py:Mine").end()
    assert by_folder.returncode == 2
    assert "its code has changed" in by_folder.stderr
    changed = comparing(tmp_path, *words)
    assert changed.end().returncode == 0
    assert len(changed.started) == 2
    now = found_in(tmp_path / "compared")
    same = {label for label in found if now[label]["values"] == found[label]["values"]}
    assert same == {"scaled_dot, seed 1", "scaled_dot, seed 2"}


PRETRAINED = TOY.replace(
    '[axes]\n"model.score" = ["additive", "scaled_dot"]',
    """[pretrain.writer]
data = { path = "phrases", options = { train = 200, dev = 20, test = 20 } }
train = { objective = "causal", steps = 4, epochs = 0 }

[axes.start]
"nothing" = {}
"a writer" = { train = { start_from = "writer" } }""",
)


def test_what_others_start_from_is_trained_first(comparing, tmp_path):
    write_toy(tmp_path, PRETRAINED)
    listed = comparing(tmp_path, "toy.toml", "--out", "compared", "--plan").end()
    assert listed.returncode == 0, listed.stderr
    assert "--array=1-2 " in listed.stdout
    assert "--array=3-6 " in listed.stdout
    too_early = comparing(tmp_path, "compared", "--only", 6).end()
    assert too_early.returncode == 2
    assert "is not trained yet: first --only" in too_early.stderr

    ended = comparing(tmp_path, "toy.toml", "--out", "compared", "--jobs", 2).end()
    assert ended.returncode == 0, ended.stderr
    found = found_in(tmp_path / "compared")
    for seed in (1, 2):
        plain = found[f"nothing, seed {seed}"]["values"]
        assert found[f"a writer, seed {seed}"]["values"] != plain


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "nothing to compare"),
        ("seeds = [", "toy.toml"),
        (TOY.replace("scaled_dot", "scaled_dott"), "choose dot, scaled_dot"),
        (TOY.replace("phrases", "missing.tsv"), "missing.tsv"),
        (TOY.replace('metric = "loss"', 'metric = "blue"'), "bleu"),
        (TOY.replace("steps = 12", "steps = 12\nminutes = 1"), "give one of them"),
    ],
)
def test_a_mistake_is_told_in_one_line_before_anything_is_trained(comparing, tmp_path, text, told):
    write_toy(tmp_path, text)
    wrong = comparing(tmp_path, "toy.toml", "--out", "compared")
    ended = wrong.end()
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: ")
    assert ended.stderr.count("\n") == 1
    assert told in ended.stderr
    assert wrong.started == []


def test_a_folder_of_something_else_is_not_written_into(comparing, tmp_path):
    write_toy(tmp_path)
    (tmp_path / "compared").mkdir()
    (tmp_path / "compared" / "thesis.tex").write_text("years of work")
    ended = comparing(tmp_path, "toy.toml", "--out", "compared").end()
    assert ended.returncode == 2
    assert "thesis.tex" in ended.stderr
    assert [place.name for place in (tmp_path / "compared").iterdir()] == ["thesis.tex"]


# clusters


def test_runs_by_number_as_a_job_array_trains_them(comparing, tmp_path, whole):
    write_toy(tmp_path)
    listed = comparing(tmp_path, "toy.toml", "--out", "compared", "--plan").end()
    assert "--array=1-4" in listed.stdout
    tasks = [comparing(tmp_path, "compared", "--only", number) for number in (3, 1, 4, 2)]
    assert [task.end().returncode for task in tasks] == [0, 0, 0, 0]
    gathered = comparing(tmp_path, "compared")
    assert gathered.end().returncode == 0
    assert gathered.started == []
    assert found_in(tmp_path / "compared") == found_in(whole)

    beyond = comparing(tmp_path, "compared", "--only", 5).end()
    assert beyond.returncode == 2
    assert "there are 4 runs" in beyond.stderr


# from Python


class Half(ScaledDot):
    """A score of one's own."""

    def __call__(self, query, prepared):
        return super().__call__(query, prepared) / 2


def test_in_python_with_parts_of_ones_own(tmp_path):
    experiment = {
        "question": "Is half enough?",
        "seeds": [1, 2],
        "preset": "demo",
        "data": {"path": "phrases", "options": {"train": 100, "dev": 10, "test": 10}},
        "model": {"width": 16, "ffn": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1},
        "search": {"width": 1, "limit_ratio": 1.0},
        "budget": {"steps": 4},
        "axes": {"model.score": ["scaled_dot", "custom:Half"]},
    }
    reporter = Reporter(quiet=True)
    out = tmp_path / "compared"
    outcome = regard.compare(experiment, out=out, parts={"score": Half}, reporter=reporter)
    assert {system.name for system in outcome.systems} == {"scaled_dot", "custom:Half"}
    assert outcome.best.name in {"scaled_dot", "custom:Half"}
    shown = outcome._repr_html_()
    assert shown.count("<tr>") == 3
    assert "custom:Half" in shown
    assert (out / "report.html").is_file()
    again = regard.compare(experiment, out=out, parts={"score": Half}, reporter=reporter)
    assert again.as_dict() == outcome.as_dict()


def test_a_comparison_of_nothing_is_refused():
    with pytest.raises(UserError, match="nothing to compare"):
        regard.compare({"data": {"path": "phrases"}, "preset": "demo", "budget": {"steps": 1}})
