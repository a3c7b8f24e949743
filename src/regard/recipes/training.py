"""Data -> a trained run."""

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from regard import config as settings
from regard.config import Config, Settings
from regard.data.splits import named_data
from regard.errors import UserError
from regard.nn.devices import pick_device, state_kept
from regard.presets import preset as read_preset
from regard.recipes.fitting import fit
from regard.recipes.preparing import prepare
from regard.recipes.reporter import Reporter
from regard.runs import storage
from regard.runs.claim import Claim, Taken, newest_numbered
from regard.runs.run import Parts, Run
from regard.training.parallel import World

CHANGEABLE = {
    f"train.{n}"
    for n in (
        "steps",
        "epochs",
        "minutes",
        "patience",
        "log_every",
        "keep",
        "average",
        "tensorboard",
    )
}
"""What a resumed run may change; anything else would make it another run."""


def train(
    data: str | Path | Iterable[tuple[str, str | Sequence[str]]] | Config,
    /,
    *,
    preset: str | None = None,
    config: str | Path | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    start_from: str | Path | None = None,
    parts: Parts = None,
    reporter: Reporter | None = None,
    **overrides: Mapping[str, Any],
) -> Run:
    """Train a model on `data` (a task, corpus, file, folder, or any iterable of pairs) and return
    its run.

    Settings come from the preset, over it the TOML file `config`, over that keyword sections:
    train={"steps": 100}.
    """
    reporter = reporter or Reporter()
    given: Settings = settings.to_settings(data) if isinstance(data, Config) else {}
    data = named_data(data) if isinstance(data, str | Path) else data
    name = (
        str(given["data"]["path"])
        if isinstance(data, Config)
        else str(data)
        if isinstance(data, str | Path)
        else "pairs"
    )
    pairs = None if isinstance(data, str | Path | Config) else data
    start = {"train": {"start_from": str(start_from)}} if start_from else {}
    layers = [
        read_preset(preset) if preset else {},
        settings.read_toml(Path(config)) if config else {},
    ]
    given = settings.merge(
        given, *layers, {"data": {"path": name if pairs is None else ""}}, start, overrides
    )
    planned = not (preset or config or isinstance(data, Config))
    first = Path("runs") / (Path(name).name.split(".")[0] or "pairs")
    folder = Path(out) if out else newest_numbered(first) if resume else None
    exists = folder is not None and folder.exists()
    device = str(given.get("train", {}).get("device", "auto"))
    if folder is not None and exists and resume:
        device = Run.open(folder).config.train.device
    with World.join(pick_device(device)) as world, state_kept(world.device):
        if world.rank == 0:  # one prepares, the others wait and then open what it made
            if folder is not None and exists:
                run, longer = _resumed(folder, overrides, resume)
            else:
                settings.build(given)  # a misspelt setting is told before anything is read
                claim = Claim.take_next(first) if folder is None else Claim.take(folder)
                with claim:
                    run = prepare(claim, given, pairs, parts, planned=planned, reporter=reporter)
                longer = False
            world.tell(f"{int(longer)} {run.path.resolve()}")
        else:
            word, _, path = world.tell("").partition(" ")
            run, longer = Run.open(path), word == "1"
        voice = reporter if world.rank == 0 else Reporter(io.StringIO(), quiet=True)
        return fit(run, parts=parts, reporter=voice, longer=longer, world=world)


def _resumed(
    folder: Path, overrides: Mapping[str, Mapping[str, Any]], resume: bool
) -> tuple[Run, bool]:
    """A run that exists, and whether it goes on beyond its old end."""
    if not resume:
        raise Taken(f"{folder} exists: --resume goes on with it, --out names another folder")
    run = Run.open(folder)
    old = settings.to_settings(run.config)
    new = settings.to_settings(settings.build(settings.merge(old, overrides)))
    changed = [
        f"{section}.{name}"
        for section in new
        for name in new[section]
        if new[section][name] != old[section].get(name)
    ]
    if fixed := [name for name in changed if name not in CHANGEABLE]:
        raise UserError(
            f"{folder}: a resumed run keeps its settings, so {fixed[0]} cannot change; start a "
            f"new run instead"
        )
    if changed:
        with run.locked(), storage.disk_faults_told(folder):  # not under the hands of a training
            run.change(settings.build(new))
    return run, bool(changed)
