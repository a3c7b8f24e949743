"""Shapes that are few, and steps that are captured: the same numbers as the plain path."""

import copy
from dataclasses import replace

import pytest
import torch

from regard.config import Config, RNNConfig, TrainConfig, TransformerConfig
from regard.data.batches import collate
from regard.errors import UserError
from regard.models import build_model
from regard.models.predictor import summed_loss
from regard.models.seq2seq import find_layouts
from regard.nn.devices import cpu_has_bf16
from regard.nn.fast.choose import SHORT
from regard.nn.fast.lengths import by_length_readable
from regard.training.fast.paths import (
    Ahead,
    _tensors,
    choose_path,
    compile_blocks,
    prepare,
    rounded,
)
from regard.training.trainer import Trainer

TINY = TransformerConfig(width=16, ffn=24, heads=2, encoder_layers=2, decoder_layers=2, dropout=0.0)
WAITING = replace(TINY, causal=True, wait=2)
CPU = torch.device("cpu")


def batch(sizes=((5, 3), (2, 7), (9, 1), (4, 4), (1, 6))):
    rng = torch.Generator().manual_seed(4)

    def row(n):
        return [*torch.randint(16, 30, (n - 1,), generator=rng).tolist(), 2]

    return collate([(row(s), [1, *row(t)]) for s, t in sizes])


def gradients(model, b):
    model = copy.deepcopy(model)
    sums = model.loss(b, 0.1)
    sums.loss.backward()
    return sums, {name: p.grad for name, p in model.named_parameters()}


def same(ours, theirs, name=""):
    """In float64, where no processor's rounding comes near 1e-9 of the largest number."""
    assert ours.dtype == theirs.dtype == torch.float64
    largest = max(1.0, float(theirs.detach().abs().max()))
    torch.testing.assert_close(
        ours, theirs, rtol=0, atol=1e-9 * largest, msg=lambda text: f"{name}: {text}"
    )


@pytest.mark.parametrize("kind", [TINY, WAITING], ids=["plain", "waiting"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "sizes", [((5, 3), (2, 7), (9, 1), (4, 4), (1, 6)), ((4, 4),) * 4], ids=["ragged", "even"]
)
def test_rounded_is_the_same_batch(packed, sizes, kind):
    torch.manual_seed(0)
    model, b = build_model(kind, 30, 30).double(), batch(sizes)
    made = rounded(b, packed=packed)
    assert made.source.shape[0] >= b.size
    assert made.source.shape[1] + 1 == made.target.shape[1]
    (one, ours), (other, theirs) = gradients(model, b), gradients(model, made)
    assert one.tokens == other.tokens
    assert int(one.correct) == int(other.correct)
    same(one.loss, other.loss)
    for name, grad in ours.items():
        same(grad, theirs[name], name)


def test_shapes_are_few():
    sizes = [
        tuple((1 + (7 * i + j) % 40, 1 + (3 * i + j) % 40) for j in range(60 + i % 9))
        for i in range(40)
    ]
    shapes = {
        tuple(tuple(x.shape) for x in (m.source, m.target))
        for m in (rounded(batch(s), packed=False) for s in sizes)
    }
    assert len(shapes) <= 4


def test_mostly_real_batches_are_not_packed():
    even, ragged = batch(((9, 9),) * 9 + ((7, 9),)), batch(((9, 2), (1, 9), (3, 3)))
    assert all(side.rows is None for side in find_layouts(even))
    assert not find_layouts(even)[0].full
    assert all(side.rows is not None for side in find_layouts(ragged))
    model = build_model(TINY, 30, 30)
    whole = gradients(model, even)
    assert gradients(model, replace(even, layouts=find_layouts(even)))[0].loss == whole[0].loss


def test_rdrop_without_dropout_is_the_loss():
    model, b = build_model(TINY, 30, 30).double(), batch()
    same(model.rdrop(b, 0.1, 5.0).loss, model.loss(b, 0.1).loss)


def test_rdrop_is_the_papers_sum():
    torch.manual_seed(1)
    model, b, alpha = build_model(replace(TINY, dropout=0.3), 30, 30).train().double(), batch(), 3.0
    torch.manual_seed(7)
    found = model.rdrop(b, 0.0, alpha)
    torch.manual_seed(7)
    hidden, targets = model.hidden(collate(2 * b.rows()))
    (one, other), targets = hidden.chunk(2), targets[: len(targets) // 2]
    p, q = (model.decoder.output(x).log_softmax(-1) for x in (one, other))
    both = [(p, q), (q, p)]
    apart = sum((a.exp() * (a - b)).sum() for a, b in both) / 2
    losses = [summed_loss(model.decoder.output(x), targets).loss for x in (one, other)]
    same(found.loss, sum(losses) / 2 + alpha / 2 * apart)


def test_what_auto_means():
    cuda = torch.device("cuda")
    small, large = (
        Config(model=TransformerConfig()),
        Config(model=TransformerConfig(), train=TrainConfig(precision="bf16")),
    )
    assert choose_path(small, CPU, 10**6) == "plain"
    assert choose_path(small, cuda, 10**6) == "captured"
    assert choose_path(large, cuda, 10**8, tokens=10**7) == "packed"
    assert choose_path(large, cuda, 10**8, tokens=10**9) == "compiled"
    assert choose_path(Config(model=RNNConfig()), cuda, 10**6) == "plain"
    assert choose_path(Config(train=TrainConfig(path="packed")), cuda, 10**6) == "packed"


def test_ahead_gives_every_batch_in_its_place():
    feed = Ahead(lambda step: batch(((step + 1, 2), (1, 1))), "plain", CPU)
    assert [feed(step).source.shape[1] for step in (0, 1, 2, 7, 8)] == [1, 2, 3, 8, 9]


def test_an_rnn_is_refused_by_the_compiler_in_words():
    model = build_model(RNNConfig(width=16, embedding=16), 30, 30)
    with pytest.raises(UserError, match=r"train\.path=compiled needs a Transformer"):
        compile_blocks(model)
    assert not model.compiled


@pytest.mark.parametrize("attention", ["before", "after", "none"])
def test_an_rnn_in_packed_rows(attention):
    torch.manual_seed(0)
    model = build_model(
        RNNConfig(width=16, embedding=16, attention=attention, dropout=0.0), 30, 30
    ).double()
    b = batch(((9, 7), (3, 8), (7, 2)))
    plain, packed = (
        gradients(model, replace(b, layouts=find_layouts(b, packed=way))) for way in (False, True)
    )
    torch.testing.assert_close(plain[0].loss, packed[0].loss)
    for name, grad in plain[1].items():
        torch.testing.assert_close(grad, packed[1][name], msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.gpu
def test_an_rnn_in_packed_rows_on_a_gpu():
    cuda, losses = torch.device("cuda"), []
    for way in ("plain", "packed"):
        torch.manual_seed(0)
        model = build_model(RNNConfig(width=16, embedding=16, dropout=0.0), 30, 30).to(cuda)
        losses.append(model.loss(prepare(batch(), way, cuda)).loss)
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings(
    "default"
)  # torch warns of its own compiler, in other words in each version
@pytest.mark.gpu
@pytest.mark.parametrize("kind", [TINY, WAITING], ids=["plain", "waiting"])
@pytest.mark.parametrize("path", ["packed", "captured", "compiled"])
def test_fast_paths_on_a_gpu(path, kind):
    cuda = torch.device("cuda")
    found = []
    for way in ("plain", path):
        torch.manual_seed(0)
        # Without biases: the gradient of a key's bias is zero but for rounding, and Adam makes
        # steps of it.
        model = build_model(replace(kind, bias=False), 30, 30).to(cuda)
        if way == "compiled":
            compile_blocks(model)
        c = TrainConfig(path=way, precision="fp32", warmup=0, schedule="constant")
        trainer = Trainer(model, lambda step: batch(), c, steps=99, device=cuda)
        for _ in range(8):
            trainer.update([prepare(batch(), way, cuda)])
        found.append((trainer.sums, torch.cat([p.flatten() for p in model.parameters()])))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-3)
    torch.testing.assert_close(found[0][1], found[1][1], atol=1e-3, rtol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("changes", [{"optimizer": "sgd"}, {"strategy": "fsdp"}], ids=str)
def test_what_cannot_be_captured_is_computed_step_by_step(changes):
    """A captured graph cannot ask whether the step is refused."""
    cuda = torch.device("cuda")
    ends = []
    for path in ("plain", "captured"):
        torch.manual_seed(0)
        model = build_model(TINY, 30, 30).to(cuda)
        settings = {"precision": "fp32", "warmup": 0, "schedule": "constant", **changes}
        config = TrainConfig(path=path, **settings)
        trainer = Trainer(model, lambda step: batch(), config, steps=99, device=cuda)
        for _ in range(6):
            trainer.update([batch()])
        ends.append(trainer.sums["nll"])
    assert trainer.captured is None
    assert ends[0] == pytest.approx(ends[1], rel=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("how", ["known beforehand", "while it is recorded"])
def test_a_batch_that_does_not_fit_is_split_outside_of_a_graph(how, monkeypatch):
    cuda = torch.device("cuda")
    sums = []
    for is_short in (False, True):
        torch.manual_seed(0)
        model = build_model(replace(TINY, bias=False), 30, 30).to(cuda)
        config = TrainConfig(path="captured", precision="fp32", warmup=0, schedule="constant")
        trainer = Trainer(model, lambda step: batch(), config, steps=99, device=cuda)
        for _ in range(3):
            trainer.update([batch()])
        if is_short and how == "known beforehand":
            trainer.largest_fitting = 40
        elif is_short:
            loss = model.loss

            def short(part, smoothing, loss=loss):
                if torch.cuda.is_current_stream_capturing():
                    raise torch.OutOfMemoryError
                return loss(part, smoothing)

            monkeypatch.setattr(model, "loss", short)
        for _ in range(3):
            trainer.update([batch()])
        sums.append(trainer.sums)
    assert trainer.largest_fitting > 0
    assert sums[0] == pytest.approx(sums[1], rel=1e-3)


def test_graphs_of_packed_sources_and_of_packed_targets_are_not_mixed_up():
    source_packed = batch(((9, 9), (1, 9), (1, 9), (1, 9)))
    target_packed = batch(((9, 9), (9, 1), (9, 1), (9, 1)))
    keys = []
    for given in (source_packed, target_packed):
        made = replace(given, layouts=find_layouts(given))
        keys.append([None if x is None else tuple(x.shape) for x in _tensors(made)])
    assert None in keys[0]
    assert [x for x in keys[0] if x] == [x for x in keys[1] if x]
    assert keys[0] != keys[1]


LONG_SIDES = {
    "both": ((90, 70), (3, 80), (70, 2)),
    "source": ((90, 7), (3, 8), (70, 2)),
    "target": ((9, 70), (3, 80), (7, 2)),
    "neither": ((9, 7), (3, 8), (7, 2)),
}


@pytest.fixture
def variable_length(monkeypatch):
    """The kernel of variable length by its readable twin, in any precision; the list of calls it
    gets.
    """
    calls = []

    def by_length(q, k, v, queries, keys, scale, causal):
        calls.append((queries.length, keys.length, causal))
        return by_length_readable(q, k, v, queries, keys, scale, causal)

    monkeypatch.setattr("regard.nn.fast.choose.by_length", by_length)
    monkeypatch.setattr("regard.nn.fast.choose.has_flash", lambda device: True)
    return calls


def hidden_gradients(model, b):
    model = copy.deepcopy(model)
    hidden, _ = model.hidden(b)
    hidden.square().sum().backward()
    return hidden.detach(), {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("sides", LONG_SIDES)
@pytest.mark.parametrize(
    "kind", [TINY, replace(TINY, causal=True), WAITING], ids=["plain", "causal", "waiting"]
)
def test_kernels_of_variable_length_ignore_no_rule(kind, sides, variable_length, monkeypatch):
    """Each sentence alone, and no rule but the past: what else is asked takes another way. Both
    sides of an attention take the same way, whichever of them is long.
    """
    monkeypatch.setattr("regard.nn.fast.choose.HALF", (torch.float64,))
    torch.manual_seed(0)
    model = build_model(kind, 30, 30).double()
    b = batch(LONG_SIDES[sides])
    plain, packed = (
        hidden_gradients(model, replace(b, layouts=find_layouts(b, packed=way)))
        for way in (False, True)
    )

    source_long = b.source.shape[1] > SHORT["cuda"]
    target_long = b.target_in.shape[1] > SHORT["cuda"]
    layers = 2
    crossing = layers if (source_long or target_long) and not kind.wait else 0
    assert len(variable_length) == layers * source_long + layers * target_long + crossing

    torch.testing.assert_close(plain[0], packed[0], rtol=1e-10, atol=1e-10)
    for name, grad in plain[1].items():
        # the gradient of a key's bias is zero but for rounding
        largest = float(grad.abs().max())
        torch.testing.assert_close(
            grad, packed[1][name], rtol=0, atol=1e-10 * max(1, largest), msg=name
        )


def test_float32_is_never_rounded_to_fit_a_kernel(variable_length):
    """Packed rows in fp32 are padded for attention: the same numbers as without packing."""
    torch.manual_seed(0)
    model, b = build_model(TINY, 30, 30), batch(LONG_SIDES["both"])
    one, ours = gradients(model, replace(b, layouts=find_layouts(b, packed=True)))
    other, theirs = gradients(model, replace(b, layouts=find_layouts(b, packed=False)))
    assert variable_length == []
    assert torch.equal(one.loss, other.loss)
    assert all(torch.equal(grad, theirs[name]) for name, grad in ours.items())


def test_autocast_packs(variable_length):
    """Under autocast the projections come out in bfloat16, which the kernel takes as it is."""
    if not cpu_has_bf16():
        pytest.skip("this CPU does not multiply bfloat16")
    model, b = build_model(TINY, 30, 30), batch(LONG_SIDES["source"])
    with torch.autocast("cpu", torch.bfloat16):
        model.hidden(replace(b, layouts=find_layouts(b, packed=True)))
    assert variable_length == [(90, 90, False)] * 2 + [(8, 90, False)] * 2


@pytest.mark.parametrize(
    "change",
    [{"attention_dropout": 0.1}, {"position": "rotary"}, {"score": "multiplicative"}],
    ids=str,
)
def test_what_no_kernel_of_variable_length_knows(change, variable_length, monkeypatch):
    monkeypatch.setattr("regard.nn.fast.choose.HALF", (torch.float32,))
    model, b = build_model(replace(TINY, **change), 30, 30), batch(LONG_SIDES["both"])
    sums = model.loss(replace(b, layouts=find_layouts(b, packed=True)))
    # Positions stand between target tokens only among themselves: crossing attention has none.
    assert len(variable_length) == (2 if "position" in change else 0)
    assert sums.loss.isfinite()


@pytest.mark.gpu
@pytest.mark.parametrize("sides", LONG_SIDES)
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_packed_rows_on_a_gpu(precision, sides, monkeypatch):
    """Long and short sides in every combination beside the plain path; fp32 stays fp32."""
    from regard.nn.fast import choose

    calls = []
    kernel = choose.by_length
    monkeypatch.setattr(choose, "by_length", lambda *given: calls.append(1) or kernel(*given))
    cuda = torch.device("cuda")
    torch.manual_seed(0)
    model, b = (
        build_model(replace(TINY, width=64, heads=4, bias=False), 30, 30).to(cuda),
        batch(LONG_SIDES[sides]),
    )
    found = []
    for path in ("plain", "packed"):
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            found.append(gradients(model, prepare(b, path, cuda)))
    assert bool(calls) == (precision == "bf16" and sides != "neither")
    (plain, ours), (packed, theirs) = found
    # Rounding of the arithmetic (2^-8, 2^-23), as often as numbers of one size are added up on the
    # way: 16 is generous.
    unit = 2**-8 if precision == "bf16" else 2**-23
    assert float(packed.loss.detach()) == pytest.approx(float(plain.loss.detach()), rel=16 * unit)
    for name, grad in ours.items():
        apart = float((grad - theirs[name]).norm())
        assert apart <= 64 * unit * float(grad.norm()), name
