"""An experiment: what is compared, on what data, with which seeds and which budget.

Its file is a config with a few things more, such as `seeds`, `[budget]` and `[axes]`.

    question = "How deep?"
    preset = "demo"
    seeds = [1, 2, 3]

    [data]
    path = "phrases"

    [budget]
    steps = 1000

    [axes]
    "model.score" = ["additive", "scaled_dot"]

    [axes.blocks]
    1 = { model = { encoder_layers = 1, decoder_layers = 1 } }
    2 = { model = { encoder_layers = 2, decoder_layers = 2 } }

Systems may start from a training before them: [pretrain.NAME] has its settings, and a system says
`train = { start_from = "NAME" }`.
"""

import itertools
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard import config
from regard.bounds import shown
from regard.bounds.fields import SEEDS
from regard.config import Settings
from regard.data.splits import named_data
from regard.data.tasks import TASKS
from regard.errors import UserError, nearest
from regard.presets import preset as read_preset

KEYS = ("question", "preset", "seeds", "metric", "split")
TABLES = ("budget", "axes", "pretrain")
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
LONGEST_NAME = 200  # characters of the name of a system
FIXED: Settings = {"train": {"trials": 0, "tensorboard": "off", "threads": 1}}
"""What every run of a comparison has, unless the experiment says otherwise.

With one thread a run, as many run side by side as there are cores, and how many do changes nothing.
"""


@dataclass(frozen=True)
class Budget:
    """What is the same for all systems. Of the first four, one at most is given."""

    steps: int | None = None
    epochs: float | None = None
    tokens: float | None = None
    """Tokens that training reads, of both sides, without padding."""
    minutes: float | None = None
    """Of training, from the first step on."""
    parameters: float | str | None = None
    """Widths are found with which every model has as many; a name: as many as that system."""

    def __post_init__(self) -> None:
        lengths = [name for name in ("steps", "epochs", "tokens", "minutes") if self.has(name)]
        if len(lengths) > 1:
            raise UserError(
                f"[budget]: {' and '.join(lengths)} cannot all be the same for all systems: give "
                f"one of them"
            )
        for name in (*lengths, "parameters"):
            value = getattr(self, name)
            if name == "parameters" and (value is None or isinstance(value, str)):
                continue
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 < value < 10**12:
                raise UserError(f"[budget]: {name}={shown(value)}: must be a number above 0")
            if name == "steps" and value % 1:
                raise UserError(f"[budget]: steps={shown(value)}: must be a whole number")

    def has(self, name: str) -> bool:
        return getattr(self, name) is not None

    @property
    def length(self) -> str:
        """What is the same of training: steps, epochs, tokens, minutes; empty: nothing is said."""
        names = ("steps", "epochs", "tokens", "minutes")
        return next((name for name in names if self.has(name)), "")

    def settings(self) -> Settings:
        """The settings that give a training this length; tokens are counted elsewhere."""
        if self.steps is not None:
            return {"train": {"steps": int(self.steps), "epochs": 0, "minutes": 0, "patience": 0}}
        if self.epochs is not None:
            return {"train": {"epochs": self.epochs, "minutes": 0, "patience": 0}}
        if self.minutes is not None:
            return {
                "train": {
                    "minutes": self.minutes,
                    "schedule": "wsd",  # which need not know how many steps there will be
                    "steps": 10**7,
                    "epochs": 0,
                    "patience": 0,
                    "average": 0,
                }
            }
        return {}


@dataclass(frozen=True)
class System:
    """One of the things that are compared."""

    choices: tuple[str, ...]
    """What it takes of each axis."""
    settings: Settings = field(hash=False)
    """All of its settings, without the seed."""

    @property
    def name(self) -> str:
        return ", ".join(self.choices) or "the only system"


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
            systems.append(System(names, self._settings([chosen for _, chosen in combination])))
        return systems

    def base(self, system: System) -> str | None:
        """The pretraining that a system starts from, by its name."""
        name = str(system.settings.get("train", {}).get("start_from", ""))
        return name if name in self.pretrain else None

    def pretraining(self, name: str) -> System:
        """A pretraining as a system: it shares model and tokens, but neither data nor budget."""
        shared = {section: self.settings.get(section, {}) for section in ("model", "text")}
        preset = read_preset(self.preset) if self.preset else {}
        settings = config.merge(preset, FIXED, shared, self.pretrain[name])
        return System((f"pretraining {name}",), settings)

    def _settings(self, chosen: list[Settings]) -> Settings:
        """The preset, what all systems share, the choices and the budget, one over the other."""
        presets = [one["preset"]["name"] for one in chosen if "preset" in one]
        preset = presets[-1] if presets else self.preset
        layers = [{k: v for k, v in one.items() if k != "preset"} for one in chosen]
        return config.merge(
            read_preset(preset) if preset else {},
            FIXED,
            self.settings,
            *layers,
            self.budget.settings(),
        )


def read_experiment(source: str | Path | Mapping[str, Any]) -> Experiment:
    """An experiment from its file, or from a dict of the same form."""
    if isinstance(source, Mapping):
        return experiment_of(dict(source), "experiment", Path())
    path = Path(source)
    if not os.path.exists(path):
        raise UserError(f"{shown(str(path))}: no such file; give a TOML file with [axes]")
    given = config.load_toml(path)
    try:
        return experiment_of(given, path.stem, path.parent)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def experiment_of(given: Mapping[str, Any], name: str, folder: Path) -> Experiment:
    """An experiment from the content of its file. Paths of data are taken from `folder`."""
    tables = (*TABLES, *config.SECTIONS)
    for key, value in given.items():
        if key not in (*KEYS, *tables):
            raise UserError(f"no key {shown(key)}{nearest(shown(key), (*KEYS, *tables))}")
        if key in tables and not isinstance(value, Mapping):
            raise UserError(f"{key}={shown(value)}: must be a table, such as [{key}]")
    shared = {key: dict(value) for key, value in given.items() if key in config.SECTIONS}
    axes = _axes(given.get("axes", {}))
    experiment = Experiment(
        name=name,
        question=_text(given, "question"),
        settings=_with_full_paths(shared, folder),
        preset=_text(given, "preset") or None,
        axes={
            axis: {one: _with_full_paths(chosen, folder) for one, chosen in choices.items()}
            for axis, choices in axes.items()
        },
        seeds=_seeds(given.get("seeds", [1, 2, 3])),
        pretrain=_pretrainings(given.get("pretrain", {}), folder),
        budget=_budget(given.get("budget", {})),
        metric=_metric(given.get("metric")),
        split=_text(given, "split") or "test",
    )
    _check(experiment)
    return experiment


def _check(experiment: Experiment) -> None:
    """Refuse what no run could be made of, before anything is computed."""
    count = math.prod(len(choices) for choices in experiment.axes.values())
    if count < 2:
        raise UserError("nothing to compare: give [axes] with at least two choices")
    if count * len(experiment.seeds) > MOST_RUNS:
        raise UserError(f"{count:,} systems with {len(experiment.seeds)} seeds are too many")
    _check_seeds(experiment)
    systems = experiment.systems()
    names = [system.name for system in systems]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two systems are called {name}: give the choices other names")
    for system in systems:
        _check_system(system, experiment)
    base = experiment.budget.parameters
    if isinstance(base, str) and base not in names:
        raise UserError(
            f"[budget]: parameters={shown(base)}: no such system{nearest(shown(base), names)}"
        )
    if experiment.split not in SPLITS:
        raise UserError(f"split={shown(experiment.split)}{nearest(experiment.split, SPLITS)}")


def _check_seeds(experiment: Experiment) -> None:
    """Refuse a seed that would be replaced, or that would give every run other data."""
    choices = [chosen for axis in experiment.axes.values() for chosen in axis.values()]
    for layer in (experiment.settings, *choices):
        if "seed" in layer.get("train", {}):
            raise UserError("train.seed: every system has the same seeds: write seeds = [1, 2, 3]")
        if config.drawn_seeds(layer):
            raise UserError("data.seed=none: all systems need the same data: give a number")


def _check_system(system: System, experiment: Experiment) -> None:
    """Refuse a system that cannot be built, trained or compared."""
    try:
        built = config.build(system.settings)
    except UserError as error:
        raise UserError(f"{system.name}: {error}") from None
    if not built.data.path:
        raise UserError("no data: set data.path, such as path = 'pairs.tsv' below [data]")

    is_long = {"steps", "epochs"} & set(system.settings.get("train", {}))
    if not is_long and not experiment.budget.length and not experiment.has_preset:
        raise UserError("how long to train? Set steps, epochs, tokens or minutes in [budget]")

    objective = built.train.objective
    known = [name for name in METRICS if name != "bits_per_character"]
    if objective != "translate":
        known = [*OF_TEXTS, *(["bits_per_character"] if objective == "causal" else [])]
    if experiment.metric is not None and experiment.metric not in known:
        raise UserError(
            f"metric={experiment.metric}: {system.name} is trained with train.objective="
            f"{objective}, which has {', '.join(known)}"
        )


# the parts of the file


def _text(given: Mapping[str, Any], key: str) -> str:
    value = given.get(key, "")
    if not isinstance(value, str):
        raise UserError(f"{key}={shown(value)}: must be text")
    _check_text(value, key)
    return value


def _check_text(text: str, what: str) -> None:
    """Refuse what no file of ours could hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{what}: {shown(text)} is not valid UTF-8") from None


def _seeds(value: Any) -> tuple[int, ...]:
    """A list of seeds, or how many: 3 is 1, 2, 3."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST_RUNS:
        return tuple(range(1, value + 1))
    if not isinstance(value, list | tuple) or not value:
        raise UserError(f"seeds={shown(value)}: must be a list such as [1, 2, 3], or a number")
    for seed in value:
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < SEEDS:
            raise UserError(f"seeds: {shown(seed)}: must be a whole number from 0")
    if len(set(value)) < len(value):
        raise UserError("seeds: each seed once, since the same seed gives the same run")
    return tuple(value)


def _metric(value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value in METRICS):
        return value
    raise UserError(f"metric={shown(value)}{nearest(shown(value), METRICS)}")


def _budget(table: Mapping[str, Any]) -> Budget:
    known = list(Budget.__dataclass_fields__)
    for name in table:
        if name not in known:
            raise UserError(f"[budget]: no key {shown(name)}{nearest(shown(name), known)}")
    return Budget(**table)


def _axes(table: Mapping[str, Any]) -> dict[str, dict[str, Settings]]:
    """For each axis its choices, and the settings of each.

    A list gives values of one setting, or of several that get the same value each time; a table
    gives settings by the name of the choice.
    """
    lists = [key for key, value in table.items() if isinstance(value, list | tuple)]
    shorts = [_short(shown(key)) for key in lists]
    axes: dict[str, dict[str, Settings]] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            name = _name(key, "[axes]")
            choices = _named(name, value)
        elif isinstance(value, list | tuple):
            key = _name(key, "[axes]")
            is_unique = shorts.count(_short(key)) == 1 and _short(key) not in table
            name = _short(key) if is_unique else key
            choices = _listed(key, name, value)
        else:
            raise UserError(
                f"[axes]: {shown(key)}={shown(value)}: must be a list of values, or a table of "
                f"choices"
            )
        if not choices:
            raise UserError(f"[axes]: {name} has no choices")
        axes[name] = choices
    return axes


def _settings_in(key: str) -> list[str]:
    """The settings that an axis is about: one, or several with commas between them."""
    return re.split(r"\s*,\s*", key.strip())


def _short(key: str) -> str:
    """The same, without their sections."""
    return ", ".join(name.rpartition(".")[2] for name in _settings_in(key))


def _name(given: Any, where: str) -> str:
    """The name of an axis or a choice, for tables and folders."""
    name = given if isinstance(given, str) else shown(given)
    if not name.strip():
        raise UserError(f"{where}: a name is empty; write one")
    if len(name) > LONGEST_NAME:
        raise UserError(
            f"{where}: {shown(name)} is too long for a name, with {len(name):,} characters; give "
            f"a table of choices with short names"
        )
    _check_text(name, where)
    return name


def _listed(key: str, axis: str, values: Sequence[Any]) -> dict[str, Settings]:
    """The choices of an axis that is a list of values."""
    names = _settings_in(key)
    known = [spec.full_name for spec in config.all_settings()]
    for name in names:
        is_option = re.fullmatch(r"data\.options\.[^.]+", name)
        if name not in known and not is_option:
            raise UserError(f"[axes]: no setting {shown(name)}{nearest(name, known)}")
    choices: dict[str, Settings] = {}
    for value in values:
        label = _name(_label(axis.rpartition(", ")[2], value), f"[axes]: {key}")
        if label in choices:
            raise UserError(f"[axes]: {key} has {shown(value)} twice")
        choices[label] = _all_set(names, value)
    return choices


def _all_set(names: list[str], value: Any) -> Settings:
    """Settings in which all of these have the same value."""
    settings: Settings = {}
    for name in names:
        section, _, rest = name.partition(".")
        table = settings.setdefault(section, {})
        if rest.startswith("options."):
            options = table.get("options")
            others = options if isinstance(options, Mapping) else {}
            table["options"] = {**others, rest.removeprefix("options."): value}
        else:
            table[rest] = value
    return settings


def _label(name: str, value: Any) -> str:
    """How a value is called in tables: a word speaks for itself, a number needs its setting."""
    if isinstance(value, bool):
        return f"{name}={str(value).lower()}"
    if isinstance(value, str):
        return f"{name}={value}" if value in ("none", "auto", "yes", "no", "") else value
    return f"{name}={shown(value)}"


def _named(axis: str, table: Mapping[Any, Any]) -> dict[str, Settings]:
    """The choices of an axis that is a table, by their names."""
    choices: dict[str, Settings] = {}
    for given, value in table.items():
        choice = _name(given, f"[axes.{axis}]")
        if choice in choices:
            raise UserError(f"[axes.{axis}] {choice}: twice")
        choices[choice] = _chosen(axis, choice, value)
    return choices


def _chosen(axis: str, choice: str, value: Any) -> Settings:
    """The settings of a choice that has a name."""
    where = f"[axes.{axis}] {choice}"
    full_name = f"{axis}.{choice}"
    if full_name in [spec.full_name for spec in config.all_settings()]:
        raise UserError(f'[axes]: write "{full_name}" with its quotes')
    if not isinstance(value, Mapping):
        raise UserError(f"{where}: must be settings by section: {{ model = {{ width = 64 }} }}")
    settings: Settings = {}
    for section, values in value.items():
        if section == "preset":
            if not isinstance(values, str):
                raise UserError(f"{where}: preset={shown(values)}: must be the name of a preset")
            settings["preset"] = {"name": values}
        elif section not in config.SECTIONS:
            name = shown(section)
            known = ("preset", *config.SECTIONS)
            raise UserError(f"{where}: no section {name}{nearest(name, known)}")
        elif not isinstance(values, Mapping):
            raise UserError(f"{where}: {section}={shown(values)}: must be a table of settings")
        else:
            settings[section] = dict(values)
    return settings


def _with_full_paths(settings: Settings, folder: Path) -> Settings:
    """The settings, where names of files are found from anywhere."""
    full = {section: dict(values) for section, values in settings.items()}
    data = full.get("data", {})
    for name in ("target_file", "dev_file", "test_file"):
        if isinstance(data.get(name), str) and data[name]:
            data[name] = os.path.abspath(folder / data[name])
    if isinstance(data.get("path"), str) and data["path"]:
        data["path"] = _full_path(data["path"], folder)

    base = full.get("train", {}).get("start_from")
    if isinstance(base, str) and base and os.path.exists(folder / base):
        full["train"]["start_from"] = os.path.abspath(folder / base)
    return full


def _full_path(path: str, folder: Path) -> str:
    """A task or corpus by its name, a file by its full path."""
    if path not in TASKS and os.path.exists(folder / path):
        return os.path.abspath(folder / path)
    return named_data(path)
