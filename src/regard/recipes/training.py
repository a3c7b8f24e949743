"""Data -> a trained run."""

import difflib
import inspect
import io
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regard import config as settings
from regard.config import Config, Settings
from regard.data.items import Items
from regard.data.readers import PAIRED_SUFFIXES
from regard.data.readers.aligned import aligned_files, language_of
from regard.data.readers.files import check_file, plain_name
from regard.data.readers.pipes import is_open_pipe
from regard.data.splits import named_data
from regard.data.tasks import TASKS
from regard.errors import UserError, nearest
from regard.files import disk_faults_told
from regard.models.parts import Parts, settings_of
from regard.nn.devices import pick_device, state_kept
from regard.presets import preset as read_preset
from regard.recipes.fitting import fit
from regard.recipes.preparing import prepare
from regard.recipes.reporter import Reporter
from regard.runs.claim import Claim, Taken, newest_numbered
from regard.runs.run import Run
from regard.training.checkpoint import go_back_to_decay
from regard.training.parallel import World
from regard.training.start import check_training_size

CHANGEABLE = {
    "train.steps",
    "train.epochs",
    "train.minutes",
    "train.patience",
    "train.trials",
    "train.log_every",
    "train.keep",
    "train.milestones",
    "train.average",
    "train.tensorboard",
    "train.callback",
}
"""What a resumed run may change; anything else would make it another run."""
LENGTH = {"train.steps", "train.epochs", "train.minutes", "train.patience"}
"""What decides when the learning rate of train.schedule=wsd begins to fall."""


def train(
    data: str | Path | Items | Config,
    target_file: str | Path | None = None,
    /,
    *,
    preset: str | None = None,
    config: str | Path | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    start_from: str | Path | None = None,
    parts: Parts = None,
    reporter: Reporter | None = None,
    **overrides: Mapping[str, Any],
) -> Run:
    """Train a model on `data` and return its run.

    `data` is a task, corpus, file or folder; or two files whose lines belong together:
    train("text.en", "text.de"); or pairs: a list or generator of (source, target), of
    (source, [targets]) or of dicts, a pandas frame, a Hugging Face Dataset. Columns go by name:
    data={"source": "en", "target": "fr"}. A dict {"train": …, "dev": …, "test": …} of such has its
    own splits.

    Settings come from the preset, over it the TOML file `config`, over that keyword sections:
    train={"steps": 100}.

    If the folder `out` holds a run already: resume=True goes on with it (and if it has come to its
    end, just returns it), overwrite=True trains it again. parts: classes and functions of your own,
    such as parts={"score": MyScore}; see docs/how-to/your-own-parts.md.

        run = regard.train("pairs.tsv", out="runs/mine", resume=True, train={"epochs": 5})
    """
    reporter = reporter or Reporter()
    _check_sections(overrides)
    if resume and overwrite:
        raise UserError("resume continues a run, overwrite replaces it: pass only one of them")
    files = two_files(data, target_file)
    changes = settings.merge({"data": files} if files else {}, overrides)
    changes = _absolute(settings.merge(changes, settings_of(parts, overrides)))
    request = _read_request(data, preset, config, start_from, changes)
    folder = _folder_asked_for(request, out, resume or overwrite)
    exists = folder is not None and folder.exists()

    device = str(request.given.get("train", {}).get("device", "auto"))
    if folder is not None and exists and resume:
        device = Run.open(folder).config.train.device

    with World.join(pick_device(device)) as world, state_kept(world.device), ExitStack() as held:
        if world.rank == 0:  # one process prepares, the others wait and then open what it made
            extended = False
            if folder is not None and exists and not overwrite:
                run, extended = _resumed(folder, changes, resume, reporter, held)
            else:
                try:
                    run = _prepared(request, folder, parts, reporter, overwrite, world, held)
                except Taken as taken:
                    if not resume or taken.folder is None:
                        raise
                    # Another process has made it since we looked.
                    run, extended = _resumed(taken.folder, changes, resume, reporter, held)
            world.tell(f"{int(extended)} {run.path.resolve()}")
        else:
            flag, _, path = world.tell("").partition(" ")
            run = Run.open(path)
            extended = flag == "1"
            reporter = Reporter(io.StringIO(), quiet=True)  # rank 0 speaks for all

        return fit(run, parts=parts, reporter=reporter, extended=extended, world=world)


def two_files(data: Any, target_file: str | Path | None) -> dict[str, str]:
    """The settings that say that `data` and `target_file` are read side by side."""
    if target_file is None:
        return {}
    if not isinstance(data, str | Path):
        raise UserError(f"{target_file}: a second file needs a first one, not pairs")
    if data in TASKS:
        raise UserError(f"{data} is a task; a second file needs a first one")
    for file in (Path(data), Path(target_file)):
        if plain_name(file).lower().endswith(PAIRED_SUFFIXES):
            raise UserError(
                f"{data} and {target_file}: two files must be aligned, one text per line; give a "
                f"file of pairs alone (for a dev set, add data.dev_file={target_file})"
            )
        check_file(file)

    languages = [language_of(Path(data)), language_of(Path(target_file))]
    if None not in languages:
        source, target = map(str, languages)
        both = aligned_files(Path(data).resolve(), source, target)
        if both is not None and both[1] == Path(target_file).resolve():
            return {"source": source, "target": target}
    return {"target_file": _absolute_path(target_file)}


def _absolute(given: Settings) -> Settings:
    """The settings with full paths of files, so that a run finds them from anywhere."""
    absolute = settings.merge(given)
    values = absolute.get("data", {})
    for name in ("target_file", "dev_file", "test_file"):
        value = values.get(name)
        if value and isinstance(value, str | Path) and "\0" not in str(value):
            values[name] = _absolute_path(value)
    return absolute


def _check_names(given: Settings) -> None:
    """Refuse names of files that no settings file could hold."""
    for name in ("path", "target_file", "dev_file", "test_file"):
        file = str(given.get("data", {}).get(name, ""))
        try:
            file.encode()
        except UnicodeEncodeError:
            raise UserError(
                f"{ascii(file)[1:-1]}: this name is not UTF-8, so config.toml cannot hold it; "
                f"rename the file"
            ) from None


def _absolute_path(file: str | Path) -> str:
    return str(file) if is_open_pipe(Path(file)) else str(Path(file).resolve())


def _check_sections(overrides: Mapping[str, Any]) -> None:
    """Refuse what is no section of settings, with what to write."""
    for name, value in overrides.items():
        if name in settings.SECTIONS and isinstance(value, Mapping):
            continue
        if name in settings.SECTIONS:
            raise UserError(
                f'{name}={value!r}: pass a dict of settings, such as train={{"steps": 1000}}'
            )

        specs = settings.all_settings()
        near = difflib.get_close_matches(name, {spec.name for spec in specs}, n=1, cutoff=0.7)
        meant = near[0] if near else name
        sections = [spec.section for spec in specs if spec.name == meant]
        ways = [f'{section}={{"{meant}": {value!r}}}' for section in dict.fromkeys(sections)]
        if not ways:
            arguments = [*inspect.signature(train).parameters, *settings.SECTIONS]
            raise UserError(f"train() has no argument {name}{nearest(name, arguments[1:])}")
        raise UserError(f"train() has no argument {name}: write {' or '.join(ways)}")


@dataclass(frozen=True)
class _Request:
    """What the caller of `train` asked for."""

    name: str  # of the data
    pairs: Items | None  # None: the settings say where the data is
    given: Settings  # merged from all layers, not yet built
    drawn: Settings  # the seeds that nobody chose
    plan_settings: bool  # what was not given is chosen by looking at the data

    @property
    def first_folder(self) -> Path:
        """Where the first run on this data goes if the caller names no folder."""
        stem = Path(self.name).name.split(".")[0]
        if not stem or is_open_pipe(Path(self.name)):
            stem = "pairs"
        return Path("runs") / stem


def _read_request(
    data: str | Path | Items | Config,
    preset: str | None,
    config: str | Path | None,
    start_from: str | Path | None,
    overrides: Mapping[str, Mapping[str, Any]],
) -> _Request:
    """Tell the kinds of `data` apart, and merge all layers of settings."""
    base: Settings = {}
    pairs: Items | None = None
    if isinstance(data, Config):
        base = settings.to_settings(data)
        name = str(base["data"]["path"])
    elif isinstance(data, str | Path):
        name = named_data(data)
    else:
        name = "pairs"
        pairs = data

    given = settings.merge(
        base,
        read_preset(preset) if preset else {},
        settings.read_toml(Path(config)) if config else {},
        {"data": {"path": name if pairs is None else ""}},
        {"train": {"start_from": str(start_from)}} if start_from else {},
        overrides,
    )
    given = _absolute(given)
    _check_names(given)
    drawn = settings.drawn_seeds(given)  # here, once: a config is built more than once
    given = settings.merge(given, drawn)
    plan_settings = not (preset or config or isinstance(data, Config))
    return _Request(name, pairs, given, drawn, plan_settings)


def _folder_asked_for(request: _Request, out: str | Path | None, resume: bool) -> Path | None:
    """The folder of the run; None: a new run, which gets the first free name."""
    if out:
        return Path(out)
    if resume:
        return newest_numbered(request.first_folder)
    return None


def _prepared(
    request: _Request,
    folder: Path | None,
    parts: Parts,
    reporter: Reporter,
    overwrite: bool,
    world: World,
    held: ExitStack,
) -> Run:
    """A new run, ready to train, with its lock."""
    config = settings.build(request.given)  # a misspelt setting is told before anything is read
    check_training_size(config)
    for section, seeds in request.drawn.items():
        for name, seed in seeds.items():
            reporter.say(f"drew {section}.{name}={seed} (pass it to repeat this run)")

    if folder is None:
        claim = Claim.take_next(request.first_folder)
    else:
        claim = Claim.take(folder, overwrite=overwrite)
    with claim:
        run = prepare(
            claim,
            request.given,
            request.pairs,
            parts,
            plan_settings=request.plan_settings,
            try_plans=world.size == 1,
            reporter=reporter,
        )
        held.enter_context(run.locked())
    return run


def _resumed(
    folder: Path,
    overrides: Mapping[str, Mapping[str, Any]],
    resume: bool,
    reporter: Reporter,
    held: ExitStack,
) -> tuple[Run, bool]:
    """A run that exists, with its lock, and whether it goes on beyond its old end.

    The lock comes first: who is refused has changed nothing.
    """
    if not resume:
        raise Taken.by(folder)

    Claim.sweep_beside(folder)
    run = Run.open(folder)
    old = settings.to_settings(run.config)
    kept = {  # whose seeds were drawn goes on with them
        section: {name: old[section][name] for name in seeds}
        for section, seeds in settings.drawn_seeds(overrides).items()
    }
    config = settings.build(settings.merge(old, overrides, kept))
    changed = _changed_settings(old, settings.to_settings(config))

    fixed = [name for name in changed if name not in CHANGEABLE]
    if fixed:
        raise UserError(
            f"{folder}: a resumed run keeps its settings, so {fixed[0]} cannot change; start a "
            f"new run instead"
        )
    held.enter_context(run.locked())
    if changed:
        with disk_faults_told(folder):
            if run.config.train.decay_end and LENGTH.intersection(changed):
                config = _before_decay(run, config, reporter)
            run.change(config)
    return run, bool(changed)


def _before_decay(run: Run, config: Config, reporter: Reporter) -> Config:
    """Go back to where the learning rate began to fall; the config without that decision.

    The checkpoints come first: if this is cut short, the run still ends where it was to end.
    """
    step = go_back_to_decay(run, reporter.warn)
    reporter.say(f"continuing from step {step:,}, before the learning rate fell")
    return replace(config, train=replace(config.train, decay_start=0, decay_end=0))


def _changed_settings(old: Settings, new: Settings) -> list[str]:
    """Names of the settings that differ, like train.steps."""
    changed = []
    for section, values in new.items():
        for name, value in values.items():
            if value != old[section].get(name):
                changed.append(f"{section}.{name}")
    return changed
