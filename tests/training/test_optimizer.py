"""Optimisers and their state as named tensors."""

import copy

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from regard.config import TrainConfig
from regard.storage import Corrupt
from regard.training.optimizer import make_optimizer, optimizer_tensors, restore_optimizer


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
        restore_optimizer(model, make_optimizer(model, TrainConfig()), {"nobody/exp_avg": torch.zeros(1)})


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
