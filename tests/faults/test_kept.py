"""Which checkpoints stay: none is lost because the disk is out of reach for a moment."""

import errno
import io
import os

import pytest

import regard
from regard.errors import Failed
from regard.training.trainer import Trainer

REASONS = [errno.EACCES, errno.EMFILE, errno.ENOMEM, errno.ESTALE]


@pytest.mark.parametrize("number", REASONS, ids=errno.errorcode.get)
def test_a_checkpoint_out_of_reach_is_not_a_damaged_one(tmp_path, train, monkeypatch, number):
    """To go on from the one before it would delete it."""
    out = tmp_path / "run"
    train(out)
    newest = out / "checkpoints" / "step-00000012" / "model.safetensors"
    open_file, open_handle = io.open, os.open

    def refuse(path):
        if str(path) == str(newest):
            raise OSError(number, os.strerror(number), str(path))

    def file(path, *args, **more):
        refuse(path)
        return open_file(path, *args, **more)

    def handle(path, *args, **more):
        refuse(path)
        return open_handle(path, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(io, "open", file)
        patch.setattr(os, "open", handle)
        with pytest.raises(Failed) as caught:
            regard.train("copy", out=out, resume=True, train={"steps": 15})
    assert str(caught.value) == f"{newest}: {os.strerror(number)}"
    assert train(out).checkpoints()[-1] >= "step-00000012"


def test_an_old_checkpoint_that_cannot_be_deleted(tmp_path, train, monkeypatch):
    """On NFS a folder stays while somebody reads in it. The new checkpoint is there nevertheless,
    and if it is the best, it stays the best.
    """
    really = os.rmdir
    refused = []

    def rmdir(path, **more):
        if os.path.basename(path) == "step-00000003" and len(refused) < 2:
            refused.append(path)
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
        return really(path, **more)

    monkeypatch.setattr(os, "rmdir", rmdir)
    monkeypatch.setattr(Trainer, "better", lambda made, found: made.progress.step == 6)
    run = train(tmp_path / "run", keep=1)
    assert len(refused) == 2
    assert run.said == ""
    assert run.best == "step-00000006"
    assert run.checkpoints() == ["step-00000006", "step-00000012"]
    assert run.model()
