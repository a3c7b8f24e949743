"""An experiment file, or a dict of the same form -> an Experiment.

The file is a config with a few things more, such as `seeds`, `[budget]` and `[axes]`.

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

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from regard import config
from regard.bounds import shown
from regard.bounds.fields import SEEDS
from regard.comparison.budget import Budget
from regard.comparison.experiment import METRICS, MOST_RUNS, SPLITS, Experiment
from regard.config import Settings
from regard.data.splits import named_data
from regard.data.tasks import TASKS
from regard.errors import UserError, nearest

KEYS = ("question", "preset", "seeds", "metric", "split")
TABLES = ("budget", "axes", "pretrain")
FILES = ("target_file", "dev_file", "test_file")
"""Settings of `data` that name files, besides its path."""
LONGEST_NAME = 200  # characters of the name of a choice


def read_experiment(source: str | Path | Mapping[str, Any]) -> Experiment:
    """An experiment from its file, or from a dict of the same form."""
    if isinstance(source, Mapping):
        return experiment_of(source, "experiment", Path())
    path = Path(source)
    if not os.path.lexists(path):
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

    pretrain = _pretrainings(given.get("pretrain", {}))
    places = _Places(folder, pretrain)
    shared = {key: dict(value) for key, value in given.items() if key in config.SECTIONS}
    axes = _axes(given.get("axes", {}))
    experiment = Experiment(
        name=name,
        question=_text(given, "question"),
        settings=places.full(shared),
        preset=_text(given, "preset") or None,
        axes={
            axis: {choice: places.full(chosen) for choice, chosen in choices.items()}
            for axis, choices in axes.items()
        },
        seeds=_seeds(given.get("seeds", [1, 2, 3])),
        pretrain={name: places.full(settings) for name, settings in pretrain.items()},
        budget=_budget(given.get("budget", {})),
        metric=_word(given, "metric", METRICS),
        split=_word(given, "split", SPLITS) or "test",
    )
    experiment.check()
    return experiment


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


def _word(given: Mapping[str, Any], key: str, known: Iterable[str]) -> str | None:
    """One of the words that are known; None: nothing is said."""
    value = given.get(key)
    if value is None or (isinstance(value, str) and value in known):
        return value
    raise UserError(f"{key}={shown(value)}{nearest(shown(value), known)}")


def _seeds(value: Any) -> tuple[int, ...]:
    """A list of seeds, or how many: 3 is 1, 2, 3."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST_RUNS:
        return tuple(range(1, value + 1))
    if not isinstance(value, list | tuple) or not value:
        raise UserError(f"seeds={shown(value)}: must be a list such as [1, 2, 3], or a number")
    for seed in value:
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < SEEDS:
            raise UserError(f"seeds: {shown(seed)}: must be a whole number from 0 to {SEEDS - 1}")
    if len(set(value)) < len(value):
        raise UserError("seeds: each seed once, since the same seed gives the same run")
    return tuple(value)


def _budget(table: Mapping[str, Any]) -> Budget:
    known = list(Budget.__dataclass_fields__)
    for name in table:
        if name not in known:
            raise UserError(f"[budget]: no key {shown(name)}{nearest(shown(name), known)}")
    return Budget(**table)


def _pretrainings(table: Mapping[Any, Any]) -> dict[str, Settings]:
    """The settings of each pretraining, by its name."""
    pretrain = {}
    for given, value in table.items():
        name = _name(given, "[pretrain]")
        where = f"[pretrain.{name}]"
        if not isinstance(value, Mapping):
            raise UserError(f"{where}: must be a table of data and train")
        others = [section for section in ("model", "text", "search") if section in value]
        if others:
            raise UserError(
                f"{where}: {others[0]} is that of the systems which start from it: remove it here"
            )
        settings = _sections(value, where, ("data", "train"))
        if not settings.get("data", {}).get("path"):
            raise UserError(f'{where}: no data: set data = {{ path = "…" }}')
        if "start_from" in settings.get("train", {}):
            raise UserError(f"{where}: a pretraining starts from random weights: remove start_from")
        pretrain[name] = settings
    return pretrain


def _sections(value: Mapping[Any, Any], where: str, known: Sequence[str]) -> Settings:
    """Settings by section, of these sections alone."""
    settings: Settings = {}
    for section, values in value.items():
        if section not in known:
            name = shown(section)
            raise UserError(f"{where}: no section {name}{nearest(name, known)}")
        if not isinstance(values, Mapping):
            raise UserError(f"{where}: {section}={shown(values)}: must be a table of settings")
        settings[section] = dict(values)
    return settings


# axes


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
    full_name = f"{axis}.{choice}"
    if full_name in [spec.full_name for spec in config.all_settings()]:
        raise UserError(f'[axes]: write "{full_name}" with its quotes')
    where = f"[axes.{axis}] {choice}"
    if not isinstance(value, Mapping):
        raise UserError(f"{where}: must be settings by section: {{ model = {{ width = 64 }} }}")
    preset = value.get("preset", "")
    if not isinstance(preset, str):
        raise UserError(f"{where}: preset={shown(preset)}: must be the name of a preset")
    rest = {section: values for section, values in value.items() if section != "preset"}
    settings = _sections(rest, where, tuple(config.SECTIONS))
    return settings | {"preset": {"name": preset}} if preset else settings


# places


class _Places:
    """Where the names of files in an experiment are looked for: beside it."""

    def __init__(self, folder: Path, pretrain: Iterable[str]) -> None:
        self._folder = folder
        self._pretrain = set(pretrain)

    def full(self, settings: Settings) -> Settings:
        """The settings, where names of files are found from anywhere."""
        full = {section: dict(values) for section, values in settings.items()}
        data = full.get("data", {})
        for name in FILES:
            if isinstance(data.get(name), str | Path) and data[name]:
                data[name] = os.path.abspath(self._folder / data[name])
        if isinstance(data.get("path"), str | Path):
            data["path"] = self._data(data["path"])

        train = full.get("train", {})
        start = train.get("start_from")
        if isinstance(start, str | Path) and str(start) not in self._pretrain and str(start):
            if os.path.exists(self._folder / start):
                start = os.path.abspath(self._folder / start)
            train["start_from"] = str(start)
        return full

    def _data(self, path: str | Path) -> str:
        """A task or corpus by its name, a file by its full path."""
        if not str(path) or path in TASKS or not os.path.exists(self._folder / path):
            return named_data(path)
        return os.path.abspath(self._folder / path)
