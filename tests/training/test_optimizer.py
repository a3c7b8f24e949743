"""Optimisers and their state as named tensors."""

import copy

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from regard.config import TrainConfig, TransformerConfig
from regard.data.batches import collate
from regard.models import build_model
from regard.runs.storage import Corrupt
from regard.training.optimizer import (
    make_optimizer,
    optimizer_tensors,
    orthogonal,
    restore_optimizer,
)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))


def steps(model, optimizer, numbers):
    for number in numbers:
        optimizer.zero_grad()
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(number))
        model(x).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("kind", ["adamw", "adam", "sgd"])
def test_state_round_trip(kind):
    config = TrainConfig(optimizer=kind, rate=0.01, weight_decay=0.1)
    model = network()
    optimizer = make_optimizer(model, config)
    steps(model, optimizer, range(3))
    written = load(save(optimizer_tensors(model, optimizer)))
    other = copy.deepcopy(model)
    restored = make_optimizer(other, config)
    restore_optimizer(other, restored, written)
    steps(model, optimizer, range(3, 6))
    steps(other, restored, range(3, 6))
    for ours, theirs in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", ["adamw", "adam", "sgd"])
def test_before_the_first_step_there_is_no_state(kind):
    model = network()
    assert optimizer_tensors(model, make_optimizer(model, TrainConfig(optimizer=kind))) == {}


def test_state_of_another_model_is_refused():
    model = network()
    with pytest.raises(Corrupt, match="nobody"):
        restore_optimizer(
            model, make_optimizer(model, TrainConfig()), {"nobody/exp_avg": torch.zeros(1)}
        )


def test_decay_acts_on_matrices_only():
    model = network()
    before = {name: p.clone() for name, p in model.named_parameters()}
    optimizer = make_optimizer(model, TrainConfig(optimizer="adamw", rate=0.1, weight_decay=0.5))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        factor = 0.95 if parameter.dim() > 1 else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * factor)


def test_orthogonal_has_singular_values_of_about_one():
    for shape in ((3, 48, 16), (2, 8, 40), (1, 16, 16)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(shape)))
        assert float(values.min()) > 0.3
        assert float(values.max()) < 1.3


def muon(rate=0.01):
    torch.manual_seed(0)
    model = build_model(
        TransformerConfig(width=16, ffn=24, heads=2, encoder_layers=1, decoder_layers=1), 30, 30
    )
    return model, make_optimizer(model, TrainConfig(optimizer="muon", rate=rate, weight_decay=0.1))


def learn(model, optimizer, count):
    batch = collate([([20, 21, 2], [1, 22, 23, 2]), ([24, 2], [1, 25, 2])])
    for _ in range(count):
        optimizer.zero_grad()
        loss = model.eval().loss(batch).loss
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def test_muon_learns_and_goes_on_where_it_stood():
    straight, optimizer = muon()
    first = learn(straight, optimizer, 1)
    assert learn(straight, optimizer, 9) < 0.5 * first
    model, optimizer = muon()
    learn(model, optimizer, 4)
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    tensors = optimizer_tensors(model, optimizer)
    assert any(name.endswith("/momentum") for name in tensors)
    assert any(name.endswith("/exp_avg") for name in tensors)
    other, fresh = muon()
    with torch.no_grad():
        for name, p in other.named_parameters():
            p.copy_(weights[name])
    restore_optimizer(other, fresh, tensors)
    learn(other, fresh, 6)
    for ours, theirs in zip(straight.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_muon_takes_no_step_that_is_refused():
    model, optimizer = muon()
    learn(model, optimizer, 2)
    before = {
        **optimizer_tensors(model, optimizer),
        **{name: p.detach().clone() for name, p in model.named_parameters()},
    }
    before = {name: x.clone() for name, x in before.items()}
    optimizer.found_inf = torch.ones(())
    for p in model.parameters():
        p.grad = torch.full_like(p, torch.nan)
    optimizer.step()
    after = {**optimizer_tensors(model, optimizer), **dict(model.named_parameters())}
    assert all(torch.equal(x, after[name]) for name, x in before.items())


class Odd(nn.Module):
    """A matrix without a layer, a readout, an output layer, and a layer that is never used."""

    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.eye(4))
        self.readout = nn.Linear(4, 4)
        self.out = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 3)


def test_muon_takes_every_matrix_but_embeddings_and_the_output():
    model = Odd()
    optimizer = make_optimizer(model, TrainConfig(optimizer="muon", rate=0.01))
    chosen = [id(p) for p in optimizer.matrices["params"]]
    expected = [model.matrix, model.readout.weight, model.unused.weight]
    assert sorted(chosen) == sorted(id(p) for p in expected)

    before = model.unused.weight.detach().clone()
    model.out(model.readout(model.matrix)).square().sum().backward()
    optimizer.step()
    assert torch.equal(model.unused.weight, before)
    assert not torch.equal(model.matrix, torch.eye(4))
