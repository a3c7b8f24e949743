"""Proofs on somebody's own run, its files and its model. Nothing in the run's folder is changed."""

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
    """Every proof, in order. parts: your own classes, where the config says custom:Name.

    device: where the model is examined; auto takes a GPU if there is one. Proofs that two
    computations agree bit for bit stay on the CPU.
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
    """The proofs that need no run: of a model at hand, on these pairs."""
    proofs_of_models = {
        name: entry for name, entry in PROOFS.items() if entry.find.__module__ == model.__name__
    }
    was_training = patient.training
    case = Case(Path(), model=patient.eval(), batch=batch)
    rows = prove(case, proofs_of_models)
    patient.train(was_training)
    return rows
