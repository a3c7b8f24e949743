"""Checks of a run: its files, its data and its model. Nothing in the folder is changed."""

from pathlib import Path

import torch

from regard.data.batches import Batch
from regard.inspection.doctor import files, model
from regard.inspection.doctor.files import PROOFS, Case, Row, proof, prove
from regard.models import Seq2Seq
from regard.models.parts import Parts
from regard.nn.devices import pick_device
from regard.runs import storage
from regard.runs.run import Run

__all__ = ["PROOFS", "Row", "doctor", "examine", "files", "model", "proof"]


def doctor(path: str | Path, parts: Parts = None, device: str = "auto") -> list[Row]:
    """Check a run and return one row per check.

    parts: your own classes, where the config says custom:Name. device: where the model runs; `auto`
    uses a GPU if there is one. Checks that results agree bit for bit always run on the CPU.
    """
    path = Path(path)
    if not (path / storage.MANIFEST).exists():
        Run.open(path)  # says why it is no run
    threads = torch.get_num_threads()
    try:
        return prove(Case(path, parts, device=pick_device(device, "device")), PROOFS)
    finally:
        torch.set_num_threads(threads)  # some train as the run does


def examine(patient: Seq2Seq, batch: Batch) -> list[Row]:
    """Check a model on these pairs, without a run."""
    proofs_of_models = {
        name: entry for name, entry in PROOFS.items() if entry.find.__module__ == model.__name__
    }
    was_training = patient.training
    case = Case(Path(), model=patient.eval(), batch=batch)
    rows = prove(case, proofs_of_models)
    patient.train(was_training)
    return rows
