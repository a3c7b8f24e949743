"""C. Attention in parts, as formulas: C1 to C5, C8 to C10, C12, C13."""

import math

import pytest
import torch
from torch import nn

from regard.models import copy_weights
from regard.nn import Attention, SelfAttention, attend, masked_softmax, sinusoids, watch
from regard.pictures.heatmaps import head_grid, heatmap


def softmax(values):
    total = sum(math.exp(value) for value in values)
    return [math.exp(value) / total for value in values]


def test_c1_masked_softmax_with_a_length_for_each_sentence(close):
    """Lengths (B,): what lies beyond has weight exactly 0, the rest is a softmax of its own."""
    scores = torch.rand(2, 2, 4)
    weights = masked_softmax(scores, torch.tensor([2, 3]))
    for batch, length in enumerate([2, 3]):
        for query in range(2):
            row = weights[batch, query]
            assert row[length:].eq(0).all()
            close(row[:length], torch.tensor(softmax(scores[batch, query, :length].tolist())))


def test_c2_masked_softmax_with_a_length_for_each_query(close):
    """Lengths (B, T); a query of length 0 may look at nothing, and gets zeros."""
    scores = torch.rand(2, 2, 4)
    lengths = [[1, 3], [2, 0]]
    weights = masked_softmax(scores, torch.tensor(lengths))
    for batch, query in ((0, 0), (0, 1), (1, 0), (1, 1)):
        length = lengths[batch][query]
        row = weights[batch, query]
        assert row[length:].eq(0).all()
        close(row[:length], torch.tensor(softmax(scores[batch, query, :length].tolist())))


def test_c3_scaled_dot_product_attention(close):
    """softmax(QKᵀ / √d) V, with values of a width of their own; equal keys give a plain mean."""
    attention = Attention(2, score="scaled_dot", projections=False)
    query = torch.randn(2, 1, 2)
    key = torch.randn(2, 10, 2)
    value = torch.arange(40.0).reshape(1, 10, 4).repeat(2, 1, 1)
    lengths = torch.tensor([2, 6])

    found = attention(query, key, value, lengths)
    assert found.shape == (2, 1, 4)
    for batch, length in enumerate([2, 6]):
        scores = (key[batch, :length] @ query[batch, 0]) / math.sqrt(2)
        close(found[batch, 0], scores.softmax(0) @ value[batch, :length])

    same = attention(query, torch.ones(2, 10, 2), value, lengths)
    close(same[0, 0], torch.tensor([2.0, 3.0, 4.0, 5.0]))
    close(same[1, 0], torch.tensor([10.0, 11.0, 12.0, 13.0]))


def test_c3_the_pure_formula(close):
    """`attend` gives output and weights of what it is told, head by head."""
    score = Attention(4, projections=False).score
    query = torch.randn(2, 3, 5, 4)  # (B, H, T, D)
    key = torch.randn(2, 3, 6, 4)
    value = torch.randn(2, 3, 6, 7)
    output, weights = attend(query, key, value, None, score)
    expected = torch.einsum("bhtd,bhsd->bhts", query, key).div(2.0).softmax(-1)
    close(weights, expected)
    close(output, torch.einsum("bhts,bhsd->bhtd", expected, value))


@pytest.mark.parametrize("heads", [1, 4])
def test_c4_heatmaps_show_the_weights(heads, close):
    """One matrix, or all heads of all layers: every cell has the weight that it stands for."""
    weights = torch.rand(2, heads, 3, 5).softmax(-1).numpy()
    rows = ["a", "b", "c"]
    columns = ["u", "v", "w", "x", "y"]
    if heads == 1:
        figure = heatmap(weights[0, 0], rows, columns)
        wanted = weights[:1]
    else:
        figure = head_grid(weights, rows, columns)
        wanted = weights
    images = [image for axes in figure.axes for image in axes.get_images()]
    drawn = [torch.tensor(image.get_array()) for image in images if image.get_array().ndim == 2]
    panels = [matrix for matrix in drawn if matrix.shape == (3, 5)]
    assert len(panels) == wanted.shape[0] * heads
    for panel, matrix in zip(panels, wanted.reshape(-1, 3, 5)):
        close(panel, torch.tensor(matrix))


def test_c5_additive_attention(close):
    """vᵀtanh(W₁k + W₂q), for queries and keys of different widths, with a mask."""
    attention = Attention(20, key_width=2, score="additive", score_width=8, projections=False)
    query = torch.randn(2, 1, 20)
    key = torch.randn(2, 10, 2)
    value = torch.randn(2, 10, 4)
    lengths = torch.tensor([2, 6])
    found = attention(query, key, value, lengths)

    score = attention.score
    for batch, length in enumerate([2, 6]):
        hidden = torch.tanh(key[batch, :length] @ score.w1[0] + query[batch, 0] @ score.w2[0])
        scores = hidden @ score.v[0, :, 0]
        close(found[batch, 0], scores.softmax(0) @ value[batch, :length])


def test_c8_multi_head_attention_of_other_widths(close):
    """Queries, keys, values and result of 10, 11, 12 and 14 features; three heads of 5 each."""
    attention = Attention(10, key_width=11, value_width=12, inner=15, output=14, heads=3)
    theirs = nn.ModuleDict(
        {
            "query": nn.Linear(10, 15),
            "key": nn.Linear(11, 15),
            "value": nn.Linear(12, 15),
            "output": nn.Linear(15, 14),
        }
    )
    for name, layer in theirs.items():
        copy_weights(layer, getattr(attention, name))

    query = torch.randn(2, 4, 10)
    key = torch.randn(2, 6, 11)
    value = torch.randn(2, 6, 12)
    queries = theirs["query"](query).chunk(3, -1)
    keys = theirs["key"](key).chunk(3, -1)
    values = theirs["value"](value).chunk(3, -1)
    heads = [
        (q @ k.mT / math.sqrt(5)).softmax(-1) @ v
        for q, k, v in zip(queries, keys, values, strict=True)
    ]
    found = attention(query, key, value)
    assert found.shape == (2, 4, 14)
    close(found, theirs["output"](torch.cat(heads, -1)))


def test_c9_the_books_shapes():
    """100 features, 5 heads, 4 queries, 6 keys of which 3 and 2 are real."""
    attention = Attention(100, heads=5, bias=False)
    query = torch.ones(2, 4, 100)
    source = torch.ones(2, 6, 100)
    with watch(attention) as record:
        assert attention(query, source, source, torch.tensor([3, 2])).shape == (2, 4, 100)
    (weights,) = record.weights["attention"]
    assert weights.shape == (2, 5, 4, 6)
    assert weights[0, ..., :3].allclose(torch.tensor(1 / 3))
    assert weights[1, ..., :2].allclose(torch.tensor(1 / 2))
    assert weights[0, ..., 3:].eq(0).all()
    assert weights[1, ..., 2:].eq(0).all()


def test_c10_self_attention(close):
    """Queries, keys and values are the same tokens: (B, T, D) -> the same shape, order unseen."""
    theirs = nn.MultiheadAttention(100, 5, bias=False, batch_first=True)
    ours = SelfAttention(100, heads=5, bias=False)
    copy_weights(theirs, ours)
    x = torch.randn(2, 4, 100)
    lengths = torch.tensor([3, 2])
    hidden = torch.arange(4) >= lengths[:, None]
    expected, _ = theirs(x, x, x, key_padding_mask=hidden)
    found = ours(x, x, x, lengths)
    assert found.shape == x.shape
    close(found, expected)

    order = torch.tensor([2, 0, 3, 1])
    mixed = x[:, order]
    close(ours(mixed, mixed, mixed), ours(x, x, x)[:, order])


def test_c12_sinusoids_of_60_positions_and_32_dimensions():
    """P[i, 2j] = sin(i / 10000^(2j/d)) and P[i, 2j+1] = cos(i / 10000^(2j/d))."""
    table = sinusoids(torch.arange(60), 32)
    assert table.shape == (60, 32)
    for i in range(60):
        for j in range(16):
            angle = i / 10_000 ** (2 * j / 32)
            assert table[i, 2 * j].item() == pytest.approx(math.sin(angle), abs=1e-5)
            assert table[i, 2 * j + 1].item() == pytest.approx(math.cos(angle), abs=1e-5)


def test_c13_a_shift_is_a_rotation_that_does_not_depend_on_the_position():
    """P[i + δ] is P[i] turned, each pair of dimensions by δ times its frequency, whatever i is."""
    table = sinusoids(torch.arange(60), 32).to(torch.float64)
    shift = 7
    for j in range(16):
        angle = shift / 10_000 ** (2 * j / 32)
        rotation = torch.tensor(
            [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
        )
        pair = table[:, 2 * j : 2 * j + 2]  # (60, 2)
        turned = pair[:-shift] @ rotation.T
        assert torch.allclose(turned, pair[shift:], atol=1e-5)
