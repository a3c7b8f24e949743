"""Train and score every run of a comparison, some of them side by side, each in its own process."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from regard.comparison.cells import Cell, Plan
from regard.comparison.folder import Folder
from regard.comparison.progress import Board
from regard.comparison.scores import score
from regard.config import Config
from regard.errors import Failed, Interrupted, UserError, counted
from regard.models.parts import Parts
from regard.nn.devices import pick_device
from regard.recipes.reporter import Reporter
from regard.recipes.training import train
from regard.runs.run import Run

GLANCE = 0.5  # seconds between two looks at the processes
GRACE = 60.0  # seconds that a process has to save and end


@dataclass
class Running:
    """A run that is being trained."""

    number: int
    cells: list[Cell]
    process: "subprocess.Popen[bytes]"
    log: Path
    began: float = field(default_factory=time.monotonic)


def missing_runs(plan: Plan, folder: Folder) -> list[int]:
    """The numbers of the runs, from 0, that are not trained or not scored yet."""
    return [
        number
        for number, cells in enumerate(plan.runs())
        if any(folder.scores(cell) is None for cell in cells)
    ]


def run_here(plan: Plan, folder: Folder, number: int, *, parts: Parts, reporter: Reporter) -> None:
    """Train and score one of the runs in this process, from wherever it stands."""
    cells = plan.runs()[number]
    config = _with_base(cells[0], plan, folder)
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    run = train(config, out=folder.run(cells[0]), resume=True, parts=parts, reporter=reporter)
    for cell in cells:
        if folder.scores(cell) is None:
            folder.keep_scores(cell, score(run, cell, plan.split, parts=parts))


def _with_base(cell: Cell, plan: Plan, folder: Folder) -> Config:
    """The config of a run; one that starts from another run has the model and tokens of that."""
    config = cell.config
    before = _base_of(cell, plan)
    if before is None:
        return config
    base = Run.open(folder.run(before))
    model = base.config.model
    if hasattr(model, "dropout"):
        model = replace(model, dropout=getattr(config.model, "dropout", model.dropout))
    train_config = replace(config.train, start_from=str(base.path.resolve()))
    return replace(config, model=model, text=base.config.text, train=train_config)


def _base_of(cell: Cell, plan: Plan) -> Cell | None:
    """The run that has to be trained before this one; None: there is none."""
    return next((one for one in plan.pretraining if one.run == cell.base), None)


def run_numbered(
    plan: Plan, folder: Folder, number: int, *, parts: Parts, reporter: Reporter
) -> None:
    """Train and score a run by its number, from 1, as it stands in the list of runs."""
    runs = len(plan.runs())
    if number > runs:
        raise UserError(f"--only {number}: there are {counted(runs, 'run')}")
    first = plan.runs()[number - 1][0]
    if not _is_ready(first, plan, folder):
        raise UserError(f"--only {number}: {first.system} starts from a run that is not done yet")
    run_here(plan, folder, number - 1, parts=parts, reporter=reporter)


def end_with_parent() -> None:
    """Save and end when the process that started this one is gone: its end of our input closes."""

    def wait() -> None:
        sys.stdin.buffer.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def run_all(
    plan: Plan,
    folder: Folder,
    *,
    jobs: int,
    board: Callable[[], Board],
    words: Sequence[str] = (),
) -> None:
    """Train and score what is missing; what is there already is left as it is.

    words: more of the command line of each process. The first run that fails ends all.
    """
    every = plan.runs()
    missing = [(number, every[number]) for number in missing_runs(plan, folder)]
    if not missing:
        return
    running: list[Running] = []
    signals: list[int] = []

    def stop(number: int, frame: object) -> None:
        signals.append(number)

    old = _heeded(stop)
    try:
        with board() as shown:
            while missing or running:
                ready = [one for one in missing if _is_ready(one[1][0], plan, folder)]
                for one in ready[: jobs - len(running)] if not signals else []:
                    missing.remove(one)
                    running.append(_start(folder, *one, words))
                time.sleep(GLANCE)
                ended = [one for one in running if one.process.poll() is not None]
                for process in ended:
                    running.remove(process)
                    _check(process, folder, signals)
                shown.update({process.number for process in running})
                if signals:
                    break
    finally:
        _end(running)
        for number, handler in old.items():
            signal.signal(number, handler)
    if signals:
        raise Interrupted("stopped and saved; the same command goes on", signals[0])


def _is_ready(cell: Cell, plan: Plan, folder: Folder) -> bool:
    """Whether what a run starts from is there."""
    before = _base_of(cell, plan)
    return before is None or folder.has_scores(before)


def _heeded(stop: Callable[[int, object], None]) -> dict[int, Any]:
    """Call `stop` for Ctrl-C and SIGTERM; what was called before. Only the main thread may."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}


def usual_jobs(config: Config) -> int:
    """How many runs are trained side by side if nobody says: one on a GPU, one a core on a CPU."""
    if pick_device(config.train.device).type != "cpu":
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) // max(1, config.train.threads))


def _start(folder: Folder, number: int, cells: list[Cell], words: Sequence[str]) -> Running:
    """Start the process of a run."""
    log = folder.log(cells[0])
    command = [sys.executable, "-m", "regard", "compare", str(folder.path)]
    command += ["--only", str(number + 1), "--with-parent", *words]
    with log.open("ab") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C comes to us, and we end it
        )
    return Running(number, cells, process, log)


def _check(one: Running, folder: Folder, signals: list[int]) -> None:
    """Say what went wrong with a process that has ended."""
    assert one.process.stdin is not None
    one.process.stdin.close()
    code = one.process.returncode
    if code == 0 or signals:
        return
    cell = one.cells[0]
    lines = _last_lines(one.log)
    reason = lines[-1] if lines else f"it ended with code {code}"
    raise Failed(
        f"{cell.system}, seed {cell.seed}: {reason.removeprefix('error: ')} (see {one.log}); the "
        f"same command goes on with what is missing"
    )


def _last_lines(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 20_000))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()]


def _end(running: list[Running]) -> None:
    """Ask processes to save and end, and wait for them."""
    for one in running:
        if one.process.poll() is None:
            one.process.terminate()
    until = time.monotonic() + GRACE
    for one in running:
        try:
            one.process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            one.process.kill()
            one.process.wait()
        if one.process.stdin is not None:
            one.process.stdin.close()
