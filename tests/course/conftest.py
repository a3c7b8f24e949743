"""The course material, row by row (docs/mission.md lists the rows). Tests are named after them.

Networks are compared in float64, with the weights of one carried over into the other, before
training steps and after.
"""

import pytest
import torch
from torch import nn


@pytest.fixture(autouse=True)
def _in_double():
    """New tensors and layers are float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def close():
    def compare(found, expected):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)

    return compare


@pytest.fixture
def steps():
    """Some steps of Adam on a loss: `steps(parameters, loss)`."""

    def train(module: nn.Module, loss, count=5, **options):
        optimizer = torch.optim.Adam(module.parameters(), lr=1e-3, **options)
        losses = []
        for _ in range(count):
            optimizer.zero_grad()
            value = loss()
            value.backward()
            optimizer.step()
            losses.append(value.item())
        return losses

    return train
