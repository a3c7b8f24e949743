"""An experiment: what is compared, on what data, with which seeds and which budget."""

import itertools
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from regard import config
from regard.bounds import shown
from regard.comparison.budget import Budget
from regard.config import Config, Settings
from regard.errors import UserError, counted, nearest
from regard.presets import preset as read_preset

METRICS = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "exact_match": "exact match",
    "token_accuracy": "token accuracy",
    "loss": "loss",
    "bits_per_character": "bits per character",
    "ter": "TER",
    "wer": "WER",
    "cer": "CER",
}
"""What systems can be compared by, and its name for people."""
LOWER_IS_BETTER = {"loss", "bits_per_character", "ter", "wer", "cer"}
SHARES = {"exact_match", "token_accuracy", "wer", "cer"}
"""Metrics from 0 to 1, which people read in per cent."""
OF_TEXTS = ("loss", "token_accuracy")
"""Metrics of every language model; a causal one has bits per character, too."""
SPLITS = ("train", "dev", "test", "long")
MOST_RUNS = 1000
FIXED: Settings = {"train": {"trials": 0, "tensorboard": "off", "threads": 1}}
"""What every run of a comparison has, unless the experiment says otherwise.

With one thread a run, as many run side by side as there are cores, and how many do changes nothing.
"""


@dataclass(frozen=True)
class System:
    """One of the things that are compared."""

    choices: tuple[str, ...]
    """What it takes of each axis."""
    settings: Settings = field(hash=False)
    """All of its settings, without the seed."""
    given: Settings = field(hash=False, default_factory=dict)
    """Those that the experiment itself has set, and no preset."""

    @property
    def name(self) -> str:
        return ", ".join(self.choices)

    @property
    def start_from(self) -> str:
        """The pretraining, or the folder of the run, whose weights it starts from; empty: none."""
        return str(self.settings.get("train", {}).get("start_from", ""))


@dataclass(frozen=True)
class Experiment:
    """What is compared, on what data, with which seeds and which budget."""

    name: str
    question: str
    settings: Settings
    """What all systems share, without the preset."""
    preset: str | None
    axes: Mapping[str, Mapping[str, Settings]]
    """For each axis its choices, and the settings of each; `preset` may be among them."""
    seeds: tuple[int, ...]
    pretrain: Mapping[str, Settings]
    """Trainings that systems may start from, by name: train.start_from of a system says which."""
    budget: Budget
    metric: str | None
    """None: BLEU, or exact match where BLEU says nothing; the loss of language models."""
    split: str

    @property
    def has_preset(self) -> bool:
        """Whether a preset decides what the experiment leaves open, instead of the data."""
        return self.preset is not None

    def systems(self) -> list[System]:
        """Every combination of a choice from each axis."""
        systems = []
        for combination in itertools.product(*(axis.items() for axis in self.axes.values())):
            names = tuple(name for name, _ in combination)
            systems.append(self._system(names, [chosen for _, chosen in combination]))
        return systems

    def pretraining(self, system: System) -> System | None:
        """What a system starts from, if that is one of our pretrainings.

        It has the model and the tokens of the system, since the weights have to fit, but its own
        data and length.
        """
        name = system.start_from
        if name not in self.pretrain:
            return None
        shared = {section: system.settings.get(section, {}) for section in ("model", "text")}
        preset = read_preset(self.preset) if self.preset else {}
        settings = config.merge(preset, FIXED, shared, self.pretrain[name])
        return System((f"pretraining {name}",), settings)

    def _system(self, names: tuple[str, ...], chosen: list[Settings]) -> System:
        """The preset, what all systems share, the choices and the budget, one over the other."""
        presets = [one["preset"]["name"] for one in chosen if "preset" in one]
        preset = presets[-1] if presets else self.preset
        given = config.merge(self.settings, *map(_without_preset, chosen))
        below = read_preset(preset) if preset else {}
        return System(names, config.merge(below, FIXED, given, self.budget.settings()), given)

    def check(self) -> None:
        """Refuse what no run could be made of, before anything is computed."""
        count = math.prod(len(choices) for choices in self.axes.values())
        if count < 2:
            raise UserError("nothing to compare: give [axes] with at least two choices")
        if count * len(self.seeds) > MOST_RUNS:
            raise UserError(
                f"{counted(count, 'system')} with {counted(len(self.seeds), 'seed')} are more "
                f"than {MOST_RUNS:,} runs: leave choices out"
            )
        self._check_layers()
        systems = self.systems()
        _check_names(systems, self.budget)
        for system in systems:
            self._check_system(system)
        for name in self.pretrain:
            if all(system.start_from != name for system in systems):
                raise UserError(
                    f"[pretrain.{name}]: no system starts from it: write "
                    f'train = {{ start_from = "{name}" }} in a choice'
                )

    def _check_layers(self) -> None:
        """Refuse settings that would be replaced, or that would give every run other data."""
        layers = {"": self.settings}
        for axis, choices in self.axes.items():
            for choice, chosen in choices.items():
                layers[f"[axes] {axis}: {choice}: "] = _without_preset(chosen)
        for where, layer in layers.items():
            self.budget.check(layer, where)
        layers.update({f"[pretrain.{name}]: ": layer for name, layer in self.pretrain.items()})
        for where, layer in layers.items():
            if "seed" in layer.get("train", {}):
                raise UserError(
                    f"{where}train.seed: every system has the same seeds: write seeds = [1, 2, 3] "
                    f"above all tables"
                )
            if config.drawn_seeds(layer):
                raise UserError(
                    f"{where}data.seed=none: all systems need the same data: give a number"
                )

    def _check_system(self, system: System) -> None:
        """Refuse a system that cannot be built, trained or compared."""
        built = _built(system)
        is_long = {"steps", "epochs", "minutes"} & set(system.settings.get("train", {}))
        if not is_long:
            raise UserError("how long to train? Set steps, epochs, tokens or minutes in [budget]")
        self._check_metric(system, built.train.objective)
        if system.start_from:
            self._check_start(system)

    def _check_metric(self, system: System, objective: str) -> None:
        known = [name for name in METRICS if name != "bits_per_character"]
        if objective != "translate":
            known = [*OF_TEXTS, *(["bits_per_character"] if objective == "causal" else [])]
        if self.metric is not None and self.metric not in known:
            raise UserError(
                f"metric={self.metric}: {system.name} is trained with train.objective="
                f"{objective}, which has {', '.join(known)}"
            )

    def _check_start(self, system: System) -> None:
        """Refuse a start that is not there, or whose tokens nobody knows yet."""
        start = system.start_from
        before = self.pretraining(system)
        if before is None and not os.path.isdir(start):
            raise UserError(
                f"{system.name}: train.start_from={shown(start)}: no [pretrain.…] and no run has "
                f"this name{nearest(shown(start), self.pretrain)}"
            )
        for name in ("parameters", "tokens"):
            if self.budget.has(name):
                raise UserError(
                    f"[budget]: {name} cannot be matched for {system.name}, which starts from "
                    f"{shown(start)} and has its vocabulary: use steps, epochs or minutes"
                )
        if before is not None:
            _built(before)
            if not {"steps", "epochs", "minutes"} & set(before.settings.get("train", {})):
                raise UserError(
                    f"[pretrain.{start}]: how long to train? Set steps or epochs in its train"
                )


def _without_preset(chosen: Settings) -> Settings:
    return {section: values for section, values in chosen.items() if section != "preset"}


def _built(system: System) -> Config:
    """The config of a system; an error names it."""
    try:
        built = config.build(system.settings)
    except UserError as error:
        raise UserError(f"{system.name}: {error}") from None
    if not built.data.path:
        raise UserError(
            f"{system.name}: no data: set data.path, such as path = 'pairs.tsv' below [data]"
        )
    return built


def _check_names(systems: list[System], budget: Budget) -> None:
    names = [system.name for system in systems]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"two systems are called {twice}: give the choices other names")
    base: Any = budget.parameters
    if isinstance(base, str) and base not in names:
        raise UserError(
            f"[budget]: parameters={shown(base)}: no such system{nearest(shown(base), names)}"
        )
