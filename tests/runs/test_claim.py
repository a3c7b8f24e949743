"""Names of runs: those who prepare neighbouring names never touch each other's folders."""

import itertools
import os

import pytest

from regard.errors import UserError
from regard.files.lock import lock
from regard.runs import claim as claims
from regard.runs.claim import Claim, Taken

NAMES = [
    "a",
    "a-2",
    "a.old",
    "a.replaced",
    "a.tmp",
    "a.lock",
    "a.old.tmp",
    "a.tmp.old",
    ".a",
    "a.2",
    "aa",
]


def old_run(folder):
    folder.mkdir()
    (folder / "manifest.json").write_text("old")
    return folder


@pytest.mark.parametrize(("one", "other"), list(itertools.permutations(NAMES, 2)))
def test_neighbours_do_not_touch_each_other(tmp_path, one, other):
    """Both prepare; each finds its own work, whoever comes first, also when both overwrite."""
    old_run(tmp_path / one)
    old_run(tmp_path / other)
    with Claim.take(tmp_path / one, overwrite=True) as first:
        (first.aside / "work").write_text(one)
        with Claim.take(tmp_path / other, overwrite=True) as second:
            (second.aside / "work").write_text(other)
            assert (first.aside / "work").read_text() == one
            first.fill()
            second.fill()
    assert (tmp_path / one / "work").read_text() == one
    assert (tmp_path / other / "work").read_text() == other
    assert sorted(os.listdir(tmp_path)) == sorted([one, other])


@pytest.mark.parametrize("name", [".a.tmp", ".a.replaced", ".a.lock", "/"])
def test_names_that_are_in_use_beside_a_run(tmp_path, name):
    with pytest.raises(UserError, match="a run cannot have this name"):
        Claim.take(tmp_path / name)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", [".", "..", "sub/.."])
def test_a_folder_without_a_name_of_its_own(tmp_path, monkeypatch, name):
    (tmp_path / "here" / "sub").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(Taken):
        Claim.take(claims.Path(name))


def test_a_run_that_was_just_being_replaced_comes_back(tmp_path):
    """Killed between two renames: the old run is aside, and the new one not in its place."""
    old_run(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / ".a.replaced")
    with pytest.raises(Taken):
        Claim.take(tmp_path / "a")
    assert (tmp_path / "a" / "manifest.json").read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_what_came_meanwhile_is_not_deleted(tmp_path):
    """Only --overwrite may replace a folder; this one was not there when we began."""
    with Claim.take(tmp_path / "a") as claim:
        (claim.aside / "work").write_text("ours")
        old_run(tmp_path / "a")
        with pytest.raises(OSError, match="not empty") as caught:
            claim.fill()
        assert caught.value.filename == str(tmp_path / "a")
    assert (tmp_path / "a" / "manifest.json").read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_nobody_trains_a_run_that_is_being_replaced(tmp_path):
    """From the claim to the rename, not only at its beginning."""
    run = old_run(tmp_path / "a")
    with Claim.take(run, overwrite=True):
        assert lock(run / "lock") is None
    held = lock(run / "lock")
    assert held is not None
    with pytest.raises(UserError, match="another process is training this run"):
        Claim.take(run, overwrite=True)
    held.release()
    assert os.listdir(tmp_path) == ["a"]


def test_what_is_left_beside_may_be_a_link(tmp_path):
    (tmp_path / "decoy").mkdir()
    (tmp_path / "decoy" / "file").touch()
    for name in (".a.tmp", ".a.replaced"):
        (tmp_path / name).symlink_to(tmp_path / "decoy")
    with Claim.take(tmp_path / "a") as claim:
        assert not claim.aside.is_symlink()
    assert os.listdir(tmp_path) == ["decoy"]
    assert os.listdir(tmp_path / "decoy") == ["file"]


def test_the_next_name_is_never_a_link(tmp_path):
    """A default name goes nowhere that nobody named."""
    (tmp_path / "a").symlink_to(tmp_path / "gone" / "a")
    with Claim.take_next(tmp_path / "a") as claim:
        assert claim.folder == tmp_path / "a-2"
    assert not (tmp_path / "gone").exists()
