"""What has to be trained and scored for an experiment: a run for each system and seed."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Self

import regard
from regard import config
from regard.comparison.experiment import Experiment, System
from regard.comparison.matching import Sizes, matched
from regard.config import Config, Settings
from regard.data.splits import Splits
from regard.errors import UserError
from regard.recipes.planning import choose
from regard.recipes.preparing import learn_tokenizers, open_splits
from regard.recipes.reporter import Reporter

SAMPLE = 20_000
"""Examples that are encoded to tell how many tokens there are."""
KEY = 12
"""Letters of a hash that name a run."""


@dataclass(frozen=True)
class Cell:
    """A system with one seed."""

    system: str
    seed: int
    settings: Settings
    """All that is set, the seed and the search included."""
    run: str
    """Hash of what decides how the run is trained: two cells with the same share it."""
    key: str
    """The same, and of how it is decoded and scored."""
    base: str = ""
    """The hash of the run whose weights this one starts from; empty: from none of these."""

    @cached_property
    def config(self) -> Config:
        return config.build(self.settings)

    @property
    def run_name(self) -> str:
        """The folder of the run."""
        letters = [c if c.isalnum() else "-" for c in self.system.lower()]
        slug = "-".join(part for part in "".join(letters).split("-") if part)
        return f"{slug[:60] or 'system'}-seed-{self.seed}-{self.run}"


@dataclass(frozen=True)
class Plan:
    """Every cell of an experiment, and what was decided to get there."""

    name: str
    question: str
    metric: str | None
    split: str
    budget: Mapping[str, Any]
    axes: list[str]
    decisions: list[str]
    """For people: widths that were found, and what the data decided."""
    cells: list[Cell]
    pretraining: list[Cell] = field(default_factory=list)
    """What has to be trained before, since other runs start from it."""
    command: str = ""
    """The command line that does all of this again."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """A plan that was written as a dict."""
        known = {name: values[name] for name in cls.__dataclass_fields__}
        cells = {name: [Cell(**cell) for cell in values[name]] for name in ("pretraining", "cells")}
        return cls(**{**known, **cells})

    def runs(self) -> list[list[Cell]]:
        """The cells of each run: more than one where only the search differs.

        What other runs start from comes first.
        """
        by_run: dict[str, list[Cell]] = {}
        for cell in (*self.pretraining, *self.cells):
            by_run.setdefault(cell.run, []).append(cell)
        return list(by_run.values())

    def systems(self) -> list[str]:
        """The names of the systems, in their order."""
        return list(dict.fromkeys(cell.system for cell in self.cells))


def identity(experiment: Experiment) -> str:
    """A hash of all that decides what an experiment trains: its settings, its data, our version."""
    systems = [(system.name, system.settings) for system in experiment.systems()]
    budget = asdict(experiment.budget)
    paths = sorted({str(path) for _, settings in systems for path in _files(settings)})
    prints = {path: fingerprint(path) for path in paths}
    how = [experiment.seeds, experiment.metric, experiment.split, experiment.preset]
    how.append(experiment.pretrain)
    return _hash([regard.__version__, systems, budget, prints, how])


def plan(experiment: Experiment, reporter: Reporter) -> Plan:
    """Decide what is left open, and list the cells: all seeds of a system, system by system."""
    systems = experiment.systems()
    decisions: list[str] = []
    if not experiment.has_preset and not _has_model(systems):
        systems, decisions = _planned(systems, reporter)

    measures = _Measures(reporter)
    if experiment.budget.parameters is not None:
        systems, told = _with_equal_sizes(systems, experiment.budget.parameters, measures)
        decisions += told
    if experiment.budget.tokens is not None:
        systems = [_reading(system, experiment.budget.tokens, measures) for system in systems]

    maker = _Cells(experiment)
    cells = [maker.cell(system, seed) for system in systems for seed in experiment.seeds]
    return Plan(
        name=experiment.name,
        question=experiment.question,
        metric=experiment.metric,
        split=experiment.split,
        budget=asdict(experiment.budget),
        axes=list(experiment.axes),
        decisions=decisions,
        cells=cells,
        pretraining=maker.pretraining,
    )


class _Cells:
    """Makes the cells of an experiment, and those of the pretraining that they need."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._prints: dict[str, str] = {}
        self._pretraining: dict[tuple[str, int], Cell] = {}

    @property
    def pretraining(self) -> list[Cell]:
        """What has to be trained before."""
        return list(self._pretraining.values())

    def cell(self, system: System, seed: int) -> Cell:
        """A system with one seed."""
        name = self._experiment.base(system)
        if name is None:
            return self._cell(system, seed)
        if (name, seed) not in self._pretraining:
            self._pretraining[name, seed] = self._cell(self._experiment.pretraining(name), seed)
        base = self._pretraining[name, seed]
        settings = config.merge(system.settings, {"train": {"start_from": ""}})
        return self._cell(replace(system, settings=settings), seed, base)

    def _cell(self, system: System, seed: int, base: Cell | None = None) -> Cell:
        settings = config.merge(system.settings, {"train": {"seed": seed}})
        built = config.to_settings(config.build(settings))
        trained = {name: values for name, values in built.items() if name != "search"}
        if built["train"]["metric"] in ("bleu", "exact_match"):  # dev is decoded in training
            trained["search"] = built["search"]
        before = base.run if base is not None else ""
        content = [self._print(path) for path in _files(settings)]
        run = _hash([regard.__version__, trained, content, before])[:KEY]
        key = _hash([run, built["search"], self._experiment.split])[:KEY]
        return Cell(system.name, seed, settings, run, key, before)

    def _print(self, path: str) -> str:
        if path not in self._prints:
            self._prints[path] = fingerprint(path)
        return self._prints[path]


# what the experiment leaves open


def _has_model(systems: Iterable[System]) -> bool:
    """Whether the user has said anything about the size of the models."""
    sizes = {"width", "ffn", "embedding"}
    return any(sizes & set(system.settings.get("model", {})) for system in systems)


def _planned(systems: list[System], reporter: Reporter) -> tuple[list[System], list[str]]:
    """The systems with what the data decides for the first of them: it decides for all."""
    first = systems[0].settings
    splits = open_splits(config.build({"data": first["data"]}).data)
    shared, choices = choose(splits, _in_common(systems))
    for choice in choices:
        reporter.say(str(choice))
    told = [str(choice) for choice in choices]
    return [
        replace(system, settings=config.merge(shared, system.settings)) for system in systems
    ], told


def _in_common(systems: list[System]) -> Settings:
    """The settings that all systems have."""
    common: Settings = {}
    for section, values in systems[0].settings.items():
        kept = {
            name: value
            for name, value in values.items()
            if all(one.settings.get(section, {}).get(name) == value for one in systems)
        }
        if kept:
            common[section] = kept
    return common


class _Measures:
    """What the data tells of vocabularies and tokens. Each data set is read once."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._known: dict[str, tuple[Sizes, float]] = {}

    def __call__(self, settings: Settings) -> tuple[Sizes, float]:
        """The sizes of the vocabularies, and the tokens of an epoch."""
        relevant = {name: settings.get(name, {}) for name in ("data", "text")}
        objective = config.build(settings).train.objective
        key = _hash([relevant, objective])
        if key not in self._known:
            self._known[key] = _measured(config.build(settings))
        return self._known[key]


def _measured(built: Config) -> tuple[Sizes, float]:
    splits: Splits = open_splits(built.data)
    source, target = learn_tokenizers(built, splits)
    objective = built.train.objective
    count = splits.train.count()
    sample = list(islice(splits.train.sample(SAMPLE, built.data.seed, total=count), SAMPLE))
    lengths = [len(ids) + 1 for ids in source.encode_batch([pair.source for pair in sample])]
    if objective == "translate":
        targets = target.encode_batch([pair.targets[0] for pair in sample])
        lengths += [len(ids) + 1 for ids in targets]
    tokens = count * sum(lengths) / max(1, len(sample))
    return Sizes(source.size, target.size, objective), tokens


def _with_equal_sizes(
    systems: list[System], wanted: float | str, measures: _Measures
) -> tuple[list[System], list[str]]:
    """The systems with widths of which each has as many parameters."""
    if isinstance(wanted, str):
        model = next(system for system in systems if system.name == wanted)
        sizes, _ = measures(model.settings)
        count: float = sizes.parameters(config.build(model.settings).model)
    else:
        count = wanted
    resized = []
    decisions = []
    for system in systems:
        sizes, _ = measures(system.settings)
        built = config.build(system.settings).model
        try:
            widths = matched(built, count, sizes)
        except UserError as error:
            raise UserError(f"{system.name}: {error}") from None
        settings = config.merge(system.settings, {"model": widths})
        parameters = sizes.parameters(config.build(settings).model)
        words = ", ".join(f"model.{name}={value}" for name, value in widths.items())
        decisions.append(f"{system.name}: {words} for {parameters:,} parameters")
        resized.append(replace(system, settings=settings))
    return resized, decisions


def _reading(system: System, tokens: float, measures: _Measures) -> System:
    """The system, trained for as many epochs as it takes to read so many tokens."""
    _, per_epoch = measures(system.settings)
    train = {"epochs": round(tokens / per_epoch, 6), "minutes": 0, "patience": 0}
    return replace(system, settings=config.merge(system.settings, {"train": train}))


# the identity of things


def _hash(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _files(settings: Settings) -> list[str]:
    """The files and folders that the data of a system comes from."""
    data = settings.get("data", {})
    names = ("path", "target_file", "dev_file", "test_file")
    return [str(data[name]) for name in names if data.get(name)]


def fingerprint(path: str) -> str:
    """A hash of a file, or of all files of a folder; a task or corpus is known by its name."""
    place = Path(path)
    if not place.exists() and os.environ.get("REGARD_DATA"):
        place = Path(os.environ["REGARD_DATA"]) / path
    if place.is_file():
        return _sum_of(place)
    if place.is_dir():
        files = sorted(one for one in place.rglob("*") if one.is_file())
        return _hash([(str(one.relative_to(place)), _sum_of(one)) for one in files])
    return path


def _sum_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path}: {(error.strerror or str(error)).lower()}") from None
