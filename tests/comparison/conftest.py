"""Outcomes that nobody had to train, and `regard compare` in a process of its own."""

import math
import runpy
import subprocess
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.comparison.cells import Cell, Plan
from regard.comparison.outcome import Outcome
from regard.comparison.scores import Scores
from regard.scoring.metrics import bleu, chrf, exact_match

WORDS = ("the", "old", "cat", "sees", "a", "small", "red", "house", "near", "my", "garden", ".")
BUDGET = dict.fromkeys(("steps", "epochs", "tokens", "minutes", "parameters"))
MACHINE = {
    "system": "Linux x86_64",
    "processor": "Imaginary CPU 3000",
    "threads": 1,
    "python": "3.11.2",
    "torch": "2.9.0",
    "regard": "0.1.0",
}

FORKED = str(Path(__file__).with_name("forked.py"))
Settings = Mapping[str, Mapping[str, Any]]


def build_outcome(
    qualities: Mapping[str, float] | None = None,
    *,
    seeds: Sequence[int] = (1, 2, 3),
    settings: Mapping[str, Settings] | None = None,
    budget: Mapping[str, Any] | None = None,
    examples: int = 40,
    has_answers: bool = True,
    scored: Callable[[Cell], bool] = lambda cell: True,
    change: Callable[[Scores], Scores] = lambda scores: scores,
    **plan: Any,
) -> Outcome:
    """An outcome whose systems answer right about as often as `qualities` say, from 0 to 1.

    settings: of each system. has_answers: False for language models. scored: which cells are.
    change: a last word on the scores of each cell. The rest are fields of the plan.
    """
    qualities = qualities or {"small": 0.5, "large": 0.9}
    settings = settings or {}
    cells = [
        Cell(name, seed, {**settings.get(name, {})}, f"a{place:03x}{seed:08x}", _key(place, seed))
        for place, name in enumerate(qualities)
        for seed in seeds
    ]
    facts: dict[str, Any] = {
        "name": "made",
        "question": "Which size?",
        "metric": None,
        "split": "test",
        "axes": ["size"],
        "decisions": [],
        "command": "regard compare made.toml --out comparisons/made",
    }
    planned = Plan(**{**facts, **plan}, budget={**BUDGET, **(budget or {})}, cells=cells)
    known = [
        change(build_scores(cell, qualities[cell.system], examples, has_answers))
        for cell in cells
        if scored(cell)
    ]
    return Outcome(planned, known)


def _key(place: int, seed: int) -> str:
    """A hash, as it were, that tells its system and seed."""
    return f"{place:04x}{seed:08x}"


def build_scores(cell: Cell, quality: float, examples: int, has_answers: bool) -> Scores:
    """The scores of a cell, drawn from its name and seed."""
    rng = np.random.default_rng([zlib.crc32(cell.system.encode("utf-8", "replace")), cell.seed])
    place = int(cell.key[:4], 16)
    curve = _curve(rng, quality, seconds=40.0 + 20 * place)
    loss = curve[-1][2]
    values: dict[str, float | None] = {"loss": loss, "token_accuracy": quality}
    texts: dict[str, Any] = {}
    if has_answers:
        texts = _texts(rng, quality, examples)
        values["bleu"] = bleu(texts["answers"], texts["references"]).score
        values["chrf"] = chrf(texts["answers"], texts["references"]).score
        values["exact_match"] = exact_match(texts["answers"], texts["references"])
    else:
        values["bits_per_character"] = loss / math.log(2) / 4
    return Scores(
        system=cell.system,
        seed=cell.seed,
        key=cell.key,
        run=cell.run_name,
        settings=cell.settings,
        values=values,
        signature="nrefs:1|case:mixed|eff:no|tok:13a" if has_answers else None,
        tokenize="13a",
        parameters=400_000 + 150_000 * place,
        steps=600,
        epochs=3.0,
        tokens=1.2e6,
        seconds=curve[-1][1],
        decoding=9000.0 / (1 + place) if has_answers else None,
        curve=curve,
        seen_in_training=0 if has_answers else None,
        device="cpu",
        machine=MACHINE,
        examples=examples,
        **texts,
    )


def _texts(rng: np.random.Generator, quality: float, examples: int) -> dict[str, Any]:
    """Sources of 1 to 12 words, the same for all, and answers with a wrong word here and there."""
    sources = []
    references = []
    answers = []
    for number in range(examples):
        length = 1 + number % len(WORDS)
        words = [WORDS[(number + number // 12 + 5 * place) % len(WORDS)] for place in range(length)]
        sources.append(" ".join(words))
        references.append([" ".join(reversed(words))])
        answer = list(reversed(words))
        if rng.random() > quality:
            answer[int(rng.integers(length))] = "dog"
        answers.append(" ".join(answer))
    return {"sources": sources, "references": references, "answers": answers}


def _curve(
    rng: np.random.Generator, quality: float, seconds: float
) -> list[tuple[int, float, float]]:
    """A dev loss that falls: steps, seconds and loss."""
    floor = 0.4 + 0.8 * (1 - quality)
    return [
        (step, seconds * step / 600, floor + 3 * math.exp(-step / 120) + 0.01 * rng.random())
        for step in range(50, 601, 50)
    ]


@pytest.fixture
def made_outcome() -> Callable[..., Outcome]:
    """`build_outcome`: an outcome that nobody had to train."""
    return build_outcome


class Comparing:
    """`regard compare …` in a process of its own, and what came of it."""

    def __init__(self, processes: Any, folder: Path, place: Path, words: Sequence[str]) -> None:
        self._folder = folder
        given = {"words": ["compare", *words], "folder": str(folder), "place": str(place)}
        self.process = processes.Process(target=runpy.run_path, args=(FORKED, given))
        self.process.start()

    def end(self) -> subprocess.CompletedProcess[str]:
        """Wait for it."""
        self.process.join(180)
        if self.process.exitcode is None:
            self.process.kill()
            raise subprocess.TimeoutExpired("regard compare", 180)
        out, err = [(self._folder / name).read_text("utf-8") for name in ("out", "err")]
        return subprocess.CompletedProcess("regard compare", self.process.exitcode, out, err)

    @property
    def started(self) -> list[str]:
        """The command line of each run that it has started."""
        file = self._folder / "started"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture(scope="session")
def comparing(
    processes: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Comparing]]:
    """comparing(place, "file.toml", …) starts `regard compare` in a folder; none outlives us."""
    started = []

    def start(place: Path, *words: object) -> Comparing:
        folder = tmp_path_factory.mktemp("comparing")
        started.append(Comparing(processes, folder, place, [str(word) for word in words]))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.join()
