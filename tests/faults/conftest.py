"""Tiny runs, what they have learned as sums, and processes that can be killed."""

import hashlib
import io
import json
import os
import runpy
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import regard
from regard import config as settings
from regard.recipes.reporter import Reporter

MOST_MEMORY = (2 if torch.cuda.is_available() else 1) << 20
"""In kilobytes. A program that uses a GPU needs 1 GB for the driver's libraries alone."""
MODEL = {
    "width": 16,
    "ffn": 24,
    "heads": 2,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "dropout": 0.1,
}
DATA = {
    "limit": 60,
    "dev": 12,
    "test": 4,
    "batch_sentences": 8,
    "options": {"length": 4, "symbols": 5},
}
TRAIN = {
    "steps": 12,
    "epochs": 0,
    "warmup": 3,
    "save_every": 3,
    "evaluate_every": 6,
    "log_every": 3,
    "threads": 1,
    "keep": 3,
}
TRAIN |= {"tensorboard": "off", "device": "cpu", "precision": "fp32"}
CLOCK = {"seconds", "tokens_per_second", "examples_per_second"}
CHILD = str(Path(__file__).with_name("child.py"))
ASKED = str(Path(__file__).parents[1] / "asked.py")


def written(out, changes):
    """The settings, as a file beside the run."""
    path = out.with_name(f"{out.name}.toml")
    path.write_text(
        settings.to_toml(
            {"model": MODEL, "data": DATA, "train": TRAIN | changes, "search": {"width": 1}}
        )
    )
    return path


@pytest.fixture(scope="session")
def settings_beside():
    """settings_beside(out, seed=…): the path of a file with the settings of a tiny run."""
    return lambda out, **changes: written(out, changes)


@pytest.fixture(scope="session")
def train():
    """train(out, steps=…): a new run, or on with the one that is there. What was said is in
    run.said.
    """

    def go(out, **changes):
        said = io.StringIO()
        try:
            run = regard.train(
                "copy",
                out=out,
                resume=True,
                reporter=Reporter(said, quiet=True),
                config=written(out, changes),
            )
        except Exception as error:
            error.said = said.getvalue()
            raise
        run.said = said.getvalue()
        return run

    return go


@pytest.fixture(scope="session")
def writers(tmp_path_factory):
    """The paths of a causal and a masked run, which have learned next to nothing."""
    folder = tmp_path_factory.mktemp("writers")
    changes = {"steps": 2, "warmup": 1, "schedule": "constant"}
    return {
        objective.upper(): regard.train(
            [f"{number}+1" for number in range(60)],
            out=folder / objective,
            reporter=Reporter(quiet=True),
            model=MODEL,
            data={"dev": 5, "test": 5, "batch_sentences": 8},
            text={"tokenizer": "characters"},
            train={**TRAIN, **changes, "objective": objective},
        ).path
        for objective in ("causal", "masked")
    }


@pytest.fixture(autouse=True)
def no_curves(monkeypatch):
    """They take longer to draw than such a run to train."""
    monkeypatch.setattr("regard.recipes.fitting.curves", lambda records, path: None)


@pytest.fixture(scope="session")
def log():
    """The records of a run, but for what a clock says."""
    return lambda path: [
        {k: v for k, v in json.loads(line).items() if k not in CLOCK}
        for line in (path / "log.jsonl").read_text().splitlines()
    ]


@pytest.fixture(scope="session")
def digests():
    """Sums of everything that says what was learned."""

    def find(path):
        files = [
            p
            for p in path.glob("checkpoints/*/*")
            if p.name in ("model.safetensors", "optimizer.safetensors")
        ]
        return {
            str(p.relative_to(path)): hashlib.sha256(p.read_bytes()).hexdigest()
            for p in [*files, path / "best"]
        }

    return find


class Child:
    """A process that trains, and what it tells."""

    def __init__(
        self, processes, out, *, words=(), hold=0, limits=None, gate="", named=True, **changes
    ):
        self.heard, tell = processes.Pipe(duplex=False)
        self.errors = out.with_name(f"{out.name}.err")
        place = ["--out", str(out), "--resume"] if named else []
        given = {
            "words": ["train", "copy", "--config", str(written(out, changes)), *place, *words],
            "gate": str(gate),
            "events": False,
        }
        given |= {"tell": tell, "errors": str(self.errors), "hold": hold, "limits": limits or {}}
        self.process = processes.Process(target=runpy.run_path, args=(CHILD, given))
        self.process.start()
        tell.close()
        self.step = 0

    def hear(self, seconds=180.0):
        """The next word, and None if there is none in this time or at all."""
        try:
            word = self.heard.recv() if self.heard.poll(seconds) else None
        except EOFError:
            return None
        self.step = word if isinstance(word, int) else self.step
        return word

    def end(self):
        """Waits for it, and gives the last step it told of."""
        self.process.join(180)
        while self.hear(0) is not None:
            pass
        return self.process.exitcode


@pytest.fixture
def child(processes):
    """child(out, **settings) trains in a process of its own; none outlives its test."""
    made = []

    def start(out, **more):
        made.append(Child(processes, out, **more))
        return made[-1]

    yield start
    for one in made:
        one.process.kill()
        one.process.join()


@dataclass(frozen=True)
class Answer:
    """What a command printed and ended with."""

    code: int
    out: str
    err: str

    @property
    def is_one_line(self):
        """Whether it was refused in one line, as a person is told what to do."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        is_told = bool(lines) and lines[-1].startswith("error: ") and len(lines[-1]) < 1000
        others = [line for line in lines[:-1] if not line.startswith("warning: ")]
        return self.code in (1, 2) and is_told and not others


@pytest.fixture(scope="session")
def ask(processes, tmp_path_factory):
    """ask([words], [words], …) runs commands one after the other in one warm process.

    Whoever waits for a pipe waits for ever; a slow machine does not.
    """
    started = []

    def go(*commands, bare=False, seconds=240):
        folder = tmp_path_factory.mktemp("asked")
        words = [[str(word) for word in command] for command in commands]
        given = {"commands": words, "folder": str(folder), "bare": bare, "draws": False}
        given |= {"place": str(Path.cwd()), "environment": dict(os.environ)}
        process = processes.Process(target=runpy.run_path, args=(ASKED, given))
        started.append(process)
        process.start()
        process.join(seconds)
        assert process.exitcode is not None, f"it hangs: {words}"

        told = json.loads((folder / "told.json").read_text())
        answers = []
        for number, code in enumerate(told["codes"]):
            out = (folder / f"{number}.out").read_text(errors="replace")
            err = (folder / f"{number}.err").read_text(errors="replace")
            answers.append(Answer(code, out, err))
            assert "Traceback" not in err, err[-2000:]
        assert told["kilobytes"] < MOST_MEMORY, f"{told['kilobytes']} kB: {words}"
        assert told["seconds"] < 5 * len(words), f"{told['seconds']} s of computing: {words}"
        return answers

    yield go
    for process in started:
        process.kill()
        process.join()


@pytest.fixture(scope="session")
def sound(tmp_path_factory, train):
    """A trained run, which nobody may change, and what beside it trains it: its settings."""
    return train(tmp_path_factory.mktemp("sound") / "run").path


@pytest.fixture
def copied(sound, tmp_path):
    """A copy of the run, to be damaged. Beside it lies a file that nobody may touch."""
    path = shutil.copytree(sound, tmp_path / "run")
    shutil.copy(sound.with_name("run.toml"), tmp_path / "run.toml")
    (tmp_path / "decoy").write_text("untouched")
    return path


@pytest.fixture(scope="session")
def sign():
    """sign(folder, fact=…): write a manifest whose sums are right."""

    def go(folder, **facts):
        path = folder / "manifest.json"
        manifest = json.loads(path.read_text()) | facts
        for name in manifest["files"]:
            content = (folder / name).read_bytes()
            manifest["files"][name] = [hashlib.sha256(content).hexdigest()]
        manifest.pop("sum")
        content = json.dumps(manifest, sort_keys=True).encode()
        manifest["sum"] = hashlib.sha256(content).hexdigest()
        path.write_text(json.dumps(manifest))

    return go
