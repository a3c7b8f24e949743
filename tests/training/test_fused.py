"""torch's private functions and their public twins: equal numbers, and training goes on where one
is missing.
"""

import ast
from pathlib import Path

import pytest
import torch
from torch import nn

import regard
from regard.config import TrainConfig
from regard.data.batches import collate
from regard.models import Sums
from regard.training.fast import fused
from regard.training.tensors import copy, divide, move_towards
from regard.training.trainer import Trainer

NAMES = list(fused.TRIALS)
BATCH = collate([([5, 6, 2], [1, 7, 2]), ([5, 2], [1, 8, 9, 2])])


@pytest.fixture
def without(monkeypatch):
    """without(*names): a torch that has no such functions."""

    def remove(*names):
        fused.find_private.cache_clear()
        for name in names:
            monkeypatch.delattr(torch, name)

    yield remove
    monkeypatch.undo()
    fused.find_private.cache_clear()


def tensors(seed):
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=random) for shape in [(3, 4), (5,), (), (0, 2)]]


CALLS = {
    "_foreach_div_": lambda x: divide(x, 2.75),
    "_foreach_lerp_": lambda x: move_towards(x, tensors(2), 0.3),
    "_foreach_copy_": lambda x: copy(x, tensors(2)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_private_function_and_its_public_twin(without, name):
    assert fused.find_private(name) is not None  # or this compares the twin with itself
    private = tensors(1)
    CALLS[name](private)
    without(name)
    assert fused.find_private(name) is None
    public = tensors(1)
    CALLS[name](public)
    for ours, theirs, before in zip(private, public, tensors(1), strict=True):
        torch.testing.assert_close(ours, theirs)
        assert not before.numel() or not torch.equal(ours, before)


@pytest.mark.parametrize("name", NAMES)
def test_other_arguments_or_numbers_are_noticed(monkeypatch, name):
    """A later torch may keep the name and change what it means."""

    def fewer_arguments(tensors):
        raise AssertionError("called with one argument")

    real = getattr(torch, name)

    def does_nothing(*args, **settings):
        return None

    def refuses(*args, **settings):
        raise RuntimeError(f"{name}: no such overload")

    for other in (fewer_arguments, does_nothing, refuses):
        fused.find_private.cache_clear()
        monkeypatch.setattr(torch, name, other)
        assert fused.find_private(name) is None
    monkeypatch.setattr(torch, name, real)
    fused.find_private.cache_clear()
    assert fused.find_private(name) is real


class Table(nn.Module):
    compiled = False

    def __init__(self):
        super().__init__()
        random = torch.Generator().manual_seed(3)
        # Matrices and vectors of the names that Muon tells apart.
        self.inner = nn.ParameterDict(
            {
                "weight": torch.randn(6, 4, generator=random),
                "bias": torch.randn(4, generator=random),
            }
        )

    def loss(self, batch, smoothing=0.0):
        loss = (self.inner.weight.square().sum() + self.inner.bias.pow(4).sum()) * batch.tokens
        return Sums(loss, loss.detach(), torch.tensor(1), batch.tokens)


def trained(**changes):
    c = TrainConfig(warmup=0, schedule="constant", precision="fp32", rate=0.01, clip=0.5, **changes)
    trainer = Trainer(Table(), lambda step: BATCH, c, steps=99, device=torch.device("cpu"))
    for _ in range(5):
        trainer.update([BATCH])
    return [*trainer.model.parameters(), *trainer.ema.values()]


KINDS = [{}, {"ema": 0.9}, {"optimizer": "sgd"}, {"optimizer": "muon"}, {"weight_decay": 0.1}]


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_training_without_any_of_them(without, changes):
    private = trained(**changes)
    without(*NAMES)
    public = trained(**changes)
    for ours, theirs in zip(private, public, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_nobody_else_in_training_calls_them():
    """One place to look at when torch changes."""
    folder = Path(regard.__file__).parent / "training"
    for path in folder.glob("*.py"):
        if path.name == "fused.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "torch"
            ):
                assert not node.attr.startswith("_"), f"{path.name}: torch.{node.attr}"
