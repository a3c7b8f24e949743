"""A pipe, a socket, a folder, a link into nothing, a loop, a device or a file without permission in
place of each file that Regard reads: one line, and nobody waits for it.
"""

import os
import shutil
import socket
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Unix has these files")

STEP = "checkpoints/step-00000012"
READ = ("manifest.json", "config.toml", "tokenizer.json", "best", f"{STEP}/model.safetensors")
"""What `translate` reads. The best checkpoint of this run is the last one."""
RESUMED = (
    *("lock", "log.jsonl", f"{STEP}/progress.json", f"{STEP}/manifest.json"),
    *("data/train/ids.bin", "data/train/corpus.json", "data/dev/lengths.bin"),
)
"""What training reads besides."""


def pipe(path):
    os.mkfifo(path)


def listening(path):
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket has at most 100 letters
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


def folder(path):
    path.mkdir()


def nowhere(path):
    path.symlink_to("nowhere")


def loop(path):
    path.symlink_to(path.name)


def zeros(path):
    path.symlink_to("/dev/zero")


def unreadable(path):
    path.write_bytes(b"secret")
    path.chmod(0)


KINDS = {
    made.__name__: made for made in (pipe, listening, folder, nowhere, loop, zeros, unreadable)
}


def put(path, kind):
    """Something of this kind in place of a file."""
    path.unlink()
    KINDS[kind](path)


def check(name, kind, copied, sound, ask, digests):
    put(copied / name, kind)
    resume = ["train", "copy", "--config", copied.with_name("run.toml"), "--out", copied]
    translated, listed, curves, resumed = ask(
        ["translate", copied, "a b c"],
        ["runs", copied],
        ["show", "curves", copied, "--out", copied.with_name("curves.png")],
        [*resume, "--resume"],
        bare=True,
    )
    assert listed.code in (0, 2), listed
    assert curves.code == 0 or curves.is_one_line, curves
    if name in READ:
        assert translated.is_one_line, translated
    else:
        assert translated.code == 0 or translated.is_one_line, translated
    if resumed.code == 0:  # from the checkpoint before, or with a file that it made anew
        last = f"{STEP}/model.safetensors"
        assert digests(copied)[last] == digests(sound)[last], resumed
    else:
        assert resumed.err.splitlines()[-1].startswith("error: "), resumed
    assert copied.with_name("decoy").read_text() == "untouched"


ALL = [(name, kind) for name in (*READ, *RESUMED) for kind in KINDS]
FAST = [("best", "pipe"), ("log.jsonl", "zeros"), ("lock", "pipe"), ("data/train/ids.bin", "pipe")]
FAST += [("config.toml", "unreadable"), (f"{STEP}/model.safetensors", "loop")]


@pytest.mark.parametrize(("name", "kind"), FAST)
def test_some_special_files(name, kind, copied, sound, ask, digests):
    check(name, kind, copied, sound, ask, digests)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), ALL)
def test_special_files(name, kind, copied, sound, ask, digests):
    check(name, kind, copied, sound, ask, digests)


def test_there_are_forty():
    assert len(ALL) >= 40
    assert set(FAST) <= set(ALL)


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_without_what_is_no_file(copied, ask, kind):
    """`prune` copies a run, and would copy /dev/zero for ever."""
    (copied / "extra").write_text("")
    put(copied / "extra", kind)
    out = copied.with_name("pruned")
    (pruned,) = ask(["prune", copied, "--out", out])
    assert pruned.code == 0 or pruned.is_one_line, pruned
    assert out.exists() == (pruned.code == 0)


def test_a_run_that_is_a_pipe(tmp_path, ask):
    os.mkfifo(tmp_path / "run")
    for answer in ask(["translate", tmp_path / "run", "a"], ["doctor", tmp_path / "run"]):
        assert answer.is_one_line, answer


def test_the_other_commands(copied, ask):
    """Those that are too slow to be asked each time."""
    shutil.copytree(copied, copied.with_name("other"))
    put(copied / "best", "pipe")
    put(copied / "log.jsonl", "zeros")
    evaluated, doctored, pruned, tuned = ask(
        ["evaluate", copied],
        ["doctor", copied, "--json"],
        ["prune", copied, "--out", copied.with_name("pruned")],
        ["train", "copy", "--from", copied, "--out", copied.with_name("new"), "train.steps=1"],
        seconds=120,
    )
    assert evaluated.is_one_line, evaluated
    assert doctored.code == 1, doctored
    assert "is a pipe" in doctored.out, doctored
    assert pruned.is_one_line, pruned
    assert tuned.is_one_line, tuned
