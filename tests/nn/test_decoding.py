"""A block while it decodes: the fast twin on a CPU computes what the readable form does."""

import pytest
import torch

from regard.nn import Attention, Block, KeyValue, Layout, Mask, watch
from regard.nn import blocks as module
from regard.nn.fast import decoding
from regard.nn.layers import Residual

WIDTH, HEADS, BATCH, SLOTS, SOURCE = 16, 4, 3, 5, 6
KINDS = {
    "usual": {},
    "post": {"placement": "post"},
    "rms-swiglu": {"norm": "rms", "activation": "swiglu"},
    "no norm, no residual": {"norm": "none", "residual": False},
    "no feed-forward": {"feedforward": False},
    "rotary": {"position": "rotary"},
    "no bias": {"bias": False},
    "dot": {"score": "dot"},
    "dropout": {"dropout": 0.5, "attention_dropout": 0.5, "activation_dropout": 0.5},
}
REFUSED = {
    "relative": {"position": "relative"},
    "alibi": {"position": "alibi"},
    "additive": {"score": "additive"},
}


def block(kind, *, crossing=True):
    torch.manual_seed(1)
    return Block(WIDTH, heads=HEADS, inner=24, crossing=crossing, **kind).double().eval()


def memory(slots):
    shape = (BATCH, HEADS, slots, WIDTH // HEADS)
    positions = torch.arange(slots).expand(BATCH, -1)
    return KeyValue(torch.randn(shape).double(), torch.randn(shape).double(), positions)


def arguments(tokens, *, crossing=True):
    """Of `Block.rows`, for so many new tokens of each sentence."""
    torch.manual_seed(2)
    layout = Layout(BATCH, tokens, None)
    x = torch.randn(BATCH * tokens, WIDTH).double()
    positions = SLOTS + torch.arange(tokens).expand(BATCH, -1)
    seen = torch.rand(BATCH, 1, tokens, SLOTS + tokens) < 0.7
    seen[..., -1] = True
    mask = Mask(causal=True, offset=SLOTS, filled=True)
    if tokens > 1:
        mask = Mask(extra=seen, filled=True)
    source = None
    if crossing:
        lengths = torch.tensor([SOURCE, 2, 4])
        source = (memory(SOURCE), Mask(key_lengths=lengths, filled=True), layout, None)
    return x, mask, positions, layout, memory(SLOTS), source


@pytest.fixture
def calls(monkeypatch):
    """How many blocks took the fast twin."""
    taken = []
    step = decoding.step

    def counted(*given):
        taken.append(given[0])
        return step(*given)

    monkeypatch.setattr(decoding, "step", counted)
    return taken


def both(monkeypatch, made, given):
    """By the twin, if it applies, and by the readable form."""
    with torch.no_grad():
        fast = made(*given, keep=True)
        monkeypatch.setattr(module, "decoding", None)
        readable = made(*given, keep=True)
    return fast, readable


@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize("crossing", [True, False])
@pytest.mark.parametrize("name", [*KINDS, *REFUSED])
def test_the_twin_computes_the_readable_form(name, crossing, tokens, monkeypatch, calls):
    made = block((KINDS | REFUSED)[name], crossing=crossing)
    fast, readable = both(monkeypatch, made, arguments(tokens, crossing=crossing))
    assert len(calls) == (name in KINDS)
    torch.testing.assert_close(fast[0], readable[0], rtol=1e-12, atol=1e-12)
    for field in ("key", "value", "positions"):
        torch.testing.assert_close(getattr(fast[1], field), getattr(readable[1], field))


@pytest.mark.parametrize("part", ["attention_residual", "cross_residual", "feed_residual", "feed"])
def test_hooks_are_called(part, calls):
    made = block({})
    heard = []
    getattr(made, part).register_forward_hook(lambda *_: heard.append(1))
    with torch.no_grad():
        made(*arguments(1), keep=True)
    assert len(calls) == (part == "feed")  # which is called as a module
    assert heard == [1]


class Half(Residual):
    """A residual connection of one's own."""

    def forward(self, x, part):
        return x + 0.5 * part(self.norm(x))


def of_one_s_own(**parts):
    """A block with these parts in place of ours."""
    made = block({})
    for name, part in parts.items():
        setattr(made, name, part.double().eval())
    return made


def half():
    return Half(WIDTH, norm="layer", placement="pre", dropout=0.0)


def rotating():
    return Attention(WIDTH, heads=HEADS, position="rotary")


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("attention_residual", half),
        ("cross_residual", half),
        ("feed_residual", half),
        ("cross", rotating),
    ],
)
def test_parts_of_ones_own_are_computed_as_they_are(name, make, monkeypatch, calls):
    torch.manual_seed(3)
    made = of_one_s_own(**{name: make()})
    fast, readable = both(monkeypatch, made, arguments(1))
    assert calls == []
    torch.testing.assert_close(fast[0], readable[0])


@pytest.mark.parametrize(("part", "method"), [("attention", "look"), ("cross", "attend_to")])
def test_a_method_put_into_one_attention_is_called(part, method, calls):
    made = block({})
    attention = getattr(made, part)
    own = getattr(attention, method)
    asked = []

    def noted(*given, **more):
        asked.append(method)
        return own(*given, **more)

    setattr(attention, method, noted)
    with torch.no_grad():
        made(*arguments(1), keep=True)
    assert calls == []
    assert asked == [method]


@pytest.mark.parametrize("part", ["attention", "cross", "feed_residual"])
def test_a_part_that_still_drops_does_so(part, calls):
    made = block({"dropout": 0.5, "attention_dropout": 0.5})
    getattr(made, part).train()
    with torch.no_grad():
        made(*arguments(1), keep=True)
    assert calls == []


def test_who_watches_or_learns_gets_the_readable_form(calls):
    made = block({})
    with watch(made) as record, torch.no_grad():
        made(*arguments(1), keep=True)
    assert record.weights
    made(*arguments(1), keep=True)  # with gradients
    with torch.no_grad():
        made.train()(*arguments(1), keep=True)
    assert calls == []


def test_a_block_of_ones_own_combines_as_it_says(calls):
    class Parallel(Block):
        def combine(self, x, attend, attend_source=None):
            return x + attend(x) + self.feed(x)

    torch.manual_seed(1)
    made = Parallel(WIDTH, heads=HEADS, inner=24).double().eval()
    with torch.no_grad():
        made(*arguments(1, crossing=False), keep=True)
    assert calls == []
