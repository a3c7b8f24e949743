"""Modules that threads share: what is made on the way is made once, or each thread uses its own."""

import copy
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from regard.nn.fast import readonly
from regard.nn.fast.readonly import ReadOnly
from regard.nn.positions import Sinusoidal, sinusoids


class Disturbed(Sinusoidal):
    """Another thread puts a table for three places there as soon as a longer one is made."""

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name == "table" and len(value) > 3:
            super().__setattr__("table", value[:3])


def test_waves_come_from_the_table_that_was_made_for_them():
    position, places = Disturbed(8), torch.arange(50)[None]
    x = torch.zeros(1, 50, 8)
    assert torch.equal(position.embed(x, places), sinusoids(places, 8))
    assert torch.equal(position.embed(x, places), sinusoids(places, 8))


def test_many_threads_ask_for_other_lengths():
    position = Sinusoidal(8)
    lengths = [1 + 37 * n % 199 for n in range(64)]
    gate = threading.Barrier(8)

    def ask(length):
        places = torch.arange(length)[None]
        return position.embed(torch.zeros(1, length, 8), places)

    def first(length):
        gate.wait()
        return ask(length)

    with ThreadPoolExecutor(8) as pool:
        waves = list(pool.map(first, lengths[:8])) + list(pool.map(ask, lengths[8:]))
    assert all(
        torch.equal(wave[0], sinusoids(torch.arange(n), 8))
        for wave, n in zip(waves, lengths, strict=True)
    )


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_a_matrix_is_packed_once(monkeypatch):
    """However many threads need it at the same moment."""
    packings = []
    pack = readonly.pack_weight

    def slowly(weight, rows):
        packings.append(rows)
        time.sleep(0.05)
        return pack(weight, rows)

    monkeypatch.setattr(readonly, "pack_weight", slowly)
    layer = torch.nn.Linear(48, 80)
    fast = ReadOnly(layer)
    xs = [torch.randn(rows, 48) for rows in (2, 5, 8, 13, 21, 34)]
    gate = threading.Barrier(len(xs))

    def ask(x):
        gate.wait()
        with torch.inference_mode():
            return fast(x)

    with ThreadPoolExecutor(len(xs)) as pool:
        answers = list(pool.map(ask, xs))
    assert packings == [
        readonly.FEW
    ]  # whoever came first, it is laid out for the same number of rows
    for x, answer in zip(xs, answers, strict=True):
        torch.testing.assert_close(answer, layer(x).detach())


@pytest.mark.parametrize(
    "way",
    [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))],
    ids=["copy", "pickle"],
)
def test_a_read_only_layer_can_be_copied_after_use(way):
    layer, x = torch.nn.Linear(48, 80), torch.randn(5, 48)
    fast = ReadOnly(layer)
    with torch.no_grad():
        answer = fast(x)
        assert torch.equal(way(fast)(x), answer)
        assert torch.equal(fast(x), answer)
