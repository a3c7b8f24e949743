"""A disk that is full, broken, locked or gone: training goes on or stops in one sentence, and what
was saved stays whole.
"""

import errno
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import regard
import regard.recipes.fitting
from regard.errors import UserError
from regard.files.disk import NamedFile
from regard.nn.scores import Score
from regard.recipes.reporter import Reporter
from regard.runs.storage import read_directory

ERRORS = [errno.ENOSPC, errno.EIO, errno.EACCES, errno.ESTALE]
CALLS = ("mkdir", "open", "fsync", "rename", "replace")


@pytest.fixture
def faults(monkeypatch):
    """faults(number, at, to): operations at … to of all saves fail so. faults.count: how many there
    were.
    """

    class Faults:
        inside, count, number, at, to = False, 0, 0, 1, 0

        def __call__(self, number, at, to):
            self.count, self.number, self.at, self.to = 0, number, at, to

        def due(self):
            self.count += self.inside
            return self.inside and self.at <= self.count <= self.to

    made, write, save = Faults(), NamedFile.write, regard.recipes.fitting.save_checkpoint

    def failing(name, real):
        def call(*args, **more):
            if "dir_fd" not in more and made.due():  # what is being removed can be removed
                where = [str(args[0])] if isinstance(args[0], str | Path) else []
                raise OSError(made.number, os.strerror(made.number), *where)
            return real(*args, **more)

        monkeypatch.setattr(os, name, call)

    def written(file, content):
        """Half of it, and then no more."""
        if not made.due():
            return write(file, content)
        write(file, bytes(content)[: len(content) // 2])
        raise OSError(made.number, os.strerror(made.number), str(file.known_as))

    def saved(*args):
        made.inside = True
        try:
            return save(*args)
        finally:
            made.inside = False

    for name in CALLS:
        failing(name, getattr(os, name))
    monkeypatch.setattr(NamedFile, "write", written)
    monkeypatch.setattr("regard.recipes.fitting.save_checkpoint", saved)
    return made


@pytest.fixture(scope="module")
def begun(tmp_path_factory, train):
    """A run that stands at step 3 of 12; do not change it."""
    path, patch = tmp_path_factory.mktemp("begun") / "run", pytest.MonkeyPatch()

    def full(*args):
        raise OSError(errno.ENOSPC, "full")

    real = regard.recipes.fitting.save_checkpoint
    patch.setattr(
        "regard.recipes.fitting.save_checkpoint",
        lambda run, t: real(run, t) if t.progress.step == 3 else full(),
    )
    with pytest.raises(UserError, match="full"):
        train(path)
    patch.undo()
    assert regard.Run.open(path).checkpoints() == ["step-00000003"]
    return path


@pytest.fixture
def again(begun, tmp_path):
    """again(): the path of a new copy."""
    numbers = iter(range(10**6))
    return lambda: shutil.copytree(begun, tmp_path / f"run-{next(numbers)}")


def whole(path):
    """No half-written file, and every checkpoint can be read."""
    names = regard.Run.open(path).checkpoints()
    assert not list(path.glob("**/*.tmp"))
    return names and all(read_directory(path / "checkpoints" / name) for name in names)


def test_one_failure_at_each_place_of_a_save(again, faults, train, digests):
    """It costs one checkpoint and a warning, and nothing that is learned."""
    faults(0, 1, 0)
    expected = train(path := again())
    per_save = faults.count // 3
    assert per_save >= 15
    for at in range(1, per_save + 1):
        number = ERRORS[at % 4]
        faults(number, at, at)
        run = train(again())
        assert os.strerror(number) in run.said, (at, run.said)
        assert str(run.path) in run.said
        assert whole(run.path)
        assert (
            digests(run.path)["checkpoints/step-00000012/model.safetensors"]
            == digests(path)["checkpoints/step-00000012/model.safetensors"]
        )
        assert run.model()
    assert expected.said == ""


@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
def test_a_failure_that_stays(again, faults, train, number):
    """Training goes on to its end and then says what could not be saved; the old checkpoint can be
    gone on from.
    """
    for at in range(1 + ERRORS.index(number), 19, 8):
        faults(number, at, 10**9)
        with pytest.raises(UserError, match=os.strerror(number)) as caught:
            train(path := again())
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)
        assert caught.value.said.count("warning") == 2, caught.value.said
        assert whole(path)
        assert "step-00000003" in regard.Run.open(path).checkpoints()
        faults(0, 1, 0)
        assert train(path).checkpoints()[-1] == "step-00000012"


def test_a_best_that_was_not_saved_is_not_the_best(again, faults, train, monkeypatch):
    """The look at step 6 is the best of all, but its checkpoint fails: `best` must name one that is
    there.
    """
    monkeypatch.setattr(
        regard.training.trainer.Trainer, "better", lambda made, found: made.progress.step == 6
    )
    faults(errno.ENOSPC, 1, 1)
    run = train(again())
    assert "no checkpoint at step 6" in run.said
    assert run.best in run.checkpoints()


def test_a_log_that_cannot_be_written(again, train, monkeypatch):
    """Half a record is taken back, so that the next one has a line of its own."""
    write, path, failures = NamedFile.write, again(), iter([True, False, True])

    def written(file, content):
        if file.mode == "ab" and file.known_as.name == "log.jsonl" and next(failures, False):
            write(file, bytes(content)[:20])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file.known_as))
        return write(file, content)

    monkeypatch.setattr(NamedFile, "write", written)
    run = train(path)
    assert run.said.count("warning") == 1
    assert "log.jsonl: No space left on device" in run.said
    assert run.checkpoints()[-1] == "step-00000012"
    lines = (path / "log.jsonl").read_text().splitlines()
    assert len(run.records()) == len(lines) == 4


def test_files_that_may_not_grow(again, child):
    """RLIMIT_FSIZE: the system itself refuses; log and config are smaller than this, weights are
    not.
    """
    one = child(path := again(), limits={resource.RLIMIT_FSIZE: 20_000})
    assert one.end() in (1, 2)
    said = one.errors.read_text()
    assert said.count("File too large: no checkpoint") == 2
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("error: ")
    assert whole(path)
    assert regard.Run.open(path).checkpoints() == ["step-00000003"]


def test_a_disk_that_is_really_full(again, tmp_path):
    """A small file system with room for what is there, and not for another checkpoint."""
    path = again()
    (tmp_path / "disk").mkdir()
    mount = f"mount -t tmpfs -o size=1m none {tmp_path}/disk && cp -r {path} {tmp_path}/disk/run"
    if subprocess.run(
        ["unshare", "-m", "sh", "-c", mount], capture_output=True, check=False
    ).returncode:
        pytest.skip("this process may not mount a file system")
    fill = f"cat /dev/zero > {tmp_path}/disk/zeros; truncate -s -40K {tmp_path}/disk/zeros"
    python = f"{sys.executable} -m regard train copy --out {tmp_path}/disk/run --resume"
    words = [
        "unshare",
        "-m",
        "sh",
        "-c",
        f"{mount}; {fill}; {python}; echo code $?; ls -A {tmp_path}/disk/run/checkpoints",
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=180, check=False)
    assert done.stderr.count("No space left on device: no checkpoint") == 2, done
    assert "Traceback" not in done.stderr
    assert "code 0" not in done.stdout
    assert "step-00000003" in done.stdout
    assert ".tmp" not in done.stdout


@pytest.fixture
def locked_folder(again):
    """A run whose checkpoints may not change, not even by root."""
    path = again()
    folder = path / "checkpoints"
    root = os.geteuid() == 0
    if (
        root
        and subprocess.run(
            ["chattr", "+i", str(folder)], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("root may write anywhere, and this file system knows no chattr +i")
    folder.chmod(0o555) if not root else None
    yield path
    subprocess.run(["chattr", "-i", str(folder)], check=True) if root else folder.chmod(0o755)


def test_a_folder_that_may_not_be_written(locked_folder, train):
    with pytest.raises(UserError, match=r"not permitted|denied") as caught:
        train(locked_folder)
    assert "checkpoints" in str(caught.value)
    assert whole(locked_folder)


@pytest.mark.parametrize("name", ["lock", "log.jsonl", "best"])
def test_a_run_that_may_not_be_touched(again, train, monkeypatch, name):
    """Even before the first step: one sentence."""
    path, really, replace = again(), NamedFile.__init__, os.replace

    def refused(place):
        if Path(place).name == name:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(place))

    def opened(file, place, *more, **options):
        refused(place)
        really(file, place, *more, **options)

    monkeypatch.setattr(NamedFile, "__init__", opened)
    monkeypatch.setattr(os, "replace", lambda a, b: (refused(b), replace(a, b))[1])
    with pytest.raises(UserError, match="Read-only file system"):
        train(path)
    assert whole(path)


class Remote(Score):
    """A user's own score, which asks a server that hangs up."""

    while_training = True

    def forward(self, query, prepared):
        if self.training == self.while_training:
            raise ConnectionResetError(errno.ECONNRESET, "the server of my score hung up")
        return query @ prepared.transpose(-2, -1)


class RemoteOnDev(Remote):
    while_training = False


@pytest.mark.parametrize("score", [Remote, RemoteOnDev])
def test_an_error_of_a_users_own_part_is_not_the_disks(tmp_path, score):
    """It reaches the user as it was raised."""
    model = {"width": 16, "ffn": 24, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    model["score"] = f"custom:{score.__name__}"
    steps = {"steps": 2, "epochs": 0, "evaluate_every": 1, "threads": 1, "device": "cpu"}
    data = {"limit": 60, "dev": 12, "options": {"length": 4, "symbols": 5}}
    given = {"model": model, "train": steps, "data": data, "parts": {"score": score}}
    with pytest.raises(ConnectionResetError, match="the server of my score hung up"):
        regard.train("copy", out=tmp_path / "run", reporter=Reporter(quiet=True), **given)
