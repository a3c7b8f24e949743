"""Train and score every run of a comparison, some of them side by side, each in its own process."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from regard.comparison.cells import Cell, Plan
from regard.comparison.folder import Folder
from regard.comparison.progress import Board
from regard.comparison.scores import score, trained_only
from regard.config import Config, to_settings
from regard.errors import Failed, Interrupted, UserError, counted
from regard.files import disk_faults_told
from regard.files.lock import lock
from regard.files.log import open_own
from regard.models.parts import PREFIX, SETTINGS, Part, Parts, listed
from regard.nn.devices import pick_device, state_kept
from regard.recipes.reporter import Reporter
from regard.recipes.training import train
from regard.runs.claim import Claim
from regard.runs.run import Run

GLANCE = 0.2  # seconds between two looks at the processes
GRACE = 60.0  # seconds that a process has to save and end
LARGEST_LOG = 10_000_000  # bytes that are searched for an error
HOPELESS = 3
"""Systems that fail before any succeeds, after which the others are not tried."""


def missing_runs(plan: Plan, folder: Folder) -> list[int]:
    """The numbers of the runs, from 0, that are not trained or not scored yet."""
    return [
        number
        for number, cells in enumerate(plan.runs())
        if any(folder.scores(cell) is None for cell in cells)
    ]


# in this process


def run_here(plan: Plan, folder: Folder, number: int, *, parts: Parts, reporter: Reporter) -> None:
    """Train and score one of the runs in this process, from wherever it stands."""
    cells = plan.runs()[number]
    config = _with_base(cells[0], plan, folder)
    path = folder.run(cells[0])
    _wait_for_others(path)
    with state_kept(pick_device(config.train.device)):
        if config.train.threads:
            torch.set_num_threads(config.train.threads)
        used = _used(parts, config)
        metrics = [part for part in listed(parts) if part.kind == "metric" and part not in used]
        run = train(config, out=path, resume=True, parts=used, reporter=reporter)
        for cell in cells:
            if folder.scores(cell) is not None:
                continue
            if cell in plan.pretraining:
                folder.keep_scores(cell, trained_only(run, cell))
            else:
                before = plan.base_of(cell)
                base = Run.open(folder.run(before)) if before is not None else None
                scores = score(run, cell, plan.split, base=base, parts=[*used, *metrics])
                folder.keep_scores(cell, scores)


def run_numbered(
    plan: Plan, folder: Folder, number: int, *, parts: Parts, reporter: Reporter
) -> None:
    """Train and score a run by its number, from 1, as in the list of runs."""
    runs = plan.runs()
    if number > len(runs):
        raise UserError(f"--only {number}: there are {counted(len(runs), 'run')}")
    cells = runs[number - 1]
    if all(folder.scores(cell) is not None for cell in cells):
        reporter.say(f"run {number} is done: {cells[0].label}")
        return
    base = plan.base_of(cells[0])
    if base is not None and not folder.has_scores(base):
        before = next(place for place, run in enumerate(runs, start=1) if base in run)
        raise UserError(
            f"--only {number}: {cells[0].system} starts from {base.label}, which "
            f"is not trained yet: first --only {before}"
        )
    run_here(plan, folder, number - 1, parts=parts, reporter=reporter)


def _with_base(cell: Cell, plan: Plan, folder: Folder) -> Config:
    """The config of a run; one that starts from a pretraining gets the folder of that."""
    base = plan.base_of(cell)
    if base is None:
        return cell.config
    start = str(folder.run(base).resolve())
    return replace(cell.config, train=replace(cell.config.train, start_from=start))


def _used(parts: Parts, config: Config) -> list[Part]:
    """The parts that a config names: the others belong to other systems."""
    settings = to_settings(config)
    return [
        part
        for part in listed(parts)
        if settings[SETTINGS[part.kind][0]].get(SETTINGS[part.kind][1]) == PREFIX + part.name
    ]


def _wait_for_others(run: Path) -> None:
    """Wait for a process that holds this run: that of a comparison which was killed just ends.

    What takes longer is refused by the training itself, which says who it is.
    """
    until = time.monotonic() + GRACE
    while _is_held(run) and time.monotonic() < until:
        time.sleep(GLANCE)


def _is_held(run: Path) -> bool:
    """Whether another process trains or prepares a run."""
    for file in (run / "lock", Claim.file_of(run)):
        held = lock(file) if file.exists() else None
        if held is not None:
            held.release()
        elif file.exists():
            return True
    return False


def end_with_parent() -> None:
    """Save and end when the process that started this one is gone: its end of our input closes."""

    def wait() -> None:
        # Not sys.stdin: a thread that holds its lock when Python ends is a fatal error.
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


# in processes


@dataclass
class Running:
    """A run that is being trained."""

    number: int
    cells: list[Cell]
    process: "subprocess.Popen[bytes]"
    log: Path
    log_size: int
    """Bytes of the log before this process: older ones wrote them."""


@dataclass
class _Queue:
    """The runs that are left, those that are being trained, and those that failed."""

    plan: Plan
    folder: Folder
    words: Sequence[str]
    missing: dict[int, list[Cell]]
    running: list[Running] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    succeeded: int = 0
    """Runs that have scores, from earlier starts too."""

    @property
    def is_hopeless(self) -> bool:
        systems = {self.plan.runs()[number][0].system for number in self.failed}
        return len(systems) >= HOPELESS and not self.succeeded

    @property
    def is_over(self) -> bool:
        return not self.running and (not self.missing or self.is_hopeless)

    def start(self, jobs: int) -> None:
        """Start as many processes as there may be."""
        for number, cells in list(self.missing.items()):
            if len(self.running) >= jobs or self.is_hopeless:
                return
            base = self.plan.base_of(cells[0])
            if base is None or self.folder.has_scores(base):
                del self.missing[number]
                self.running.append(_started(self.folder, number, cells, self.words))

    def look(self) -> None:
        """Note which processes have ended, and how."""
        for one in [one for one in self.running if one.process.poll() is not None]:
            self.running.remove(one)
            _close(one)
            if all(self.folder.scores(cell) is not None for cell in one.cells):
                self.succeeded += 1
            else:
                self.failed[one.number] = _reason(one)
        if not self.running:
            self._give_up_on_dependents()

    def _give_up_on_dependents(self) -> None:
        """What starts from a run that failed cannot be trained."""
        bases = {cell.run for number in self.failed for cell in self.plan.runs()[number]}
        for number, cells in list(self.missing.items()):
            if cells[0].base in bases:
                del self.missing[number]
                self.failed[number] = f"{cells[0].label}: what it starts from failed"


def run_all(
    plan: Plan,
    folder: Folder,
    *,
    jobs: int,
    board: Callable[[], Board],
    words: Sequence[str] = (),
) -> list[str]:
    """Train and score what is missing; what is there already is left as it is.

    words: more of the command line of each process. Returns what failed, a line for each run: the
    others are trained all the same.
    """
    every = plan.runs()
    missing = {number: every[number] for number in missing_runs(plan, folder)}
    if not missing:
        return []
    for cell in chain.from_iterable(missing.values()):
        folder.drop_damaged_scores(cell)
    queue = _Queue(plan, folder, words, missing, succeeded=len(every) - len(missing))
    signals: list[int] = []
    old = _heeded(signals)
    try:
        with board() as shown:
            while not queue.is_over and not signals:
                queue.start(jobs)
                time.sleep(GLANCE)
                queue.look()
                shown.update({one.number for one in queue.running}, queue.failed)
    finally:
        _end(queue.running, signals)
        for number, handler in old.items():
            signal.signal(number, handler)
    if signals:
        raise Interrupted("stopped and saved; run the same command to continue", signals[0])
    reasons = list(queue.failed.values())
    if queue.missing:
        reasons.append(f"{counted(len(queue.missing), 'run')} not tried, since none succeeded")
    return reasons


def _heeded(signals: list[int]) -> dict[int, Any]:
    """Note Ctrl-C and SIGTERM; returns what was called before. Only the main thread may."""
    if threading.current_thread() is not threading.main_thread():
        return {}

    def note(number: int, frame: object) -> None:
        signals.append(number)

    return {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}


def usual_jobs(config: Config) -> int:
    """How many runs are trained side by side if nobody says: one on a GPU, one a core on a CPU."""
    if pick_device(config.train.device).type != "cpu":
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) // max(1, config.train.threads))


def _started(folder: Folder, number: int, cells: list[Cell], words: Sequence[str]) -> Running:
    """Start the process of a run."""
    log = folder.log(cells[0])
    command = [sys.executable, "-m", "regard", "compare", str(folder.path)]
    command += ["--only", str(number + 1), "--with-parent", *words]
    with disk_faults_told(log), open_own(log) as out:
        size = out.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C comes to us, and we end it
        )
    return Running(number, cells, process, log, size)


def _close(one: Running) -> None:
    if one.process.stdin is not None:
        one.process.stdin.close()


def _reason(one: Running) -> str:
    """Why a process has ended without scores, in one line."""
    lines: list[str] = []
    with suppress(OSError), one.log.open("rb") as file:
        file.seek(one.log_size)
        lines = file.read(LARGEST_LOG).decode("utf-8", "replace").splitlines()
    told = [line for line in lines if line.startswith("error: ")]
    if told:
        reason = told[-1].removeprefix("error: ")
    elif any(line.startswith("Traceback ") for line in lines):  # of a part of the user's own
        reason = next(line for line in reversed(lines) if line.strip())
    else:
        reason = f"it ended with {_end_of(one)}"
    return f"{one.cells[0].label}: {reason} (see {one.log})"


def _end_of(one: Running) -> str:
    """How a process has ended: its code, or the signal that ended it."""
    code = one.process.returncode
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"exit code {code}"


def _end(running: list[Running], signals: list[int]) -> None:
    """Ask processes to save and end, and wait for them; a second Ctrl-C ends them at once."""
    for one in running:
        if one.process.poll() is None:
            one.process.terminate()
    until = time.monotonic() + GRACE
    asked = len(signals)
    while any(one.process.poll() is None for one in running):
        if time.monotonic() > until or len(signals) > max(1, asked):
            for one in running:
                one.process.kill()
        time.sleep(0.05)
    for one in running:
        _close(one)


def failure(reasons: Sequence[str]) -> Failed:
    """The error that runs failed; the report has the others."""
    more = f" (and {len(reasons) - 1:,} more)" if len(reasons) > 1 else ""
    return Failed(f"{reasons[0]}{more}; run the same command to try again")
