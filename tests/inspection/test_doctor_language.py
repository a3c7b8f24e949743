"""`regard doctor` on language models: good ones pass, and broken ones are found."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import regard
from regard.config import TransformerConfig
from regard.data.batches import collate
from regard.data.objectives import Masked
from regard.inspection.doctor import doctor, examine
from regard.models import build_model
from regard.recipes.reporter import Reporter
from regard.text.vocabulary import BOS, EOS

SIZE = 30
FUTURE, ONLINE, PADDING, LOGGED = (
    "no look-ahead",
    "no look-ahead in the source",
    "padding has no effect",
    "dev loss matches the log",
)
NOTHING_TO_LOOK_AT = {
    "causal": {ONLINE, PADDING},
    "masked": {FUTURE, ONLINE},
    "denoise": {ONLINE},
}
"""What does not apply to a language model of each kind."""


@pytest.fixture(scope="module")
def texts():
    return [f"the {noun} is {word}" for noun in ("sea", "cat", "sun") for word in "abcdefghijklm"]


@pytest.mark.parametrize("objective", NOTHING_TO_LOOK_AT)
def test_a_good_run_passes(texts, tmp_path, objective):
    run = regard.train(
        texts,
        out=tmp_path / "run",
        reporter=Reporter(quiet=True),
        data={"dev": 8, "test": 1},
        text={"tokenizer": "characters"},
        model={"width": 16, "ffn": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1},
        train={"objective": objective, "steps": 4, "epochs": 0, "tensorboard": "off"},
    )
    rows = {row.name: row for row in doctor(run.path)}
    assert [row.found for row in rows.values() if row.passed is False] == []
    not_looked_at = {name for name, row in rows.items() if row.passed is None}
    assert not_looked_at == NOTHING_TO_LOOK_AT[objective]
    for name in not_looked_at:
        assert rows[name].found.startswith("does not apply: ")
    assert rows["training data intact"].found.startswith("30 texts, ")
    assert rows["each pair once per epoch"].found.startswith("30 texts in ")


def model_of(objective):
    torch.manual_seed(0)
    config = TransformerConfig(width=16, ffn=16, heads=2, encoder_layers=2, decoder_layers=2)
    return build_model(config, SIZE, SIZE, objective=objective).eval()


def unmasked(attention, **changes):
    """This one attention forgets a part of its mask."""
    look, itself = attention.look, attention.itself

    def forgetful(mask):
        return replace(mask, **changes, _made={})

    attention.look = lambda x, y, mask, *more: look(x, y, forgetful(mask), *more)
    attention.itself = lambda x, mask, *more: itself(x, forgetful(mask), *more)


def batch_of(objective):
    """Texts of unequal lengths, as the objective has them."""
    rows = []
    for length in (4, 9, 12, 7):
        row = (np.array([EOS]), np.array([BOS, *range(16, 16 + length), EOS]))
        if objective == "masked":
            row = Masked(0.3, first=16, size=SIZE).row(row, length)
        rows.append(row)
    return collate(rows)


def failed(model, objective):
    rows = examine(model, batch_of(objective))
    return [row.name for row in rows if row.passed is False]


@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_a_good_model_passes(objective):
    rows = examine(model_of(objective), batch_of(objective))
    assert [row.name for row in rows if row.passed is False] == []
    none = {row.name for row in rows if row.passed is None}
    assert none == NOTHING_TO_LOOK_AT[objective] | {LOGGED}


def test_a_decoder_that_sees_what_comes():
    model = model_of("causal")
    unmasked(model.decoder.blocks[1].attention, causal=False)
    assert failed(model, "causal") == [FUTURE]


def test_an_encoder_that_reads_its_padding():
    model = model_of("masked")
    unmasked(model.encoder.blocks[0].attention, key_lengths=None)
    assert failed(model, "masked") == [PADDING]
