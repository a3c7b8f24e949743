"""Transformers for long texts: settings, training by blocks, a cache as long as its window."""

import pytest
import torch

from regard.config import TransformerConfig, build
from regard.data.batches import collate
from regard.errors import UserError
from regard.models import build_model
from regard.models.segments import _means
from regard.nn import DecoderBlock, Performer, watch
from regard.nn.fast import choose
from regard.text.vocabulary import BOS, EOS
from regard.training.fast.paths import choose_path

SIZE = 30
SETTINGS = {
    "window": {"pattern": "window", "decoder_pattern": "window", "window": 4, "global_tokens": 1},
    "chunked": {"pattern": "chunked", "decoder_pattern": "chunked", "window": 6},
    "bigbird": {"pattern": "bigbird", "decoder_pattern": "bigbird", "window": 5},
}


def model_with(**settings):
    torch.manual_seed(0)
    sizes = {"width": 16, "ffn": 16, "heads": 2, "encoder_layers": 2, "decoder_layers": 2}
    config = TransformerConfig(**sizes, dropout=0.0, **settings)
    return build_model(config, SIZE, SIZE).double().eval()


def batch_of(*lengths):
    draw = torch.Generator().manual_seed(1)

    def words(count):
        return torch.randint(5, SIZE, (count,), generator=draw).tolist()

    return collate([([*words(s), EOS], [BOS, *words(t), EOS]) for s, t in lengths])


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("position", ["sinusoidal", "relative", "rotary"])
def test_long_texts_are_trained_by_blocks_as_by_a_whole_matrix(settings, position, monkeypatch):
    model = model_with(**settings, position=position)
    batch = batch_of((150, 140), (9, 80), (100, 3))
    losses = []
    gradients = []
    for pays in (0.0, 1e9):
        monkeypatch.setattr(choose, "BLOCKS_PAY", pays)
        model.zero_grad()
        loss = model.loss(batch).loss
        loss.backward()
        losses.append(loss.detach())
        gradients.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-12, atol=0)
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10 * losses[0].item())


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@torch.no_grad()
def test_one_by_one_is_the_whole_also_where_slots_were_forgotten(settings):
    model = model_with(**settings)
    batch = batch_of((12, 150), (7, 150))
    memory = model.encoder(batch.source, batch.source_lengths)
    whole, _ = model.decoder(batch.target_in, model.decoder.start(memory))

    for first in (1, 60):  # tokens that are read at once before the others
        state = model.decoder.start(memory)
        logits, state = model.decoder(batch.target_in[:, :first], state)
        parts = [logits]
        for place in range(first, batch.target_in.shape[1]):
            logits, state = model.decoder(batch.target_in[:, place : place + 1], state)
            parts.append(logits)
        torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-10)


@pytest.mark.parametrize("beams", [1, 3])
@torch.no_grad()
def test_the_cache_stays_as_long_as_the_window(beams):
    model = model_with(decoder_pattern="window", window=8, global_tokens=2)
    batch = batch_of((5, 3), (9, 3))
    state = model.decoder.start(model.encoder(batch.source, batch.source_lengths))
    state = state.select(None, torch.zeros(2, beams, dtype=torch.long))
    draw = torch.Generator().manual_seed(2)
    most = 0
    for _ in range(400):
        token = torch.randint(5, SIZE, (2 * beams, 1), generator=draw)
        _, state = model.decoder(token, state)
        most = max(most, state.slots)
    reached = 2 + 8 + 1  # globals, the window behind a token, itself
    assert most <= beams * (reached + 1) + max(32, beams * reached)
    assert state.at.tolist() == [400, 400]


@pytest.mark.slow
@torch.no_grad()
def test_ten_thousand_tokens_in_a_cache_of_a_window():
    model = model_with(decoder_pattern="window", window=64)
    batch = batch_of((5, 3))
    state = model.decoder.start(model.encoder(batch.source, batch.source_lengths))
    most = 0
    for step in range(10_000):
        _, state = model.decoder(torch.tensor([[5 + step % 20]]), state)
        most = max(
            most, state.slots, state.own[0].storage.key.shape[2] if state.own[0].storage else 0
        )
    assert most <= 65 + 1 + max(32, 65) + 32


@torch.no_grad()
def test_beams_over_forgotten_slots_are_as_each_alone():
    model = model_with(decoder_pattern="window", window=5)
    batch = batch_of((5, 3))
    memory = model.encoder(batch.source, batch.source_lengths)
    draw = torch.Generator().manual_seed(3)
    tokens = torch.randint(5, SIZE, (3, 90), generator=draw)  # of three hypotheses

    together = model.decoder.start(memory).select(None, torch.zeros(1, 3, dtype=torch.long))
    for place in range(90):
        logits, together = model.decoder(tokens[:, place : place + 1], together)
    for row in range(3):
        alone, _ = model.decoder(tokens[row : row + 1], model.decoder.start(memory))
        torch.testing.assert_close(logits[row, -1], alone[0, -1], rtol=0, atol=1e-10)


@torch.no_grad()
def test_beams_change_their_order_over_forgotten_slots():
    model = model_with(decoder_pattern="window", window=5)
    batch = batch_of((5, 3))
    memory = model.encoder(batch.source, batch.source_lengths)
    draw = torch.Generator().manual_seed(4)
    histories = torch.zeros(3, 0, dtype=torch.long)
    state = model.decoder.start(memory).select(None, torch.zeros(1, 3, dtype=torch.long))
    for _ in range(90):
        parents = torch.randint(0, 3, (3,), generator=draw)
        tokens = torch.randint(5, SIZE, (3, 1), generator=draw)
        state = state.select(None, parents[None])
        histories = torch.cat((histories[parents], tokens), 1)
        logits, state = model.decoder(tokens, state)
    for row in range(3):
        alone, _ = model.decoder(histories[row : row + 1], model.decoder.start(memory))
        torch.testing.assert_close(logits[row, -1], alone[0, -1], rtol=0, atol=1e-10)


@torch.no_grad()
def test_mixtures_are_not_taken_for_tokens():
    """Not even where there are as many of them."""
    model = model_with(pattern="linformer", features=6)
    batch = batch_of((5, 3))
    with watch(model) as record:
        model(batch.source, batch.source_lengths, batch.target_in)
    assert record.weights["encoder.blocks.0.attention"][0].shape[-2:] == (6, 6)
    assert record.mixtures == {"encoder.blocks.0.attention", "encoder.blocks.1.attention"}


# ---- settings ----


def test_a_pattern_and_a_mask_of_ones_own_are_refused():
    with pytest.raises(UserError, match=r"model.pattern=window does not work with model.encoder_m"):
        TransformerConfig(pattern="window", encoder_mask="custom:mine")
    with pytest.raises(UserError, match=r"model.decoder_pattern=window does not work"):
        TransformerConfig(decoder_pattern="window", decoder_mask="custom:mine")


@pytest.mark.parametrize("path", ["compiled", "captured"])
def test_graphs_are_refused(path):
    with pytest.raises(UserError, match=r"does not support model.pattern"):
        build({"model": {"pattern": "window"}, "train": {"path": path, "steps": 1}})


def test_auto_takes_the_plain_path_on_a_gpu():
    config = build({"model": {"pattern": "window"}, "train": {"steps": 1}})
    assert choose_path(config, torch.device("cuda"), parameters=1000) == "plain"


def test_positions_of_ones_own_are_refused_beside_a_pattern_of_the_decoder():
    model = model_with(decoder_pattern="window", window=5)
    batch = batch_of((5, 3))
    positions = torch.zeros_like(batch.target_in)
    with pytest.raises(UserError, match=r"target_positions do not work with model.decoder_pattern"):
        model(batch.source, batch.source_lengths, batch.target_in, target_positions=positions)


def test_a_pattern_adds_no_parameters():
    sizes = [sum(p.numel() for p in model_with(**s).parameters()) for s in SETTINGS.values()]
    assert {sum(p.numel() for p in model_with().parameters())} == set(sizes)


def test_global_tokens_are_refused_where_nobody_has_them():
    for name in ("chunked", "performer"):
        with pytest.raises(UserError, match=r"global_tokens=2 needs .* to be window or bigbird"):
            TransformerConfig(pattern=name, global_tokens=2)
    TransformerConfig(pattern="full", decoder_pattern="window", global_tokens=2)


def test_room_for_features_is_reckoned_with():
    """A performer's cached step makes the features of all keys."""
    few = model_with(decoder_pattern="performer", features=8).decoder.decoding_bytes(1, 1000)
    many = model_with(decoder_pattern="performer", features=64).decoder.decoding_bytes(1, 1000)
    assert many - few >= 1000 * 3 * 4 * 2 * (64 - 8)


def test_a_decoder_block_takes_an_approximation():
    block = DecoderBlock(16, heads=2, approximation=Performer(2, 8, features=8)).double()
    x = torch.randn(1, 30, 16, dtype=torch.float64)
    source = torch.randn(1, 4, 16, dtype=torch.float64)
    changed = torch.cat((x[:, :20], x[:, 20:] + 5), 1)
    before = block(x, source)
    after = block(changed, source)
    torch.testing.assert_close(after[:, :20], before[:, :20], rtol=0, atol=1e-12)
    assert not torch.allclose(after[:, 20:], before[:, 20:])


# ---- two levels ----


def test_segments_see_each_other_and_tokens_only_their_own():
    """A token's state depends on its own segment's tokens by both levels, on others by one."""
    model = model_with(levels=2, window=4, segment_layers=1)
    batch = batch_of((13, 3))
    other = batch.source.clone()
    other[0, 6] = 5 if other[0, 6] != 5 else 6  # in the second of four segments
    before = model.encoder(batch.source, batch.source_lengths).states[0]
    after = model.encoder(other, batch.source_lengths).states[0]
    differs = (before - after).abs().amax(-1) > 1e-9  # (S,)
    assert differs.all()

    level = model.encoder.level
    with torch.no_grad():
        level.output.weight.zero_()  # what is left is the first level
    before = model.encoder(batch.source, batch.source_lengths).states[0]
    after = model.encoder(other, batch.source_lengths).states[0]
    differs = (before - after).abs().amax(-1) > 1e-9
    assert differs.nonzero().flatten().tolist() == [4, 5, 6, 7]


def test_a_segments_mean_is_of_its_real_tokens():
    model = model_with(levels=2, window=4)
    states = torch.randn(2, 10, 16, dtype=torch.float64)
    means = _means(states, torch.tensor([10, 5]), model.encoder.level.size)
    torch.testing.assert_close(means[0, 2], states[0, 8:10].mean(0))
    torch.testing.assert_close(means[1, 1], states[1, 4])
    assert (means[1, 2] == 0).all()


@torch.no_grad()
def test_the_second_level_is_full_attention_among_segments():
    model = model_with(levels=2, window=16, segment_layers=1)
    source = torch.randint(5, SIZE, (1, 512))
    with watch(model) as record:
        model.encoder(source, torch.tensor([512]))
    assert record.weights["encoder.level.blocks.0.attention"][0].shape[-2:] == (32, 32)
    assert record.mixtures == {"encoder.level.blocks.0.attention"}


@torch.no_grad()
def test_a_segment_longer_than_the_text_costs_nothing():
    """And gives what a segment as long as the text gives."""
    batch = batch_of((13, 3), (4, 2))
    states = []
    for window in (14, 10**6):
        model = model_with(levels=2, window=window)
        states.append(model.encoder(batch.source, batch.source_lengths).states)
    torch.testing.assert_close(*states, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"pattern": "window"}, "levels=2 does not work with model.pattern=window: set .*=full"),
        ({"causal": True}, "levels=2 does not work with model.causal=true: set .*=false"),
        ({"encoder_mask": "custom:mine"}, "model.encoder_mask=custom:mine: set .*=none"),
    ],
)
def test_levels_refuse_what_goes_around_them(setting, told):
    with pytest.raises(UserError, match=told):
        TransformerConfig(levels=2, **setting)


def test_levels_refuse_a_mask_of_tokens():
    model = model_with(levels=2, window=4)
    batch = batch_of((5, 3))
    mask = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    with pytest.raises(UserError, match=r"encoder_mask does not work with model\.levels=2"):
        model(batch.source, batch.source_lengths, batch.target_in, encoder_mask=mask)
