"""What this machine can compute on: the names of devices, and what each of them lacks."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from regard.errors import UserError, counted, nearest

NAMES = ("auto", "cpu", "cuda", "cuda:0", "mps")


def pick_device(name: str, setting: str = "train.device") -> torch.device:
    """The device called `name`: auto, cpu, cuda, cuda:N or mps. One that is not here is refused.

    auto takes the first CUDA GPU if there is one, else the CPU. Apple's GPU (mps) is used only if
    it is asked for by name: no machine that has one has tested this package yet. `setting` is what
    the person set, for the message.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cpu":
        return torch.device("cpu")
    if name == "mps":
        if not torch.backends.mps.is_available():
            raise UserError(f"{setting}=mps, but PyTorch finds no Apple GPU; use {setting}=cpu")
        return torch.device("mps")

    cuda = re.fullmatch(r"cuda(?::([0-9]+))?", name)
    if cuda is None:
        raise UserError(f"{setting}={name}: no such device{nearest(name.lower(), NAMES)}")
    if not torch.cuda.is_available():
        raise UserError(f"{setting}={name}, but PyTorch finds no CUDA GPU; use {setting}=cpu")
    if cuda[1] is None:
        return torch.device("cuda")

    number = int(cuda[1])
    count = torch.cuda.device_count()
    if number >= count:
        there = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise UserError(
            f"{setting}={name}, but PyTorch finds only {counted(count, 'GPU')}: {there}"
        )
    return torch.device("cuda", number)


@contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """Make `device` the current GPU, which kernels and graphs that name none run on."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            yield
    else:
        yield


def float_for_sums(device: torch.device) -> torch.dtype:
    """The widest float that a device adds up in: float64, or float32 on Apple's GPUs."""
    return torch.float32 if device.type == "mps" else torch.float64


def seed_device(device: torch.device, seed: int) -> None:
    """Seed the random numbers of this device only.

    torch.manual_seed would seed every kind of device, and takes a seventh of a small step.
    """
    if device.type == "cuda":
        with on_device(device):
            torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@contextmanager
def state_kept(device: torch.device) -> Iterator[None]:
    """Leave torch's random numbers and its number of threads as they were before."""
    threads = torch.get_num_threads()
    apple = torch.mps.get_rng_state() if device.type == "mps" else None
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        torch.set_num_threads(threads)
        if apple is not None:
            torch.mps.set_rng_state(apple)


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on a device; sys.maxsize if the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    return min(linux_bytes("meminfo", "MemAvailable", sys.maxsize), _container_memory())


def is_out_of_memory(error: Exception) -> bool:
    """Whether torch says that there is no memory left, on a GPU or a CPU."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def linux_bytes(path: str, name: str, otherwise: int) -> int:
    """Bytes, as Linux gives them in a file below /proc."""
    file = Path("/proc", path)
    if not file.exists():
        return otherwise
    for line in file.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return otherwise


def _container_memory() -> int:
    """Bytes that the container of this process may hold (cgroup v2); sys.maxsize: no limit."""
    file = Path("/sys/fs/cgroup/memory.max")
    if not file.is_file():
        return sys.maxsize
    words = file.read_text().strip()
    return int(words) if words.isdigit() else sys.maxsize


@cache
def cpu_has_bf16() -> bool:
    """Whether this CPU runs torch's bfloat16 products.

    It is tried in another process: some machines announce bfloat16 and then die of an illegal
    instruction.
    """
    code = (
        "import torch; "
        "a = torch.ones(64, 64, dtype=torch.bfloat16, requires_grad=True); "
        "(a @ a).sum().backward()"
    )
    trial = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    return trial.returncode == 0
