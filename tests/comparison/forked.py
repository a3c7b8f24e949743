"""`regard compare` in a child of a warm server, run by its path: the runs that it trains are forked
from it, so that none of them has to import torch again.

Given as globals: words (of the command line), folder (for what it prints, and what it starts),
place (the working directory).
"""
# ruff: noqa: F821

import os
import signal
import sys
import traceback
from pathlib import Path

import torch

import regard.cli
import regard.recipes.fitting
from regard.comparison import running


class Forked:
    """What running.py needs of subprocess.Popen."""

    def __init__(self, command, *, stdin, stdout, stderr, start_new_session):
        with Path(folder, "started").open("a") as file:
            file.write(" ".join(command[3:]) + "\n")
        reading, writing = os.pipe()
        self.returncode = None
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            os.dup2(reading, 0)
            os.dup2(stdout.fileno(), 1)
            os.dup2(stdout.fileno(), 2)
            os.closerange(3, 4096)  # as Popen does: among these are locks
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            os._exit(call(command[3:]))
        os.close(reading)
        self.stdin = os.fdopen(writing, "wb", 0)

    def poll(self):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def terminate(self):
        os.kill(self.pid, signal.SIGTERM)

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)


def call(words) -> int:
    """What a command ends with."""
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    sys.argv = ["regard", *words]
    try:
        regard.cli.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


os.chdir(place)
os.environ.update({"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"})
torch.set_num_threads(1)
for number, name in ((0, os.devnull), (1, Path(folder, "out")), (2, Path(folder, "err"))):
    os.dup2(os.open(name, os.O_RDWR | os.O_CREAT, 0o600), number)
regard.recipes.fitting.curves = lambda records, path: None  # which take longer than the training
running.subprocess.Popen = Forked
signal.signal(signal.SIGINT, signal.default_int_handler)
os._exit(call(words))
