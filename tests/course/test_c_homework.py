"""C6, C7: the decoder of examples/homework_decoder.py is the one that settings build."""

from pathlib import Path

import pytest
import torch

from regard.config import RNNConfig
from regard.data.batches import collate
from regard.models import build_model
from regard.search import beam
from regard.text.vocabulary import BOS, EOS

EXAMPLE = Path(__file__).parents[2] / "examples" / "homework_decoder.py"
BATCH = collate([([5, 6, 7, EOS], [BOS, 4, 5, EOS]), ([8, EOS], [BOS, 9, EOS])])


@pytest.fixture
def homework():
    """The example's model; its classes come before the parser of its arguments."""
    names = {"__name__": "homework"}
    exec(EXAMPLE.read_text(encoding="utf-8").split("parser =")[0], names)
    return names["Homework"](20, 24, 16).eval()


@pytest.fixture
def ours(homework):
    """The same network in settings, with the example's weights."""
    book = {"cell": "gru", "attention": "before", "score": "additive", "readout": "state"}
    sizes = {"width": 16, "embedding": 16, "encoder_layers": 2, "decoder_layers": 2}
    plain = {"bridge": "layers", "bidirectional": False, "tie": "none", "dropout": 0.0}
    model = build_model(RNNConfig(**book, **sizes, **plain), 20, 24).eval()
    pairs = [
        (homework.encoder.embedding, model.encoder.embedding),
        (homework.encoder.gru, model.encoder.cells),
        (homework.decoder.embedding, model.decoder.embedding),
        (homework.decoder.attention, model.decoder.attention),
        (homework.decoder.gru, model.decoder.cells),
        (homework.decoder.out, model.decoder.out),
    ]
    for theirs, part in pairs:
        part.load_state_dict(theirs.state_dict())
    return model


def started(model):
    return model.decoder.start(model.encoder(BATCH.source, BATCH.source_lengths))


def test_c6_the_homework_is_the_books_decoder(homework, ours, close):
    found = homework(BATCH.source, BATCH.source_lengths, BATCH.target_in)
    close(found, ours(BATCH.source, BATCH.source_lengths, BATCH.target_in))
    close(homework.loss(BATCH).loss, ours.loss(BATCH).loss)


def test_c6_the_homework_decodes(homework, ours):
    """Beams are expanded, reordered and pruned by the example's own state."""
    rules = {"width": 4, "n_best": 3, "batch": 2, "limit": [6, 6]}
    found = beam(homework.step, started(homework), **rules)
    expected = beam(ours.step, started(ours), **rules)
    for our_answers, their_answers in zip(expected, found, strict=True):
        assert [one.tokens for one in their_answers] == [one.tokens for one in our_answers]


def test_c7_sentences_join_a_running_batch(homework, close):
    sentences = [collate([row]) for row in BATCH.rows()]
    starts = [
        homework.decoder.start(homework.encoder(one.source, one.source_lengths))
        for one in sentences
    ]
    tokens = torch.tensor([BOS, BOS])
    joined, _ = homework.step(tokens, starts[0].join(starts[1]))
    together, _ = homework.step(tokens, started(homework))
    close(joined, together)
