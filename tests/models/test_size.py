"""How large a model will be: the count before it is made, and what memory cannot hold."""

from dataclasses import replace

import pytest
import torch

import regard
from regard.config import CustomConfig, RNNConfig, TransformerConfig
from regard.errors import UserError
from regard.models import build_model
from regard.models import size as module
from regard.models.size import check_size, count_parameters, has_own_parts
from regard.nn import devices

SMALL = TransformerConfig(width=16, ffn=24, heads=2, encoder_layers=3, decoder_layers=2)
RNN = RNNConfig(width=16, embedding=12, encoder_layers=2, decoder_layers=3)
CONFIGS = [
    SMALL,
    *[replace(SMALL, position=name) for name in ("none", "learned", "relative", "rotary", "alibi")],
    *[replace(SMALL, score=name) for name in ("dot", "multiplicative", "additive")],
    *[replace(SMALL, norm=norm, placement=place) for norm in ("rms", "none") for place in ("pre",)],
    replace(SMALL, placement="post"),
    replace(SMALL, activation="swiglu"),
    replace(SMALL, feedforward=False, bias=False),
    replace(SMALL, tie="none"),
    replace(SMALL, tie="target"),
    replace(SMALL, tie="inputs", output_bias=True, scale_embeddings=False),
    replace(SMALL, placement="post", final_norm="yes"),
    replace(SMALL, levels=2, segment_layers=1),
    replace(SMALL, levels=2, segment_layers=3, position="learned", norm="rms"),
    replace(SMALL, pattern="linformer", features=7, max_positions=50),
    replace(SMALL, pattern="routing", clusters=5),
    RNN,
    *[replace(RNN, cell=cell) for cell in ("rnn", "gru", "linear")],
    *[replace(RNN, attention=attention) for attention in ("before", "none")],
    replace(RNN, score="additive", score_width=5),
    replace(RNN, score="dot", bidirectional=False),
    replace(RNN, embedding=16, tie="all"),
    replace(RNN, embedding=16, tie="target"),
    replace(RNN, fast=False),
    replace(RNN, readout="context", tie="inputs"),
    replace(RNN, readout="state", attention="before"),
    replace(RNN, bridge="layers", decoder_layers=2),
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_the_count_is_that_of_the_model(config):
    source_size = 30
    target_size = 30 if config.tie in ("all", "inputs") else 23
    model = build_model(config, source_size, target_size)
    parameters = sum(weight.numel() for weight in model.parameters())
    assert count_parameters(config, source_size, target_size) == parameters


def test_a_model_of_ones_own_is_not_counted():
    assert count_parameters(CustomConfig(), 10**6, 10**6) == 0


def test_parts_of_ones_own_may_have_any_number_of_parameters():
    assert not has_own_parts(SMALL)
    assert not has_own_parts(RNN)
    assert has_own_parts(CustomConfig())
    for name in ("score", "position", "block"):
        assert has_own_parts(replace(SMALL, **{name: "custom:Mine"}))
    assert has_own_parts(replace(RNN, score="custom:Mine"))


HUGE = TransformerConfig(width=2**16, ffn=2**20, heads=16, encoder_layers=1000, decoder_layers=1000)


def test_what_memory_cannot_hold_is_refused_before_it_is_allocated():
    told = (
        r"^the model would have 326,421,191,327,744 parameters and need .* GB, but cpu has .* GB "
    )
    with pytest.raises(UserError, match=told):
        build_model(HUGE, 100, 100)


def test_gradients_and_optimizer_count_in_training(monkeypatch):
    count = count_parameters(SMALL, 30, 30)
    monkeypatch.setattr(module, "free_memory", lambda device: 10 * count)
    check_size(SMALL, 30, 30)
    with pytest.raises(UserError, match=r"parameters and need .* GB to train, but cpu has"):
        check_size(SMALL, 30, 30, copies=4)


def test_training_refuses_it_before_it_reads_the_data(tmp_path):
    huge = {"width": 2**16, "heads": 16, "encoder_layers": 1000}
    with pytest.raises(UserError, match=r"the model would have [\d,]+ parameters and need"):
        regard.train(tmp_path / "nothing.tsv", out=tmp_path / "run", model=huge)
    assert not list(tmp_path.iterdir())


def test_the_memory_of_this_machine():
    assert devices.free_memory(torch.device("cpu")) > 2**20


@pytest.mark.parametrize(("words", "limit"), [("max\n", None), ("123456\n", 123456)])
def test_a_container_has_less(words, limit, monkeypatch, tmp_path):
    (tmp_path / "memory.max").write_text(words)
    real = devices.Path
    monkeypatch.setattr(
        devices,
        "Path",
        lambda *parts: tmp_path / "memory.max" if "memory.max" in parts[0] else real(*parts),
    )
    free = devices.free_memory(torch.device("cpu"))
    assert free == limit if limit else free > 2**20
