"""E. RNNs, attention, Transformers: the lecture notes."""

import numpy as np
import torch

from regard.nn import Recurrent
from regard.records.attention import AttentionRecord


def test_e2_the_gradient_of_a_linear_rnn_is_a_power_of_its_matrix(close):
    cells = Recurrent("linear", 3, 4)
    x = torch.zeros(1, 6, 3)
    start = torch.randn(1, 1, 4, requires_grad=True)
    _, (end,) = cells(x, hidden=(start,))
    matrix = cells.torch.weight_hh_l0
    power = torch.linalg.matrix_power(matrix, 6)
    for i in range(4):
        (gradient,) = torch.autograd.grad(end[0, 0, i], start, retain_graph=True)
        close(gradient[0, 0], power[i])


def test_e2_it_vanishes_and_explodes_by_its_largest_eigenvalue():
    for factor, expected in ((0.5, 0.5**20), (2.0, 2.0**20)):
        cells = Recurrent("linear", 3, 4)  # orthogonal: all eigenvalues have the size 1
        with torch.no_grad():
            cells.torch.weight_hh_l0.mul_(factor)
        start = torch.randn(1, 1, 4, requires_grad=True)
        _, (end,) = cells(torch.zeros(1, 20, 3), hidden=(start,))
        (gradient,) = torch.autograd.grad(end[0, 0, 0], start)
        assert abs(gradient.norm().item() / expected - 1) < 1e-6


def test_e18_hard_alignment_read_off_attention():
    weights = np.array([[0.1, 0.8, 0.1], [0.6, 0.3, 0.1], [0.0, 0.2, 0.8]], np.float32)
    one_head = weights[None, None]  # (L, H, T, S)
    record = AttentionRecord(["je", "suis", "<eos>"], ["am", "I", "<eos>"], {"cross": one_head})
    pairs = [(record.target[t], record.source[s]) for t, s in record.alignment()]
    assert pairs == [("am", "suis"), ("I", "je"), ("<eos>", "<eos>")]

    other_head = np.eye(3, dtype=np.float32)[None]  # (1, T, S)
    both = np.stack((weights, other_head[0]))[None]  # (1, 2, T, S)
    record = AttentionRecord(record.source, record.target, {"cross": both})
    assert record.alignment(head=1) == [(0, 0), (1, 1), (2, 2)]
