"""Everything training needs to go on, as safetensors and JSON in one directory that is whole or
absent.
"""

import json
import shutil
from collections.abc import Callable

import torch
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from regard.errors import Failed
from regard.runs import storage
from regard.runs.run import Run
from regard.runs.weights import get_weights, set_weights, spread, whole
from regard.training.optimizer import optimizer_tensors, restore_optimizer
from regard.training.trainer import Trainer, Trouble


def save_checkpoint(run: Run, trainer: Trainer) -> str:
    """Write a checkpoint of the current step, point `best` at the best, and drop the old ones.

    Weights that are not finite are never written: training goes back to the last that were.
    """
    weights = get_weights(trainer.model)
    averaged = {key: whole(w).cpu() for key, w in trainer.ema.items()}
    tensors = optimizer_tensors(trainer.model, trainer.optimizer)
    name = f"step-{trainer.progress.step:08d}"
    if not all(bool(w.isfinite().all()) for w in weights.values()):
        raise Trouble
    if trainer.world.rank == 0:
        files = {
            "model.safetensors": tensors_to_bytes(weights),
            "optimizer.safetensors": tensors_to_bytes(tensors),
        }
        if trainer.ema:  # the average is what is used, the weights are what training goes on from
            files["raw.safetensors"] = files["model.safetensors"]
            files["model.safetensors"] = tensors_to_bytes(averaged)
        files["progress.json"] = json.dumps(trainer.to_json()).encode()
        storage.write_directory(run.path / "checkpoints" / name, files)
        _point(run, trainer, name)
        # Those of later steps than this one were damaged, or training would have gone on from them.
        regular = [other for other in _regular(run, trainer) if other <= name][
            -max(trainer.c.keep, trainer.c.average, 1) :
        ]
        for other in run.checkpoints():
            if other not in (*regular, name, trainer.progress.best_name):
                shutil.rmtree(run.path / "checkpoints" / other)
    return name


def _point(run: Run, trainer: Trainer, name: str) -> None:
    """`best` is a text file with a checkpoint's name: the best; if that was lost with a damaged
    checkpoint, this one.
    """
    best = trainer.progress.best_name
    storage.write_text(run.path / "best", (best if best in run.checkpoints() else name) + "\n")


def _regular(run: Run, trainer: Trainer) -> list[str]:
    """Checkpoints that an uninterrupted run would have too; those of an interruption do not count
    for averaging.
    """
    steps = {name: int(name.removeprefix("step-")) for name in run.checkpoints()}
    return [
        name
        for name, step in steps.items()
        if step % trainer.c.save_every == 0 or step == trainer.steps
    ]


def load_checkpoint(run: Run, trainer: Trainer, warn: Callable[[str], None]) -> bool:
    """Go on from the newest checkpoint that is whole. False: there is none, start from the
    beginning.
    """
    names, damaged = run.checkpoints(), []
    for name in reversed(names):
        try:
            files = run.checkpoint(name)
            break
        except storage.Corrupt as error:
            warn(f"{error}; the checkpoint before it is used")
            damaged.append(name)
    else:
        if names:
            raise Failed(
                f"{run.path}: none of its {len(names)} checkpoints is whole; nothing was deleted"
            )
        if trainer.world.rank == 0:
            run.rewind_log(0)
        return False
    set_weights(
        trainer.model,
        tensors_from_bytes(files.get("raw.safetensors", files["model.safetensors"])),
        name,
    )
    # In an order that is the same in every process, which safetensors does not promise.
    for key, w in (
        sorted(tensors_from_bytes(files["model.safetensors"]).items()) if trainer.ema else ()
    ):
        trainer.ema[key].copy_(spread(w, trainer.ema[key]))
    state = dict(sorted(tensors_from_bytes(files["optimizer.safetensors"]).items()))
    restore_optimizer(trainer.model, trainer.optimizer, state)
    trainer.from_json(json.loads(files["progress.json"]))
    p, c = (
        trainer.progress,
        trainer.c,
    )  # a run made longer is not finished, though its checkpoint was
    p.finished = (
        p.step >= trainer.steps or 0 < c.patience <= p.waited or 0 < 60 * c.minutes <= p.seconds
    )
    if trainer.world.rank == 0:
        _point(run, trainer, name)
        run.rewind_log(p.step)
        if damaged:
            run.log("fallback", step=p.step, damaged=damaged)
    trainer.world.wait()  # until all have read it
    return True


def average_checkpoints(run: Run, trainer: Trainer) -> dict[str, Tensor]:
    """The mean of the weights of the last train.average checkpoints (Vaswani et al. 2017, 6.1)."""
    names = _regular(run, trainer)[-trainer.c.average :]
    total: dict[str, Tensor] = {}
    for name in names:
        for key, w in tensors_from_bytes(run.checkpoint(name)["model.safetensors"]).items():
            total[key] = total[key] + w.double() if key in total else w.double()
    return {key: (w / len(names)).to(torch.float32) for key, w in total.items()}


def save_average(run: Run, weights: dict[str, Tensor]) -> None:
    """A checkpoint to use, not to go on from; it is the best."""
    storage.write_directory(
        run.path / "checkpoints" / "averaged", {"model.safetensors": tensors_to_bytes(weights)}
    )
    storage.write_text(run.path / "best", "averaged\n")
