"""What has to be trained and scored for an experiment: a run for each system and seed."""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Self

import regard
from regard import config
from regard.bounds import shown
from regard.comparison.budget import Budget
from regard.comparison.code import NO_CODE, Code, code_in
from regard.comparison.experiment import Experiment, System
from regard.comparison.matching import Sizes, matched
from regard.comparison.typed import check_fields
from regard.config import Config, Settings
from regard.data.readers.aligned import aligned_files
from regard.data.splits import Splits
from regard.data.tasks import TASKS
from regard.errors import UserError
from regard.files.whole import shortened
from regard.recipes.planning import choose
from regard.recipes.preparing import learn_tokenizers, open_split_of, open_splits
from regard.recipes.reporter import Reporter
from regard.runs.run import Run
from regard.scoring import bleu_applies

SAMPLE = 20_000
"""Examples that are encoded to tell how many tokens there are."""
LOOKED_AT = 2000
"""References by which it is told whether BLEU says anything about them."""
KEY = 12
"""Letters of a hash that name a run."""
LONGEST_SLUG = 60
"""Bytes of the name of a folder that come from the name of the system."""


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
    """The hash of the pretraining whose weights this one starts from; empty: from none of ours."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """A cell that was written as a dict."""
        check_fields(cls, values)
        cell = cls(**values)
        cell.check_names()
        return cell

    @cached_property
    def config(self) -> Config:
        return config.build(self.settings)

    @property
    def label(self) -> str:
        """The run for a person."""
        return f"{self.system}, seed {self.seed}"

    def check_names(self) -> None:
        """Refuse hashes, which are parts of paths, that no plan of ours has."""
        if not all(re.fullmatch(f"[0-9a-f]{{{KEY}}}", name) for name in (self.run, self.key)):
            raise ValueError(f"{self.run!r} or {self.key!r} is no hash")

    @property
    def run_name(self) -> str:
        """The folder of the run."""
        letters = [c if c.isalnum() else "-" for c in self.system.lower()]
        slug = "-".join(part for part in "".join(letters).split("-") if part)
        return f"{shortened(slug, LONGEST_SLUG) or 'system'}-seed-{self.seed}-{self.run}"


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
    data: Mapping[str, str] = field(default_factory=dict)
    """The files and folders that the runs read, with the hash of their content."""
    code: Code = field(default_factory=dict)
    """Hashes of the code of the user's own parts."""
    command: str = ""
    """The command line that does all of this again."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """A plan that was written as a dict."""
        known = {name: values[name] for name in cls.__dataclass_fields__}
        cells = {name: list(map(Cell.of, known.pop(name))) for name in ("pretraining", "cells")}
        check_fields(cls, known)
        if not cells["cells"]:
            raise ValueError("nothing is compared")
        known["budget"] = asdict(Budget(**known["budget"]))
        return cls(**{**known, **cells})

    def runs(self) -> list[list[Cell]]:
        """The cells of each run: more than one where only the search differs.

        What other runs start from comes first.
        """
        by_run: dict[str, list[Cell]] = {}
        for cell in (*self.pretraining, *self.cells):
            by_run.setdefault(cell.run, []).append(cell)
        return list(by_run.values())

    def base_of(self, cell: Cell) -> Cell | None:
        """The pretraining that a cell starts from; None: it starts from none."""
        return next((one for one in self.pretraining if one.run == cell.base), None)

    def systems(self) -> list[str]:
        """The names of the systems, in their order."""
        return list(dict.fromkeys(cell.system for cell in self.cells))


def identity(experiment: Experiment, code: Code = NO_CODE) -> str:
    """A hash of an experiment, its data and all code: a new one asks for a new plan."""
    systems = experiment.systems()
    before = [one for one in map(experiment.pretraining, systems) if one is not None]
    content = fingerprints(path for one in (*systems, *before) for path in _files(one.settings))
    return _hash([regard.__version__, asdict(experiment), content, dict(code)])


def plan(experiment: Experiment, reporter: Reporter, code: Code = NO_CODE) -> Plan:
    """Decide what is left open, and list the cells: all seeds of a system, system by system."""
    systems = experiment.systems()
    _check_data(systems, experiment)
    decisions: list[str] = []
    if not experiment.has_preset:
        systems, decisions = _planned(systems, reporter)
    systems = [_fitting_start(system, experiment) for system in systems]

    measures = _Measures()
    if experiment.budget.parameters is not None:
        systems, told = _with_equal_sizes(systems, experiment.budget.parameters, measures)
        decisions += told
    if experiment.budget.tokens is not None:
        systems = [_reading(system, experiment.budget.tokens, measures) for system in systems]

    maker = _Cells(experiment, code)
    cells = [maker.cell(system, seed) for system in systems for seed in experiment.seeds]
    _check_different(cells)
    return Plan(
        name=experiment.name,
        question=experiment.question,
        metric=experiment.metric,
        split=experiment.split,
        budget=asdict(experiment.budget),
        axes=list(experiment.axes),
        decisions=decisions,
        cells=cells,
        pretraining=list(maker.pretraining.values()),
        data=maker.data,
        code=dict(code),
    )


def _check_data(systems: list[System], experiment: Experiment) -> None:
    """Refuse data that cannot be read or scored on, before an hour is spent on other runs."""
    known = []
    for system in systems:
        data = config.build(system.settings).data
        if data in known:
            continue
        known.append(data)
        try:
            scored_on = open_split_of(data, experiment.split)
        except UserError as error:
            raise UserError(f"{system.name}: {error}") from None
        references = [pair.targets for pair in islice(scored_on, LOOKED_AT)]
        if not references:
            raise UserError(
                f"{system.name}: {data.path} has nothing in its split {experiment.split}, on which "
                f"systems are scored: set data.{experiment.split}, or another split"
            )
        if experiment.metric == "bleu" and not bleu_applies(references, data.bleu_tokenize):
            raise UserError(
                f"{system.name}: metric=bleu says nothing about answers as short as those of "
                f"{data.path}: use exact_match or chrf"
            )


def _check_different(cells: list[Cell]) -> None:
    """Refuse two systems that are one and the same."""
    names: dict[str, str] = {}
    for cell in cells:
        other = names.setdefault(cell.key, cell.system)
        if other != cell.system:
            raise UserError(
                f"{other} and {cell.system} are the same: with the budget and the defaults, all "
                f"of their settings are equal; remove one of them"
            )


class _Cells:
    """Makes the cells of an experiment, and those of the pretraining that they need."""

    def __init__(self, experiment: Experiment, code: Code) -> None:
        self._experiment = experiment
        self._code = code
        self.data: dict[str, str] = {}
        self.pretraining: dict[str, Cell] = {}
        """What has to be trained before, by the hash of the run."""

    def cell(self, system: System, seed: int) -> Cell:
        """A system with one seed."""
        before = self._experiment.pretraining(system)
        if before is None:
            return self._cell(system, seed)
        base = self._cell(before, seed)
        base = replace(base, key=_hash([base.run, "pretraining"])[:KEY])  # which is not scored
        base = self.pretraining.setdefault(base.run, base)
        return self._cell(system, seed, base)

    def _cell(self, system: System, seed: int, base: Cell | None = None) -> Cell:
        settings = config.merge(system.settings, {"train": {"seed": seed}})
        settings = json.loads(json.dumps(settings, default=str))  # as a file will hold them
        built = config.to_settings(config.build(settings))
        trained = {name: values for name, values in built.items() if name != "search"}
        if built["train"]["metric"] not in ("loss", "accuracy", "step"):
            trained["search"] = built["search"]  # dev is decoded in training
        before = ""
        if base is not None:
            before = base.run
            trained["train"] = {**built["train"], "start_from": ""}  # a name says nothing
        paths = _files(settings, start=base is None)
        for path in paths:
            if path not in self.data:
                self.data[path] = fingerprint(path)
        content = [self.data[path] for path in paths]
        what = [regard.__version__, trained, content, before]
        code = code_in(built, self._code)
        run = _hash([*what, code] if code else what)[:KEY]
        key = _hash([run, built["search"], self._experiment.split])[:KEY]
        return Cell(system.name, seed, settings, run, key, before)


# what the experiment leaves open


def _planned(systems: list[System], reporter: Reporter) -> tuple[list[System], list[str]]:
    """The systems with what the data decides for the first of them: it decides for all."""
    first = config.build(systems[0].settings)
    splits = open_splits(first.data)
    given = config.merge(_in_common(systems), {"train": {"objective": first.train.objective}})
    shared, choices = choose(splits, given)
    decisions = [str(choice) for choice in choices]
    for line in decisions:
        reporter.say(line)
    planned = [
        replace(system, settings=config.merge(shared, system.settings)) for system in systems
    ]
    return planned, decisions


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


def _fitting_start(system: System, experiment: Experiment) -> System:
    """The system with the model and the tokens of the run that it starts from, if it does."""
    if not system.start_from or system.start_from in experiment.pretrain:
        return system
    base = config.to_settings(Run.open(system.start_from).config)
    inherited = {section: dict(base[section]) for section in ("model", "text")}
    for section, values in inherited.items():
        for name, value in system.given.get(section, {}).items():
            if name.endswith("dropout"):
                values[name] = value
            elif value != values.get(name):
                raise UserError(
                    f"{system.name}: {section}.{name}={shown(value)}, but {system.start_from}, "
                    f"which it starts from, has {shown(values.get(name))}: leave it out"
                )
    rest = {name: of for name, of in system.settings.items() if name not in inherited}
    return replace(system, settings={**rest, **inherited})


class _Measures:
    """What the data tells of vocabularies and tokens. Each data set is read once."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Sizes, float]] = {}

    def __call__(self, settings: Settings) -> tuple[Sizes, float]:
        """The sizes of the vocabularies, and the tokens of an epoch."""
        built = config.build(settings)
        relevant = config.to_settings(built)
        key = _hash([relevant["data"], relevant["text"], built.train.objective])
        if key not in self._known:
            self._known[key] = _measured(built)
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
    epochs = round(tokens / per_epoch, 6)
    if not epochs:  # which would mean: go by the steps
        raise UserError(
            f"[budget]: tokens={tokens:g}: the data has {per_epoch:,.0f} tokens for {system.name}, "
            f"and this is less than a millionth of them; give more"
        )
    train = {"epochs": epochs, "minutes": 0, "patience": 0}
    return replace(system, settings=config.merge(system.settings, {"train": train}))


# the identity of things


def _hash(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _files(settings: Settings, *, start: bool = True) -> list[str]:
    """The files and folders that a system is made from; start: the run that it starts from, too."""
    data = settings.get("data", {})
    names = ("path", "target_file", "dev_file", "test_file")
    named = [str(data[name]) for name in names if data.get(name)]
    columns = (str(data.get("source") or ""), str(data.get("target") or ""))
    files = [file for name in named for file in _both_of(name, *columns)]
    base = str(settings.get("train", {}).get("start_from", ""))
    return [*files, base] if start and os.path.isdir(base) else files


def _both_of(path: str, source: str, target: str) -> list[str]:
    """The file, or the two aligned files that it stands for: text.en and text.de."""
    if path in TASKS or not (source and target):
        return [path]
    both = aligned_files(Path(path), source, target)
    return [str(file) for file in both] if both else [path]


def fingerprints(paths: Iterable[str]) -> dict[str, str]:
    """The hash of the content of each path."""
    return {path: fingerprint(path) for path in sorted(set(paths))}


def fingerprint(path: str) -> str:
    """A hash of a file, of all files of a folder, or of the best weights of a run.

    A task or corpus is known by its name.
    """
    if path in TASKS:
        return path
    place = Path(path)
    if not place.exists() and os.environ.get("REGARD_DATA"):
        place = Path(os.environ["REGARD_DATA"]) / path
    if place.is_file():
        return _sum_of(place)
    if (place / "checkpoints").is_dir():
        return _sum_of(place / "checkpoints" / Run.open(place).best / "manifest.json")
    if place.is_dir():
        files = sorted(file for file in place.rglob("*") if file.is_file())
        return _hash([(str(file.relative_to(place)), _sum_of(file)) for file in files])
    if place.exists():
        raise UserError(
            f"{path}: a pipe or a device, which can be read only once, but every run reads the "
            f"data: save it to a file first"
        )
    return path


def _sum_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path}: {(error.strerror or str(error)).lower()}") from None
