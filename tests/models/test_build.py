"""From a config to a model: ties, sizes, and parts of the user's own."""

from dataclasses import replace

import pytest
import torch

from regard.config import RNNConfig, TransformerConfig, build
from regard.errors import UserError
from regard.models import build_model
from regard.nn import Position, Score

SMALL = {"width": 8, "ffn": 12, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
RNN = {"kind": "rnn", "width": 8, "embedding": 8}
SOURCE, LENGTHS, TARGET = (
    torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]]),
    torch.tensor([4, 2]),
    torch.tensor([[1, 5], [1, 6]]),
)


class MyScore(Score):
    """−|q − k|²: nearness."""

    def forward(self, query, prepared):
        return -torch.cdist(query, prepared).square()


class MyPosition(Position):
    """Places told by a ramp on the first feature (a norm would take away one on all of them)."""

    def embed(self, x, positions):
        return torch.cat((x[..., :1] + positions[..., None], x[..., 1:]), dim=-1)


@pytest.mark.parametrize(
    "model", [SMALL, RNN, RNN | {"attention": "before"}], ids=["transformer", "rnn", "rnn-before"]
)
def test_a_score_of_ones_own(model):
    config = build({"model": model | {"score": "custom:MyScore"}}).model
    made = build_model(config, 20, 20, parts={"score": MyScore})
    assert any(isinstance(part, MyScore) for part in made.modules())
    assert made(SOURCE, LENGTHS, TARGET).shape == (2, 2, 20)
    with pytest.raises(UserError, match="MyScore"):
        build_model(config, 20, 20)


def test_a_position_of_ones_own():
    config = build({"model": SMALL | {"position": "custom:MyPosition"}}).model
    made = build_model(config, 20, 20, parts={"position": MyPosition}).eval()
    assert any(isinstance(part, MyPosition) for part in made.modules())
    turned = made(SOURCE[:1].flip(1), LENGTHS[:1], TARGET[:1])
    assert not torch.allclose(turned, made(SOURCE[:1], LENGTHS[:1], TARGET[:1]))
    with pytest.raises(UserError, match="MyPosition"):
        build_model(config, 20, 20)


@pytest.mark.parametrize("model", [SMALL, RNN], ids=["transformer", "rnn"])
def test_ties(model):
    tables = {}
    for tie in ("none", "target", "all"):
        made = build_model(build({"model": model | {"tie": tie}}).model, 20, 20)
        source, target, out = (
            made.encoder.embedding.weight,
            made.decoder.embedding.weight,
            made.decoder.out.weight,
        )
        tables[tie] = sum(p.shape == (20, 8) for p in made.parameters())
        assert (target is out) == (tie != "none")
        assert (source is target) == (tie == "all")
    assert tables == {"none": 3, "target": 2, "all": 1}


@pytest.mark.parametrize("kind", [TransformerConfig, RNNConfig])
def test_one_table_needs_one_vocabulary(kind):
    with pytest.raises(UserError, match=r"model\.tie"):
        build_model(
            kind(width=8, tie="all", **({"embedding": 8} if kind is RNNConfig else {"heads": 2})),
            20,
            21,
        )


@pytest.mark.parametrize("model", [SMALL, RNN], ids=["transformer", "rnn"])
def test_two_vocabularies(model):
    made = build_model(build({"model": model | {"tie": "none"}}).model, 20, 31)
    assert made(SOURCE, LENGTHS, TARGET).shape == (2, 2, 31)


@torch.no_grad()
def test_positions_past_the_learned_table_are_told():
    made = build_model(TransformerConfig(**SMALL, position="learned", max_positions=4), 20, 20)
    made(SOURCE, LENGTHS, TARGET)
    with pytest.raises(UserError, match=r"model\.max_positions"):
        made(torch.full((1, 5), 7), torch.tensor([5]), TARGET[:1])
    state = made.decoder.start(made.encoder(SOURCE, LENGTHS))
    for _ in range(4):
        _, state = made.step(torch.tensor([5, 6]), state)
    with pytest.raises(UserError, match=r"model\.max_positions"):
        made.step(torch.tensor([5, 6]), state)


@pytest.mark.parametrize(
    "model", [SMALL, RNN, RNN | {"attention": "before"}], ids=["transformer", "rnn", "rnn-before"]
)
@torch.no_grad()
def test_a_source_mask_of_ones_own(model):
    """Masks that hide words of the source from every look: what they are does not matter to
    attention.
    """
    torch.manual_seed(0)
    made = build_model(build({"model": model | {"tie": "none"}}).model, 20, 20).eval().double()
    allowed = torch.tensor([[True, False, True, True], [True, True, False, False]])[:, None, None]

    def logits(source):
        reading = {"mask": allowed} if model is SMALL else {}
        state = made.decoder.start(made.encoder(source, LENGTHS, **reading))
        wide = state.select(torch.arange(2), torch.zeros(2, 2, dtype=torch.long))
        step, _ = made.decoder(torch.tensor([[5], [6], [7], [8]]), wide, cross_mask=allowed)
        return made.decoder(TARGET, state, cross_mask=allowed)[0], step

    other = SOURCE.clone()
    other[0, 1] = 11
    if model is SMALL:  # an RNN's states carry the word on
        for one, two in zip(logits(SOURCE), logits(other), strict=True):
            torch.testing.assert_close(one, two, atol=1e-9, rtol=0)
    assert all(one.isfinite().all() for one in logits(SOURCE))


def test_a_mask_of_ones_own_hides_a_source_token():
    made = build_model(TransformerConfig(**SMALL), 20, 20).eval()
    hidden = torch.tensor([True, False, True, True]).view(1, 1, 1, 4)

    def logits(source, mask):
        return made(source, LENGTHS[:1], TARGET[:1], encoder_mask=mask, cross_mask=mask)

    other = torch.tensor([[5, 9, 7, 2]])
    assert torch.equal(logits(SOURCE[:1], hidden), logits(other, hidden))
    assert not torch.allclose(logits(SOURCE[:1], None), logits(other, None))


def test_dropout_of_the_embeddings_alone():
    c = TransformerConfig(
        width=16, ffn=16, heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0
    )
    source, lengths = torch.full((1, 50), 17), torch.tensor([50])

    def spread(**changes):
        torch.manual_seed(0)
        model = build_model(replace(c, position="none", **changes), 30, 30).train().double()
        embedded = model.encoder(source, lengths).states
        return float(embedded.detach().std(1).max())

    assert spread() == pytest.approx(0, abs=1e-9)  # one token, no position: all places alike
    assert spread(embedding_dropout=0.3) > 0.1
    assert spread(dropout=0.3, embedding_dropout=0.0) > 0.1
    assert (
        build_model(replace(c, dropout=0.3, embedding_dropout=0.0), 30, 30).encoder.dropout == 0.0
    )
    assert build_model(replace(c, dropout=0.3), 30, 30).decoder.dropout == 0.3


def test_first_queries_keys_and_values_as_pytorch_draws_them():
    theirs = torch.nn.MultiheadAttention(64, 4).in_proj_weight.abs().max().item()
    largest = {}
    for how in ("separate", "joint"):
        model = build_model(TransformerConfig(width=64, heads=4, qkv_init=how), 20, 20)
        names = ("qkv", "query", "keyvalue")
        weights = [p for name, p in model.named_parameters() if name.split(".")[-2] in names]
        weights = [weight for weight in weights if weight.dim() == 2]
        assert len(weights) == 3 * (1 + 3)  # one of an encoder block, three of a decoder block
        largest[how] = [weight.abs().max().item() for weight in weights]
    assert largest["joint"] == pytest.approx([theirs] * 12, rel=0.02)
    assert largest["separate"] == pytest.approx([2**0.5 * theirs] * 12, rel=0.02)
