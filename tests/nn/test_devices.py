"""Names of devices: one function for every setting and option that takes one."""

import pytest
import torch

from regard.errors import UserError
from regard.nn.devices import float_for_sums, pick_device, seed_device


@pytest.fixture
def machine(monkeypatch):
    """machine(gpus, apple): what torch sees from now on."""

    def build(gpus=0, *, apple=False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: apple)

    return build


@pytest.mark.parametrize(
    ("name", "gpus", "apple", "device"),
    [
        ("auto", 0, False, "cpu"),
        ("auto", 1, False, "cuda"),
        ("auto", 0, True, "cpu"),
        ("cpu", 2, True, "cpu"),
        ("cuda", 2, False, "cuda"),
        ("cuda:0", 1, False, "cuda:0"),
        ("cuda:1", 2, False, "cuda:1"),
        ("mps", 0, True, "mps"),
    ],
)
def test_names(machine, name, gpus, apple, device):
    machine(gpus, apple=apple)
    assert pick_device(name) == torch.device(device)


@pytest.mark.parametrize(
    ("name", "gpus", "message"),
    [
        ("cuda", 0, r"train.device=cuda, but PyTorch finds no CUDA GPU; use train.device=cpu"),
        ("cuda:1", 0, r"train.device=cuda:1, but PyTorch finds no CUDA GPU"),
        ("cuda:1", 1, r"train.device=cuda:1, but PyTorch finds only 1 GPU: cuda:0"),
        ("cuda:7", 4, r"train.device=cuda:7, but PyTorch finds only 4 GPUs: cuda:0 to cuda:3"),
        ("mps", 1, r"train.device=mps, but PyTorch finds no Apple GPU; use train.device=cpu"),
        ("cdua", 1, r"train.device=cdua: no such device; did you mean cuda\?"),
        ("CPU", 1, r"train.device=CPU: no such device; did you mean cpu\?"),
        ("cuda:", 1, r"train.device=cuda:: no such device; did you mean cuda"),
        ("cuda:x", 1, r"train.device=cuda:x: no such device; did you mean cuda"),
        ("cuda1", 1, r"train.device=cuda1: no such device; did you mean cuda"),
        ("", 1, r"train.device=: no such device \(available: auto, cpu, cuda, cuda:0, mps\)"),
    ],
)
def test_what_is_not_here_is_told(machine, name, gpus, message):
    machine(gpus)
    with pytest.raises(UserError, match=message):
        pick_device(name)


def test_the_message_names_what_was_set(machine):
    machine(0)
    with pytest.raises(
        UserError, match=r"^--device=cuda, but PyTorch finds no CUDA GPU; use --device=cpu$"
    ):
        pick_device("cuda", "--device")


def test_a_seed_says_what_is_drawn():
    seed_device(torch.device("cpu"), 5)
    first = torch.rand(4)
    seed_device(torch.device("cpu"), 5)
    assert torch.equal(torch.rand(4), first)


@pytest.mark.gpu
def test_a_seed_of_a_named_gpu():
    device = torch.device("cuda", torch.cuda.device_count() - 1)
    seed_device(device, 5)
    first = torch.rand(4, device=device)
    seed_device(device, 5)
    assert torch.equal(torch.rand(4, device=device), first)


def test_sums_are_wide_where_the_device_can():
    assert (
        float_for_sums(torch.device("cuda")) == float_for_sums(torch.device("cpu")) == torch.float64
    )
    assert float_for_sums(torch.device("mps")) == torch.float32
