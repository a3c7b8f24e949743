"""Commands of Regard in a child of a warm server: run by its path.

Given as globals: commands (lists of words; a path that ends with .py is a script), folder (for what
each prints), place (the working
directory), environment, bare (without the right to read what the permissions forbid, which root
has), draws (whether training draws its curves).
"""
# ruff: noqa: F821

import ctypes
import json
import os
import resource
import runpy
import sys
import traceback
import warnings
from pathlib import Path

import torch

import regard.cli
import regard.recipes.fitting

REACH = (1 << 1) | (1 << 2)  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH


def obey_permissions() -> None:
    """Let the system forbid us what it forbids others; only root has to ask for that."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    rights = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, rights) == 0
    rights[0] &= ~REACH
    assert libc.capset(header, rights) == 0


def ask(words: list[str], place: Path) -> int:
    """What a command ends with; what it prints goes into two files."""
    for number, end in ((1, "out"), (2, "err")):
        file = os.open(place.with_suffix(f".{end}"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    try:
        if words[0].endswith(".py"):
            sys.argv = words
            warnings.simplefilter("error")
            runpy.run_path(words[0], run_name="__main__")
        else:
            sys.argv = ["regard", *words]
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
os.environ.clear()
os.environ.update(environment)
torch.set_num_threads(1)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
if not draws:  # they take longer to draw than such a run to train
    regard.recipes.fitting.curves = lambda records, path: None
if bare:
    obey_permissions()
codes = []
before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
for number, words in enumerate(commands):
    codes.append(ask(words, Path(folder, str(number))))
usage = resource.getrusage(resource.RUSAGE_SELF)
told = {"codes": codes, "kilobytes": usage.ru_maxrss, "seconds": usage.ru_utime - before}
Path(folder, "told.json").write_text(json.dumps(told))
os._exit(0)
