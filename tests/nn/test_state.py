"""Keys and values as a value: whatever is appended to one, nobody else's changes."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.nn import KeyValue


def piece(seed, length, batch=2, **options):
    random = torch.Generator().manual_seed(seed)
    key, value = (
        torch.randn(batch, 2, length, size, generator=random, dtype=torch.float64)
        for size in (3, 4)
    )
    positions = torch.randint(0, 99, (batch, length), generator=random)
    return KeyValue(key.requires_grad_(options.get("grad", False)), value, positions)


def parts(memory):
    return memory.key, memory.value, memory.positions


def copied(memory):
    return tuple(x.clone() for x in parts(memory))


def same(memory, expected):
    return all(torch.equal(one, other) for one, other in zip(parts(memory), expected, strict=True))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
@torch.no_grad()
def test_a_tree_of_branches(data):
    """Grow and select from any state at any time: every state stays what it was."""
    first = piece(0, 1)
    states = [(first, copied(first))]
    for number in range(data.draw(st.integers(1, 14))):
        memory, expected = states[data.draw(st.integers(0, len(states) - 1))]
        batch = len(memory.key)
        if data.draw(st.booleans()):
            new = piece(number + 1, data.draw(st.sampled_from([1, 1, 2, 40])), batch)
            grown = memory.append(new)
            pairs = zip(expected, parts(new), (2, 2, 1), strict=True)
            states.append((grown, tuple(torch.cat((old, more), axis) for old, more, axis in pairs)))
        else:
            rows = torch.tensor(
                data.draw(st.lists(st.integers(0, batch - 1), min_size=1, max_size=4))
            )
            states.append((memory.select(rows), tuple(x[rows] for x in expected)))
        assert len(states[-1][0]) == states[-1][1][0].shape[2]
        assert all(same(memory, expected) for memory, expected in states)


def test_under_autograd_nothing_is_written_in_place():
    one = piece(1, 2, grad=True)
    two = one.append(piece(2, 1, grad=True))
    three, other = two.append(piece(3, 1)), two.append(piece(4, 1))
    (three.key.sum() + 2 * other.key.sum()).backward()
    assert (one.key.grad == 3).all()


def test_gradient_through_the_values_alone():
    """A frozen key projection leaves keys without gradient; the values still have theirs."""
    weight = torch.ones(4, requires_grad=True, dtype=torch.float64)
    memory = piece(1, 1)
    for seed in range(2, 5):
        new = piece(seed, 1)
        memory = memory.append(KeyValue(new.key, new.value * weight, new.positions))
        memory.value.square().sum().backward(retain_graph=True)
    expected = sum(piece(s, 1).value.square().sum((0, 1, 2)) * 2 * (5 - s) for s in range(2, 5))
    torch.testing.assert_close(weight.grad, expected, rtol=1e-9, atol=1e-9)
