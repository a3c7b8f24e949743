"""What commands write for the user: nothing is lost on a full disk, by Ctrl-C, or by writing where
one reads.
"""

import errno
import os
import resource
import signal
import subprocess
import sys
import time

import pytest

import regard
from regard.cli import main
from regard.errors import UserError
from regard.files.disk import NamedFile
from regard.pictures.curves import curves
from regard.recipes.preparing import prepare
from regard.recipes.reporter import Reporter
from regard.runs.card import write_card
from regard.runs.claim import Claim

TEXTS = [f"{n}+{n + 1}" for n in range(40)]


def without_warnings(said):
    """The lines that do not tell how badly this run has learned."""
    return [line for line in said.splitlines() if line and not line.startswith("warning: ")]


@pytest.fixture
def call(monkeypatch, capfd):
    """call(words): exit code of a command in this process, and what it says on standard error."""

    def run(*words):
        monkeypatch.setattr("sys.argv", ["regard", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
        return stopped.value.code or 0, without_warnings(capfd.readouterr().err)

    return run


@pytest.fixture
def answers(run):
    """What the run answers to the texts."""
    return [result.text for result in regard.load(run.path, beam=1).translate(TEXTS)]


@pytest.fixture
def failing(monkeypatch):
    """failing(k): the k-th write from now on writes half, as a full disk does; the next ones fail.

    failing.count: how many writes there were.
    """
    write = NamedFile.write

    class Failing:
        count, at = 0, 10**9

        def __call__(self, at):
            self.count, self.at = 0, at

    made = Failing()

    def written(file, content):
        made.count += 1
        if made.count < made.at:
            return write(file, content)
        half = bytes(content)[: len(content) // 2]
        if half and made.count == made.at:
            return write(file, half)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file.known_as))

    monkeypatch.setattr(NamedFile, "write", written)
    return made


def same(path, folder):
    return path


def soft_link(path, folder):
    (folder / "soft.txt").symlink_to(path)
    return folder / "soft.txt"


@pytest.mark.parametrize("spell", [same, soft_link])
def test_the_input_may_be_the_output(run, tmp_path, call, answers, spell):
    """The file is longer than what is read at once, so it was emptied while it was read."""
    source = tmp_path / "f.txt"
    texts = [*TEXTS, *(f"{n}+{n}" for n in range(10**6, 10**6 + 4200))]
    source.write_text("\n".join(texts) + "\n")
    assert source.stat().st_size > 1 << 16
    out = spell(source, tmp_path)
    words = ["translate", run.path, "--input", source, "--output", out, "--beam", 1]
    assert call(*words) == (0, [])
    lines = out.read_text().splitlines()
    assert len(lines) == len(texts)
    assert lines[: len(answers)] == answers
    assert not list(tmp_path.glob("*.partial"))


def test_a_full_disk_leaves_the_old_output(run, tmp_path, call, failing, answers):
    """At each of the writes; what was finished is where the error says."""
    source, out = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("\n".join(TEXTS) + "\n")
    words = ["translate", run.path, "--input", source, "--output", out, "--beam", 1]
    failing(10**9)
    assert call(*words) == (0, [])
    count = failing.count
    assert count >= 1
    for at in range(1, count + 1):
        out.write_text("old\n")
        failing(at)
        code, said = call(*words)
        assert code == 1
        assert said == [
            f"error: {out}: No space left on device; finished lines are in {out}.partial, {out} "
            f"is unchanged"
        ]
        assert out.read_text() == "old\n"
        kept = (tmp_path / "out.txt.partial").read_text().splitlines()
        assert kept == answers[: len(kept)]
        (tmp_path / "out.txt.partial").unlink()


def test_files_that_may_not_grow(run, tmp_path):
    """RLIMIT_FSIZE: the system itself refuses, and gives no name."""
    source, out = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("1+2\n" * 3000)
    out.write_text("old\n")
    words = ["translate", run.path, "--beam", 1, "--json", "--input", source, "--output", out]
    done = subprocess.run(
        [sys.executable, "-m", "regard", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {out}: File too large; finished lines are in {out}.partial")
    assert out.read_text() == "old\n"
    assert 10_000 < (tmp_path / "out.txt.partial").stat().st_size <= 20_000


def test_ctrl_c_keeps_what_was_finished(run, tmp_path, answers):
    """The input is a pipe that stays open, so the command waits for more."""
    out = tmp_path / "out.txt"
    out.write_text("old\n")
    words = ["translate", str(run.path), "--output", str(out), "--beam", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "regard", *words],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdin.write("\n".join(TEXTS) + "\n")
    process.stdin.flush()
    partial = tmp_path / "out.txt.partial"
    deadline = time.monotonic() + 180
    while not (partial.exists() and partial.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said = process.stderr.read()
    assert process.wait(60) == 130
    process.stdin.close()
    process.stderr.close()
    words = f"stopped; finished lines are in {partial}, {out} is unchanged"
    assert without_warnings(said) == [words]
    assert out.read_text() == "old\n"
    kept = partial.read_text().splitlines()
    assert kept == answers[: len(kept)] != []


@pytest.mark.parametrize(
    "name", ["curves.png", "curves.svg", "curves.pdf", "page.html", "README.md"]
)
def test_a_picture_a_page_a_card_on_a_full_disk(run, tmp_path, failing, name):
    """At each of the writes: the old file stays, nothing else is left, and the error names it."""
    result = next(regard.load(run.path).translate(["1+2"]))
    card = regard.Run.open(run.path)
    card.path = tmp_path
    path = tmp_path / name

    def write():
        if name == "page.html":
            result.write_page(path, evidence=False)
        elif name == "README.md":
            (tmp_path / "best").write_text(run.best)
            write_card(card)
            (tmp_path / "best").unlink()
        else:
            curves({"run": run.records()}, path)

    failing(10**9)
    write()
    count = failing.count
    assert count >= 1
    path.write_text("old")
    for at in range(1, count + 1):
        failing(at)
        with pytest.raises(OSError, match="No space left on device") as caught:
            write()
        (tmp_path / "best").unlink(missing_ok=True)
        assert caught.value.filename == str(path)
        assert path.read_text() == "old"
        assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("command", ["curves", "attention"])
def test_the_command_tells_it_in_one_line(run, tmp_path, call, failing, command):
    failing(1)
    out = tmp_path / "picture.png"
    words = ["show", command, run.path, *(["1+2"] if command == "attention" else []), "--out", out]
    code, said = call(*words)
    assert code == 2
    assert said == [f"error: {out}: No space left on device"]
    assert os.listdir(tmp_path) == []


def test_a_full_disk_while_a_run_is_prepared(tmp_path, failing):
    """At each of the writes: no run, nothing left, and the error names a file."""
    pairs = [(f"a {n}", f"b {n}") for n in range(30)]
    given = {"data": {"path": "", "dev": 5, "test": 5}, "text": {"tokenizer": "words"}}
    given["model"] = {"width": 16, "ffn": 16, "heads": 2}
    folder = tmp_path / "runs" / "a"

    def attempt():
        with Claim.take(folder) as claim:
            prepare(claim, given, pairs, None, plan_settings=True, reporter=Reporter(quiet=True))

    failing(10**9)
    attempt()
    count = failing.count
    assert count >= 10
    assert {"dev.jsonl", "test.jsonl"} <= set(os.listdir(folder / "data"))
    regard.files.remove(tmp_path / "runs")
    for at in range(1, count + 1):
        failing(at)
        with pytest.raises((OSError, UserError), match="No space left on device") as caught:
            attempt()
        assert str(tmp_path / "runs" / ".a.tmp") in str(caught.value), at
        assert os.listdir(tmp_path) == []
