"""Everything training needs to go on: safetensors and JSON in a directory, whole or absent."""

import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from regard.errors import Failed, UserError
from regard.files import remove, remove_whole
from regard.runs import storage
from regard.runs.run import SHORTER, Run
from regard.runs.weights import check_weights, get_weights, set_weights, spread, whole
from regard.training.optimizer import optimizer_tensors, restore_optimizer
from regard.training.saved import read_progress
from regard.training.trainer import Trainer, Trouble


def save_checkpoint(run: Run, trainer: Trainer) -> str:
    """Write a checkpoint of the current step, point `best` at the best, and drop the old ones.

    Weights that are not finite are never written: training goes back to the last that were.
    """
    # All processes take part, for each may hold a piece of every tensor; the first one writes.
    weights = get_weights(trainer.model)
    averaged = {key: whole(weight).cpu() for key, weight in trainer.ema.items()}
    state = optimizer_tensors(trainer.model, trainer.optimizer)
    name = _name(trainer.progress.step)
    if not all(bool(weight.isfinite().all()) for weight in weights.values()):
        raise Trouble
    if trainer.world.rank != 0:
        return name

    files = {
        "model.safetensors": tensors_to_bytes(weights),
        "optimizer.safetensors": tensors_to_bytes(state),
    }
    if trainer.ema:  # the average is what is used, the weights are what training goes on from
        files["raw.safetensors"] = files["model.safetensors"]
        files["model.safetensors"] = tensors_to_bytes(averaged)
    files["progress.json"] = json.dumps(trainer.to_json()).encode()
    storage.write_directory(run.path / "checkpoints" / name, files)
    _point(run, trainer, name)
    _drop_old(run, trainer, name)
    return name


def _name(step: int) -> str:
    """The name of the checkpoint of a step."""
    return f"step-{step:08d}"


def _point(run: Run, trainer: Trainer, name: str) -> None:
    """Write the best checkpoint's name into `best`; if that one was damaged and lost, this name.

    Where training was made longer, what the shorter one had reached stays until it is surpassed.
    """
    shorter = run.path / "checkpoints" / SHORTER
    if shorter.exists() and best_of_shorter(run) <= trainer.progress.best:
        run.best = SHORTER
        return

    best = trainer.progress.best_name
    if best not in run.checkpoints():
        best = name
    run.best = best
    if shorter.exists():
        with suppress(OSError):  # a reader has it open on NFS
            remove(shorter)


def best_of_shorter(run: Run) -> float:
    """What the best weights of a shorter training reached on dev, smaller is better; inf: none."""
    value = run.shorter().get("best", math.inf)
    return float(value) if isinstance(value, int | float) else math.inf


def go_back_to_decay(run: Run, warn: Callable[[str], None]) -> int:
    """Back to where the learning rate began to fall, so that training can be made longer.

    What was trained since then is deleted, but for its best weights, which stay the run's best
    until others are better. Returns the step that training goes on from.
    """
    start = _name(run.config.train.decay_start)
    later = [name for name in run.checkpoints() if name > start]
    newest, _ = _newest(run, warn)
    earlier, _ = _newest(run, warn, until=start)
    if newest is None:
        return 0
    if earlier is None:
        raise UserError(
            f"{run.path}: no intact checkpoint from before the learning rate began to fall (at "
            f"step {run.config.train.decay_start:,}), so this training cannot be made longer: "
            f"start a new run, or fine-tune this one with --from {run.path}"
        )

    if newest.progress["best_name"] in later:
        _keep_shorter(run, newest.progress)
    # Dev is judged anew: else what ended the shorter training would end the longer one at once.
    progress = earlier.progress | {"waited": 0, "finished": False}
    files = earlier.files | {"progress.json": json.dumps(progress).encode()}
    storage.write_directory(run.path / "checkpoints" / earlier.name, files)
    for name in reversed(later):
        remove_whole(run.path / "checkpoints" / name)
    return int(progress["step"])


def _keep_shorter(run: Run, progress: dict[str, Any]) -> None:
    """Keep the best weights of a training that is made longer, unless older ones are better."""
    if best_of_shorter(run) <= progress["best"]:
        return
    weights = run.checkpoint(progress["best_name"])["model.safetensors"]
    notes = json.dumps({"best": progress["best"], "look": run.best_look()}).encode()
    folder = run.path / "checkpoints" / SHORTER
    storage.write_directory(folder, {"model.safetensors": weights, "progress.json": notes})
    run.best = SHORTER


def count_kept(trainer: Trainer) -> int:
    """How many checkpoints there will be when every step is done, not counting the best."""
    regular = [*range(0, trainer.steps, trainer.config.save_every)[1:], trainer.steps]
    return len({*regular[-_most_kept(trainer) :], *trainer.milestones})


def _most_kept(trainer: Trainer) -> int:
    """How many of the regular checkpoints are kept at most."""
    return max(trainer.config.keep, trainer.config.average, 1)


def _drop_old(run: Run, trainer: Trainer, newest: str) -> None:
    """Delete all checkpoints but the last regular ones, the milestones, the newest and the best."""
    count = _most_kept(trainer)
    # Those of later steps than this one were damaged, or training would have gone on from them.
    regular = [name for name in _regular(run, trainer) if name <= newest]
    milestones = [_name(step) for step in trainer.milestones]
    decay = _name(trainer.config.decay_start)  # from here training can be made longer
    kept = {*regular[-count:], *milestones, decay, newest, trainer.progress.best_name}
    for name in run.checkpoints():
        if name not in kept:
            with suppress(OSError):  # a reader has it open on NFS: it goes after the next save
                remove(run.path / "checkpoints" / name)


def _regular(run: Run, trainer: Trainer) -> list[str]:
    """Checkpoints that an uninterrupted run would have too.

    Those of an interruption do not count for averaging.
    """
    regular = []
    for name in run.checkpoints():
        step = int(name.removeprefix("step-"))
        if step % trainer.config.save_every == 0 or step == trainer.steps:
            regular.append(name)
    return regular


def find_best(run: Run, trainer: Trainer) -> int:
    """The step of the best checkpoint, if training can go on from it; 0: it cannot."""
    step = 0
    name = trainer.progress.best_name
    if trainer.world.rank == 0 and name in run.checkpoints():
        with suppress(storage.Corrupt):
            step = int(_read(run, name).progress["step"])
    return int(trainer.world.tell(str(step)))


def load_checkpoint(run: Run, trainer: Trainer, warn: Callable[[str], None]) -> bool:
    """Go on from the newest checkpoint that is whole.

    Those of steps that training went back from are not looked at, and deleted: see `Trainer.fit`.
    Returns False if there is none: training starts from the beginning.
    """
    left_behind = _left_behind(run, trainer)
    newest, damaged = _newest(run, warn, without=left_behind)
    if newest is None:
        if trainer.world.rank == 0:
            run.rewind_log(0)
        return False

    files = newest.files
    averaged = tensors_from_bytes(files["model.safetensors"])
    raw = averaged
    if "raw.safetensors" in files:
        raw = tensors_from_bytes(files["raw.safetensors"])
    set_weights(trainer.model, raw, f"{run.path}, {newest.name}")
    if trainer.ema:
        check_weights(trainer.ema, averaged, f"{run.path}, {newest.name}")
    # In an order that is the same in every process, which safetensors does not promise.
    for key in sorted(trainer.ema):
        trainer.ema[key].copy_(spread(averaged[key], trainer.ema[key]))
    state = dict(sorted(tensors_from_bytes(files["optimizer.safetensors"]).items()))
    restore_optimizer(trainer.model, trainer.optimizer, state)
    trainer.from_json(newest.progress)
    trainer.progress.finished = trainer.is_over()

    trainer.world.wait()  # until all have read it
    try:
        if trainer.world.rank == 0:
            _drop(run, left_behind)
            _warn_of_best(run, warn)
            _point(run, trainer, newest.name)
            run.rewind_log(trainer.progress.step)
            if damaged:
                run.log("fallback", step=trainer.progress.step, damaged=damaged)
    finally:
        trainer.world.wait()  # until all is as they found it
    return True


def _left_behind(run: Run, trainer: Trainer) -> list[str]:
    """Checkpoints of steps after the beginning of the decay that are not part of this decay.

    Training went back from them to where dev was best.
    """
    if not trainer.config.decay_end:
        return []
    names = []
    for name in run.checkpoints():
        step = int(name.removeprefix("step-"))
        if step <= trainer.config.decay_start:
            continue
        try:
            decay_end = _read(run, name).progress.get("decay_end", trainer.decay_of(step))
        except storage.Corrupt:  # whoever looks for the newest says so
            continue
        if decay_end != trainer.decay_of(step):
            names.append(name)
    return names


def _drop(run: Run, names: Sequence[str]) -> None:
    """Delete checkpoints, the newest first, each at once: nobody ever sees a part of one."""
    for name in reversed(names):
        with suppress(OSError):  # a reader has it open on NFS: it is left behind once more
            remove_whole(run.path / "checkpoints" / name)


def _warn_of_best(run: Run, warn: Callable[[str], None]) -> None:
    """Say that `best` is damaged, before it is written anew."""
    try:
        _ = run.best
    except storage.Corrupt as error:
        warn(f"{str(error).partition(';')[0]}; it is written anew")
    except UserError:  # there is none yet
        return


class _Whole(NamedTuple):
    """A checkpoint that training can go on from."""

    name: str
    files: dict[str, bytes]
    progress: dict[str, Any]


def _read(run: Run, name: str) -> _Whole:
    """Read a checkpoint. Raises Corrupt if training cannot go on from it."""
    files = run.checkpoint(name)
    for file in ("optimizer.safetensors", "progress.json"):
        if file not in files:
            raise storage.Corrupt(f"{run.path}, {name}: no {file}")
    try:
        progress = read_progress(files["progress.json"], int(name.removeprefix("step-")))
    except ValueError as error:
        raise storage.Corrupt(f"{run.path}, {name}: progress.json is damaged ({error})") from None
    return _Whole(name, files, progress)


def _newest(
    run: Run, warn: Callable[[str], None], until: str = "", without: Sequence[str] = ()
) -> tuple[_Whole | None, list[str]]:
    """The newest checkpoint that is whole, and the damaged ones after it.

    until: the name of the last one that may be; all, if empty. without: names that do not count.
    """
    names = [name for name in run.checkpoints() if not until or name <= until]
    names = [name for name in names if name not in without]
    damaged: list[str] = []
    for name in reversed(names):
        try:
            return _read(run, name), damaged
        except storage.Corrupt as error:
            warn(f"{error}; using the previous checkpoint")
            damaged.append(name)
    if names and not until:
        raise Failed(
            f"{run.path}: no intact checkpoint ({len(names)} damaged); nothing was "
            f"deleted: restore one from a copy, or train again"
        )
    return None, damaged


def average_checkpoints(run: Run, trainer: Trainer) -> dict[str, Tensor]:
    """The mean of the weights of the last train.average checkpoints (Vaswani et al. 2017, 6.1)."""
    names = _regular(run, trainer)[-trainer.config.average :]
    total: dict[str, Tensor] = {}
    for name in names:
        weights = tensors_from_bytes(run.checkpoint(name)["model.safetensors"])
        for key, weight in weights.items():
            total[key] = total[key] + weight.double() if key in total else weight.double()
    return {key: (weight / len(names)).to(torch.float32) for key, weight in total.items()}


def save_average(run: Run, weights: dict[str, Tensor]) -> None:
    """A checkpoint to use, not to go on from; it is the best."""
    storage.write_directory(
        run.path / "checkpoints" / "averaged", {"model.safetensors": tensors_to_bytes(weights)}
    )
    run.best = "averaged"
