"""The file `best`: no flipped bit points at another checkpoint, and old ones are still read."""

import shutil

import pytest

import regard
from regard.errors import UserError
from regard.runs.pointer import pointer_text, read_pointer


@pytest.fixture
def mine(run, tmp_path):
    """A run with a checkpoint for every name that one bit makes of the best one's."""
    path = shutil.copytree(run.path, tmp_path / "mine")
    name = regard.Run.open(path).best
    for place in range(len(name)):
        for bit in range(8):
            other = bytearray(name.encode())
            other[place] ^= 1 << bit
            if other.isascii() and other.replace(b"-", b"").isalnum():
                (path / "checkpoints" / other.decode()).mkdir()
    return regard.Run.open(path)


def test_every_flipped_bit(mine):
    best = mine.best
    file = mine.path / "best"
    content = file.read_bytes()
    for place in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            file.write_bytes(damaged)
            try:
                found = mine.best
            except UserError as error:
                assert "damaged; write the name of a checkpoint" in str(error)  # noqa: PT017
            else:
                assert found == best or found not in mine.checkpoints(), (place, bit)


def test_every_cut(mine):
    best = mine.best
    content = (mine.path / "best").read_bytes()
    for length in range(len(content)):
        (mine.path / "best").write_bytes(content[:length])
        try:
            assert mine.best == best or mine.best not in mine.checkpoints()
        except UserError:
            continue


@pytest.mark.parametrize("text", ["step-00000006", "step-00000006\n", "step-00000006\r\n\r\n"])
def test_a_name_alone(tmp_path, text):
    """As older versions wrote it, and as a person does."""
    (tmp_path / "best").write_bytes(text.encode())
    assert read_pointer(tmp_path / "best") == "step-00000006"


def test_what_is_written_begins_with_the_name(tmp_path):
    (tmp_path / "best").write_text(pointer_text("averaged"))
    assert read_pointer(tmp_path / "best") == "averaged"
    assert (tmp_path / "best").read_text().strip() == "averaged"


@pytest.mark.parametrize(
    "content", [b"..", b".", b"\xff\xfe", b"", b"../../decoy", b"/etc", b"a b", b"x" * 5000]
)
def test_what_is_no_name(mine, content):
    (mine.path / "best").write_bytes(content)
    with pytest.raises(UserError, match=r"best: (damaged|is too large)"):
        mine.model()


@pytest.mark.parametrize("name", ["..", ".", "", "../x", "x\0y"])
def test_no_checkpoint_outside(mine, name):
    with pytest.raises(UserError, match="no checkpoint"):
        mine.checkpoint(name)
