"""Lines without end through `regard translate`: flat memory, a broken line in the middle, a reader
that leaves early.
"""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import regard

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="reads the memory of a process from /proc"
)
WORDS = [f"{a}{b}" for a in "bdfgklmnprst" for b in "aeiou"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    pairs = [
        (f"{a} {b} {c}", f"{c} {b} {a}")
        for a in WORDS[:12]
        for b in WORDS[12:24]
        for c in WORDS[24:30]
    ]
    model = {"width": 16, "ffn": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    steps = {
        "steps": 300,
        "rate": 1e-2,
        "warmup": 10,
        "evaluate_every": 300,
        "save_every": 300,
        "threads": 1,
    }
    out = tmp_path_factory.mktemp("stream") / "run"
    return regard.train(pairs, out=out, train=steps, model=model, text={"tokenizer": "words"})


def start(run):
    words = [sys.executable, "-m", "regard", "translate", run.path, "--beam", "1"]
    return subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def anonymous(pid: int) -> int:
    """KiB that belong to this process alone."""
    return next(
        int(line.split()[1])
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("RssAnon")
    )


@pytest.mark.parametrize("lines", [30_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_memory_stays_flat(run, lines):
    with start(run) as process:
        follow(process, lines)


def follow(process, lines) -> None:
    seen = {}

    def write() -> None:
        for i in range(lines):
            broken = b"\xff\xfe ba" if i == lines // 2 else b""
            process.stdin.write(
                broken or f"{WORDS[i % 12]} {WORDS[12 + i % 11]} {WORDS[24 + i % 5]}\n".encode()
            )
            if broken:
                process.stdin.write(b"\n")
        process.stdin.close()

    writer = threading.Thread(target=write)
    writer.start()
    count = 0
    for count, _ in enumerate(process.stdout, 1):
        if count % (lines // 10) == 0 and count < lines:
            seen[count] = anonymous(process.pid)
    writer.join()
    errors = process.stderr.read().decode()
    assert (process.wait(), count) == (0, lines), errors
    print({at: f"{size / 1024:.1f} MiB" for at, size in seen.items()})
    # Readings go up and down by 8 MiB with the size of a burst, the lowest ones by 6. Keeping each
    # line's result raises the lowest by 15, with the fewer lines.
    early = min(size for at, size in seen.items() if at <= lines // 2)
    late = min(size for at, size in seen.items() if at > lines // 2)
    assert late - early < 10 * 1024, seen


def test_a_reader_that_leaves_early_ends_it_cleanly(run):
    words = f"yes 'ba de fi' | {sys.executable} -m regard translate {run.path} --beam 1 | head -3"
    done = subprocess.run(
        ["bash", "-c", words], capture_output=True, text=True, timeout=120, env=os.environ
    )
    assert len(done.stdout.splitlines()) == 3
    assert "Traceback" not in done.stderr
