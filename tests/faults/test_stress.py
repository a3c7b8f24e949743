"""Two trainings at once, killed at random: no work is lost, and no line misleads.

Each round has a seed, which it prints. Two processes start on one folder, on neighbouring names, or
both without a name, with --resume or --overwrite or neither; some are killed. Each tells what it
claims, locks, creates and saves. What it tells, what it prints and what is on disk must agree.
"""

import io
import itertools
import math
import multiprocessing.connection
import os
import random
import re
import runpy
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import regard
from regard.recipes.reporter import Reporter
from regard.runs.storage import read_directory

CHILD = str(Path(__file__).with_name("child.py"))
LAST = 12
EVERY = 3
FAST = 2
ROUNDS = [*range(FAST), *(pytest.param(n, marks=pytest.mark.slow) for n in range(FAST, 50))]
NEIGHBOURS = [
    ("a", "a-2"),
    ("a", "a.b"),
    ("a", "ab"),
    ("a", "a.tmp"),
    ("a", "a.old"),
    ("a", "a.lock"),
    ("a", ".a"),
    ("a.b", "a.b.tmp"),
    ("a", "a.1234.tmp"),
]
FLAGS = [(), (), ("--resume",), ("--resume",), ("--overwrite",)]
SIGNALS = [None, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT]


@dataclass(frozen=True)
class Event:
    """What a process told: it claimed, created, locked or saved the run in a folder."""

    kind: str
    folder: Path
    what: str
    when: float


@dataclass
class Plan:
    """How one process is started and ended."""

    out: Path | None
    seed: int
    flags: tuple[str, ...]
    after: int  # words of the other process before this one starts
    signal: int | None
    at: int  # words of its own before the signal
    delay: float  # seconds, after that word


@dataclass
class Training:
    """A process that trains by a plan, and what was seen of it."""

    plan: Plan
    pid: int
    process: object
    heard: object
    errors: Path
    began: float
    words: int = 0
    step: int = 0
    signalled: float = 0.0
    ended: float = 0.0
    events: list[Event] = field(default_factory=list)

    @property
    def said(self):
        return self.errors.read_text()

    def intervals(self, start, end, folder):
        """When it certainly had something: from just after it got it to just before it let go."""
        found = []
        for event in self.events:
            if event.folder != folder:
                continue
            if event.kind == start:
                found.append([event.when, self.signalled or self.ended])
            elif event.kind == end and found:
                found[-1][1] = event.when
        return found

    def held(self, folder):
        return self.intervals("locked", "unlocked", folder)

    def claimed(self, folder):
        return self.intervals("claimed", "given back", folder)


class Stage:
    """A folder in which processes train, act after act."""

    def __init__(self, processes, folder, settings):
        self.processes = processes
        self.folder = folder
        self.settings = settings  # files, by the seed
        self.numbers = itertools.count()
        self.all = []

    def start(self, plan):
        heard, tell = self.processes.Pipe(duplex=False)
        number = next(self.numbers)
        errors = self.folder.with_name(f"{self.folder.name}-{number}.err")
        place = ["--out", str(plan.out)] if plan.out else []
        words = ["train", "copy", "--config", str(self.settings[plan.seed]), *place, *plan.flags]
        given = {"words": words, "gate": "", "events": True, "tell": tell}
        given |= {"errors": str(errors), "hold": 0, "limits": {}}
        errors.touch()
        process = self.processes.Process(target=runpy.run_path, args=(CHILD, given))
        began = time.monotonic()
        process.start()
        tell.close()
        training = Training(plan, process.pid, process, heard, errors, began)
        self.all.append(training)
        return training

    def act(self, first_plan, second_plan):
        """Play two plans to the end of both processes."""
        first = self.start(first_plan)
        second = None
        while True:
            if second is None and (first.words >= second_plan.after or first.ended):
                second = self.start(second_plan)
            alive = [one for one in (first, second) if one is not None and not one.ended]
            if not alive and second is not None:
                return
            ready = multiprocessing.connection.wait([one.heard for one in alive], timeout=180)
            assert ready, "a process hangs: " + " | ".join(one.said for one in alive)
            for one in alive:
                if one.heard in ready:
                    self.hear(one)

    def hear(self, one):
        """Note the next word of a process, and signal it if it is time."""
        try:
            word = one.heard.recv()
        except (EOFError, OSError):  # it has ended, maybe amid a word
            one.process.join(180)
            one.ended = time.monotonic()
            return
        one.words += 1
        if isinstance(word, int):
            one.step = word
        else:
            kind, path, what, when = word
            one.events.append(Event(kind, Path(path), what, when))
        if one.plan.signal and one.words == one.plan.at:
            time.sleep(one.plan.delay)
            one.signalled = time.monotonic()
            with suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(one.pid, one.plan.signal)

    def close(self):
        for one in self.all:
            one.process.kill()
            one.process.join()
            one.heard.close()

    @property
    def events(self):
        """What all processes told, in the order in which it happened."""
        events = [event for one in self.all for event in one.events]
        return sorted(events, key=lambda event: event.when)

    @property
    def folders(self):
        """Every run that was ever begun."""
        named = {one.plan.out for one in self.all if one.plan.out}
        return sorted(named | {event.folder for event in self.events})


@pytest.fixture(scope="module")
def settings(settings_beside, tmp_path_factory):
    """Files of settings, by the seed of their run."""
    folder = tmp_path_factory.mktemp("settings")
    return {n: settings_beside(folder / f"{n}", seed=n, keep=50) for n in (1, 2)}


@pytest.fixture
def stage(processes, settings, tmp_path):
    made = Stage(processes, tmp_path / "runs", settings)
    yield made
    made.close()


def plan(chance, out, seed):
    """A process of which anything may be asked, and which may be ended anywhere."""
    return Plan(
        out=out,
        seed=seed,
        flags=chance.choice(FLAGS),
        after=chance.choice([0, 0, chance.randint(1, 20)]),
        signal=chance.choice(SIGNALS),
        at=chance.randint(1, 22),
        delay=chance.choice([0, chance.uniform(0, 0.03)]),
    )


# What must hold after every round.


def overlap(one, other):
    return max(one[0], other[0]) < min(one[1], other[1])


def check_alone(stage):
    """A run is trained, and a name is prepared, by one process at a time."""
    for folder in stage.folders:
        for one, other in itertools.combinations(stage.all, 2):
            for held in (Training.held, Training.claimed):
                for mine in held(one, folder):
                    assert not any(overlap(mine, its) for its in held(other, folder)), folder


def check_not_replaced(stage):
    """A run is replaced only with --overwrite, and never while another process trains it."""
    for one in stage.all:
        for event in one.events:
            if event.kind != "created":
                continue
            # Until it is replaced, the creator holds the old run. Who locks the folder between
            # these two events has locked the new one, which was there just before it was told.
            creating = [e for e in one.events if e.kind == "creating" and e.when < event.when][-1]
            others = [other for other in stage.all if other is not one]
            for other in others:
                for start, end in other.held(event.folder):
                    in_training = start < creating.when < end
                    assert not in_training, f"{event.folder}: replaced in training"
            before = [e for e in stage.events if e.kind == "created" and e.when < event.when]
            if event.folder in [e.folder for e in before]:
                assert "--overwrite" in one.plan.flags, f"{event.folder}: replaced"


def saved_since_created(stage, folder, until=math.inf):
    """The checkpoints of the run that is there at a time: those that were told to be saved.

    A process that was killed while it created a run may have replaced what was there.
    """
    saved = []
    for event in stage.events:
        if event.when > until:
            break
        if event.folder == folder and event.kind in ("creating", "created"):
            saved = []
        if event.folder == folder and event.kind == "saved":
            saved.append(event.what)
    return saved


def check_saved(stage):
    """Every checkpoint that was told to be saved is there, and sound.

    Those of an interruption may go once there is a newer one.
    """
    for folder in stage.folders:
        saved = saved_since_created(stage, folder)
        for name in saved:
            if int(name.removeprefix("step-")) % EVERY == 0 or name == saved[-1]:
                assert read_directory(folder / "checkpoints" / name), (folder, name)


HOST = re.escape(socket.gethostname())
BUSY = re.compile(
    rf"(?P<folder>.+): another process is (?P<what>preparing|training) this run"
    rf"(?: \(process (?P<pid>\d+) on {HOST}\))?"
)
TAKEN = re.compile(r"(?P<folder>.+) already exists: resume it with --resume, replace it .*")
CHANGED = re.compile(r"(?P<folder>.+): another process has just changed this run; try again")


def check_lines(stage, one):
    """What a process says is true, and fits how it ended."""
    said = one.said
    told = [line.removeprefix("error: ") for line in said.split("\n") if "error: " in line]
    code = one.process.exitcode
    about = f"code {code}, {one.plan}: {said}"
    assert "Traceback" not in said, about
    assert "warning" not in said, about
    assert (code == 2) == (len(told) == 1), about
    assert code == 2 or not told, about
    if code == 0:
        finished = [e for e in one.events if e.kind == "unlocked"][-1]
        # What it saw on disk, not what was told: a process that is killed right after it saved
        # leaves a checkpoint that nobody heard of, and the run may have been replaced since.
        assert f"step-{LAST:08d}" in finished.what.split(), about
    elif code < 0:
        assert -code == one.plan.signal != signal.SIGINT, about
    elif code == 2:
        check_refusal(stage, one, told[0], about)
    else:
        assert code - 128 == one.plan.signal != signal.SIGKILL, about
        check_stopped(one, said, about)


def check_stopped(one, said, about):
    """Stopped in training, it has saved the step it was at; stopped before, it says nothing."""
    way = re.search(r"stopped and saved; resume with: regard train copy --out (.+) --resume", said)
    if way is None:
        assert one.plan.signal == signal.SIGINT, about
        return
    last = [event for event in one.events if event.kind == "saved"][-1]
    assert last.what == f"step-{one.step:08d}", about
    assert last.folder == Path(way[1]).absolute() or last.folder.name == Path(way[1]).name, about


def check_refusal(stage, one, line, about):
    """A process that was refused names the one that has the run, or the run that is there."""
    asked = set(one.plan.flags)
    # A run is there a little before its creator tells "created".
    made = [e for e in stage.events if e.kind == "creating" and e.when < one.ended]
    if found := BUSY.fullmatch(line):
        folder = Path(found["folder"]).name
        kinds = {"preparing": ["claimed"], "training": ["claimed", "locked"]}[found["what"]]
        others = [o for o in stage.all if o is not one and o.began < one.ended]
        others = [o for o in others if o.ended > one.began]
        able = [
            other
            for other in others
            if any(e.kind in kinds and e.folder.name == folder for e in other.events)
            or other.process.exitcode < 0
        ]
        assert able, f"nobody is {found['what']} it: {about}"
        if found["pid"]:
            assert int(found["pid"]) in [other.pid for other in able], about
    elif found := TAKEN.fullmatch(line):
        assert not asked & {"--resume", "--overwrite"}, about
        assert Path(found["folder"]).name in [e.folder.name for e in made], about
    elif found := CHANGED.fullmatch(line):
        assert any("--overwrite" in o.plan.flags for o in stage.all if o is not one), about
    else:
        pytest.fail(about)


def check_resumed(stage, one):
    """It goes on from the newest checkpoint that there was."""
    steps = re.findall(r"resuming from step ([\d,]+) of", one.said)
    if not steps:
        return
    folder = [event for event in one.events if event.kind == "locked"][-1].folder
    before = saved_since_created(stage, folder, one.began)
    newest = int(before[-1].removeprefix("step-")) if before else 0
    replaced = [e for e in stage.events if e.kind == "created" and e.when > one.began]
    if folder not in [event.folder for event in replaced]:
        assert int(steps[0]) >= newest, one.said


def trained(folder, config):
    """The run in a folder, trained to its end; it says nothing but warnings."""
    said = io.StringIO()
    quiet = Reporter(said, quiet=True)
    run = regard.train("copy", out=folder, resume=True, config=config, reporter=quiet)
    assert said.getvalue() == ""
    return run


def check_end(stage, whole, digests):
    """Every run that was begun goes on to the same weights as one that nobody disturbed.

    Nothing is left behind.
    """
    for folder in stage.folders:
        run = trained(folder, stage.settings[1])
        expected = whole[run.config.train.seed]
        assert expected.items() <= digests(folder).items(), folder
        assert run.best == f"step-{LAST:08d}" or run.best in run.checkpoints()
    left = [path.name for path in stage.folder.glob(".*") if path not in stage.folders]
    left += [str(path) for path in stage.folder.glob("*/**/.*.tmp")]
    assert left == [], left


def check(stage, whole, digests):
    check_alone(stage)
    check_not_replaced(stage)
    check_saved(stage)
    for one in stage.all:
        check_lines(stage, one)
        check_resumed(stage, one)
    check_end(stage, whole, digests)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, settings, digests):
    """What an undisturbed run has learned at each checkpoint, by its seed."""
    folder = tmp_path_factory.mktemp("whole")
    found = {}
    for seed, config in settings.items():
        found[seed] = digests(trained(folder / f"{seed}", config).path)
    assert found[1] != found[2]
    return found


@pytest.fixture
def play(stage, whole, digests):
    """play(situation, number, one, other): a round on two folders; None: on the default name.

    Two acts of two processes, and then everything is looked at.
    """

    def go(situation, number, one, other):
        seed = f"{situation} {number}"
        print(f"seed: {seed!r}")
        chance = random.Random(seed)
        for _ in range(2):
            plans = [plan(chance, one, 1), plan(chance, other, 2)]
            chance.shuffle(plans)
            stage.act(*plans)
        for training in stage.all:
            print(training.process.exitcode, training.plan, training.said[-200:])
        check(stage, whole, digests)

    return go


@pytest.mark.parametrize("number", ROUNDS)
def test_one_folder(number, stage, play):
    play("one folder", number, stage.folder / "a", stage.folder / "a")


@pytest.mark.parametrize("number", ROUNDS)
def test_neighbouring_names(number, stage, play):
    one, other = NEIGHBOURS[number % len(NEIGHBOURS)]
    play("neighbours", number, stage.folder / one, stage.folder / other)


@pytest.mark.parametrize("number", ROUNDS)
def test_the_default_name(number, stage, play, monkeypatch):
    monkeypatch.chdir(stage.folder.parent)
    play("default name", number, None, None)
