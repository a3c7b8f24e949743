"""Links in a run: nothing is written through them. The run itself, `checkpoints` and `data` may be
links.
"""

import os
import shutil

import pytest

import regard
from regard.errors import UserError
from regard.files.lock import lock
from regard.pictures.curves import curves
from regard.recipes.fitting import _tensorboard
from regard.recipes.pruning import prune
from regard.recipes.reporter import Reporter
from regard.runs.card import write_card

OPTIONAL = ["log.jsonl", "samples.txt", "README.md", "lock"]
OWN = ["best", "config.toml", "manifest.json", *OPTIONAL]


@pytest.fixture(scope="module")
def short(tmp_path_factory, train):
    """A run of 6 steps; do not change it."""
    path = tmp_path_factory.mktemp("short") / "run"
    train(path, steps=6)
    return path


@pytest.fixture
def again(short, tmp_path):
    """A copy of it to change."""
    return shutil.copytree(short, tmp_path / "run")


def go_on(path, **changes):
    """Resume a run with other settings."""
    return regard.train("copy", out=path, resume=True, reporter=Reporter(quiet=True), train=changes)


def state(folder):
    """All that is in a folder."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def elsewhere(tmp_path):
    """A folder that nobody may touch once the test has put something there."""
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "elsewhere"


@pytest.mark.parametrize(
    ("name", "dangling"),
    [*((name, False) for name in OWN), *((name, True) for name in OPTIONAL)],
)
def test_no_file_of_a_run_is_written_through_a_link(again, elsewhere, name, dangling):
    """It goes on beside what the link points to, or is refused in one line."""
    decoy = elsewhere / "decoy"
    if not dangling:
        shutil.copy(again / name, decoy)
    (again / name).unlink()
    (again / name).symlink_to(decoy)
    before = state(elsewhere)
    if name == "lock":
        with pytest.raises(UserError) as caught:
            go_on(again, steps=12)
        assert str(caught.value) == (
            f"{again / name}: this is a link, and Regard writes through no link inside a run; "
            f"delete it"
        )
        assert regard.Run.open(again).config.train.steps == 6
    else:
        run = go_on(again, steps=12)
        assert run.checkpoints()[-1] == "step-00000012"
        assert not (again / name).is_symlink()
        assert regard.Run.open(again).config.train.steps == 12
    assert state(elsewhere) == before


def test_a_picture_and_a_page_of_a_run(again, elsewhere):
    for target in ("decoy", "new"):
        (elsewhere / "decoy").write_text("decoy")
        run = regard.Run.open(again)
        for name in ("curves.png", "attention.html"):
            (again / name).unlink(missing_ok=True)
            (again / name).symlink_to(elsewhere / target)
        curves({"run": run.records()}, again / "curves.png")
        result = next(regard.load(again).translate(["a b"]))
        result.write_page(again / "attention.html", evidence=False)
        assert (again / "curves.png").read_bytes().startswith(b"\x89PNG")
        assert (again / "attention.html").read_text().startswith("<!")
        assert os.listdir(elsewhere) == ["decoy"]
        assert (elsewhere / "decoy").read_text() == "decoy"


@pytest.mark.parametrize("name", ["step-00000003", "step-00000006", "step-00000009"])
def test_a_checkpoint_that_is_a_link(again, elsewhere, name):
    """It is read, replaced and dropped, and what it points to stays."""
    old = again / "checkpoints" / name
    if old.exists():
        old.rename(elsewhere / name)
    old.symlink_to(elsewhere / name)
    before = state(elsewhere)
    run = go_on(again, steps=24, keep=1)
    assert run.checkpoints()[-1] == "step-00000024"
    assert not old.exists()
    assert state(elsewhere) == before


@pytest.mark.parametrize(
    "name", [".best.17.tmp", ".best.17-4.tmp", "checkpoints/.averaged.17-4.tmp"]
)
def test_a_link_that_is_swept(again, elsewhere, name):
    (elsewhere / "decoy").write_text("decoy")
    (again / name).symlink_to(elsewhere)
    go_on(again, steps=12)
    assert not (again / name).is_symlink()
    assert (elsewhere / "decoy").read_text() == "decoy"


def test_only_what_this_run_left_is_swept(again):
    """A run that is being prepared inside the folder of another is not half-made rubbish."""
    for name in (".best.17.tmp", ".log.jsonl.17-1.tmp", "checkpoints/.averaged.17-2.tmp"):
        (again / name).mkdir()
    neighbours = [again / ".b.tmp", again / "checkpoints" / ".c.tmp", again / ".notes.tmp"]
    for folder in neighbours:
        (folder / "data").mkdir(parents=True)
    go_on(again, steps=12)
    hidden = sorted(path for path in again.rglob(".*.tmp"))
    assert hidden == sorted(neighbours)


def test_the_folders_that_may_be_links(again, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    for name in ("checkpoints", "data"):
        (again / name).rename(disk / name)
        (again / name).symlink_to(disk / name)
    again.rename(disk / "run")
    again.symlink_to(disk / "run")
    run = go_on(again, steps=12)
    assert "step-00000012" in os.listdir(disk / "checkpoints")
    assert again.is_symlink()
    assert run.path == again


def test_a_linked_run_is_replaced_where_it_is(again, tmp_path):
    """Overwriting keeps the link, and leaves nothing behind."""
    disk = tmp_path / "disk"
    disk.mkdir()
    again.rename(disk / "run")
    again.symlink_to(disk / "run")
    data = regard.Run.open(again).config
    for _ in range(2):
        run = regard.train(data, out=again, overwrite=True, reporter=Reporter(quiet=True))
        assert run.checkpoints()[-1] == "step-00000006"
        assert again.is_symlink()
        assert os.listdir(disk) == ["run"]


def test_a_run_where_a_link_leads_nowhere_yet(tmp_path, train):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk" / "real")
    train(tmp_path / "run", steps=3)
    assert os.listdir(tmp_path / "disk") == ["real"]
    assert (tmp_path / "run").is_symlink()


def test_tensorboard_is_no_link(again, elsewhere):
    (again / "tensorboard").symlink_to(elsewhere)
    run = regard.Run.open(again)
    object.__setattr__(run.config.train, "tensorboard", "auto")
    pytest.importorskip("tensorboard")
    with pytest.raises(UserError, match="tensorboard: this is a link"):
        _tensorboard(run)
    assert os.listdir(elsewhere) == []


def test_the_card_of_a_pruned_run(again, tmp_path):
    """Folders that are links are copied, and the copy has none."""
    (tmp_path / "disk").mkdir()
    (again / "data").rename(tmp_path / "disk" / "data")
    (again / "data").symlink_to(tmp_path / "disk" / "data")
    run = prune(again, tmp_path / "less", tolerance=10.0, points=100.0)
    assert "Pruned from run" in (run.path / "README.md").read_text()
    assert not any(path.is_symlink() for path in run.path.rglob("*"))
    assert state(run.path / "data").keys() == {
        run.path / path.relative_to(tmp_path / "disk") for path in state(tmp_path / "disk")
    }


def test_doctor_names_a_lock_that_is_a_link(again, elsewhere):
    from regard.inspection.doctor import doctor

    (elsewhere / "decoy").write_text("decoy")
    (again / "lock").unlink(missing_ok=True)
    (again / "lock").symlink_to(elsewhere / "decoy")
    row = next(row for row in doctor(again) if row.name == "no training in progress")
    assert row.passed is False
    assert "lock: this is a link" in row.found
    assert (elsewhere / "decoy").read_text() == "decoy"


def test_who_is_refused_changes_nothing(again):
    """--resume with other settings, while another process trains the run."""
    before = state(again)
    held = lock(again / "lock")
    with pytest.raises(UserError, match="another process is training this run"):
        go_on(again, steps=12)
    held.release()
    assert state(again) == before


def test_the_lock_is_held_from_the_change_to_the_end(again, monkeypatch):
    """Between writing the settings and training, nobody else may get in."""
    change, seen = regard.Run.change, []

    def watched(run, config):
        seen.append(lock(again / "lock"))
        change(run, config)
        seen.append(lock(again / "lock"))

    def fit(run, **more):
        seen.append(lock(again / "lock"))
        return run

    monkeypatch.setattr(regard.Run, "change", watched)
    monkeypatch.setattr("regard.recipes.training.fit", fit)
    go_on(again, steps=12)
    assert seen == [None, None, None]
    held = lock(again / "lock")
    assert held is not None
    held.release()


def test_a_run_that_changed_before_it_was_locked(again):
    """Opened, changed by another process, then locked: we know other settings than it has."""
    stale = regard.Run.open(again)
    go_on(again, steps=12)
    with (
        pytest.raises(UserError, match="another process has just changed this run"),
        stale.locked(),
    ):
        pass


def test_a_card_is_replaced_whole(again, elsewhere):
    (elsewhere / "decoy").write_text("decoy")
    (again / "README.md").unlink()
    (again / "README.md").symlink_to(elsewhere / "decoy")
    write_card(regard.Run.open(again))
    assert not (again / "README.md").is_symlink()
    assert (elsewhere / "decoy").read_text() == "decoy"
