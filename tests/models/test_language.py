"""A decoder alone and an encoder alone: what they are made of, and what they begin with."""

import numpy as np
import pytest
import torch

from regard.config import RNNConfig, TransformerConfig
from regard.data.batches import Batch, collate
from regard.data.objectives import Masked
from regard.models import CausalModel, MaskedEncoder, build_model
from regard.models.language import NoEncoder
from regard.models.seq2seq import find_layouts
from regard.models.size import count_parameters
from regard.text.vocabulary import BOS, EOS, MASK, PAD

SIZE = 30
SIZES = {"width": 16, "ffn": 24, "heads": 2, "encoder_layers": 3, "decoder_layers": 2}
SMALL = SIZES | {"max_positions": 32, "dropout": 0.0}


def transformer(**changes):
    return TransformerConfig(**(SMALL | changes))


def rnn(**changes):
    return RNNConfig(**({"width": 16, "embedding": 12, "dropout": 0.0} | changes))


CAUSAL = {
    "default": transformer(),
    "rotary-swiglu": transformer(position="rotary", activation="swiglu"),
    "learned-untied": transformer(position="learned", tie="none"),
    "relative-post-rms": transformer(position="relative", placement="post", norm="rms"),
    "additive-biased": transformer(score="additive", output_bias=True),
    "levels": transformer(levels=2, window=2, segment_layers=1),
    "linformer": transformer(pattern="linformer", features=4),
    "windowed": transformer(decoder_pattern="window", window=2),
    "performer": transformer(decoder_pattern="performer", features=8),
    "gru": rnn(cell="gru", decoder_layers=2),
    "lstm-before": rnn(attention="before", score="additive"),
    "lstm-tied": rnn(tie="target", embedding=16),
}
MASKED = {name: config for name, config in CAUSAL.items() if isinstance(config, TransformerConfig)}


def built(config, objective):
    torch.manual_seed(3)
    return build_model(config, SIZE, SIZE, objective=objective).eval().double()


def counted(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", CAUSAL)
def test_a_decoder_alone_is_as_large_as_told_before(name):
    model = built(CAUSAL[name], "causal")
    assert isinstance(model, CausalModel)
    assert counted(model) == count_parameters(CAUSAL[name], SIZE, SIZE, "causal")


@pytest.mark.parametrize("name", MASKED)
def test_an_encoder_alone_is_as_large_as_told_before(name):
    model = built(MASKED[name], "masked")
    assert isinstance(model, MaskedEncoder)
    assert counted(model) == count_parameters(MASKED[name], SIZE, SIZE, "masked")


@pytest.mark.parametrize("objective", ["causal", "masked"])
@pytest.mark.parametrize("tie", ["none", "inputs", "target", "all"])
def test_the_output_is_the_embedding_where_tied(objective, tie):
    model = built(transformer(tie=tie), objective)
    part = model.decoder if objective == "causal" else model.encoder
    assert (model.out.weight is part.embedding.weight) == (tie in ("target", "all"))


@pytest.mark.parametrize("name", CAUSAL)
def test_every_parameter_learns(name):
    """There is none that a source would be for."""
    model = built(CAUSAL[name], "causal").train()
    model.loss(collate([([EOS], [BOS, 7, 8, 9, EOS]), ([EOS], [BOS, 9, EOS])])).loss.backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name


def test_a_source_makes_no_difference():
    model = built(transformer(), "causal")
    target = torch.tensor([[BOS, 7, 8], [BOS, 9, PAD]])
    one = model(torch.tensor([[EOS], [EOS]]), torch.tensor([1, 1]), target)
    other = model(torch.tensor([[5, 6, EOS], [EOS, PAD, PAD]]), torch.tensor([3, 1]), target)
    assert torch.equal(one, other)
    assert [name for name, _ in model.named_parameters() if "encoder" in name] == []


def test_no_encoder_reads_nothing_and_goes_on_doing_so():
    encoder = NoEncoder(16)
    memory = encoder(torch.ones(3, 5, dtype=torch.long), torch.tensor([5, 2, 1]))
    assert memory.states.shape == (3, 0, 16)
    memory, rest = encoder.extend(torch.ones(3, 4, dtype=torch.long))
    assert memory.states.shape == (3, 0, 16)
    assert memory.lengths.tolist() == [4, 4, 4]
    assert rest is None


# prompts


@pytest.mark.parametrize("name", CAUSAL)
@torch.no_grad()
def test_prompts_of_mixed_lengths_begin_as_each_alone(name):
    model = built(CAUSAL[name], "causal")
    lengths = torch.tensor([3, 0, 5, 3, 1])
    prompts = torch.randint(5, SIZE, (5, 5))
    prompts[:, 0] = BOS
    together = model.start(prompts, lengths)
    tokens = torch.tensor([7, BOS, 9, 10, 11])
    for turn in range(3):  # the state goes on as it began
        logits, together = model.step(tokens + turn * (tokens > BOS), together)
        for row, length in enumerate(lengths.tolist()):
            one = model.start(prompts[row : row + 1, :length], lengths[row : row + 1])
            for t in range(turn + 1):
                given = tokens[row : row + 1]
                alone, one = model.step(given + t * (given > BOS), one)
            torch.testing.assert_close(logits[row], alone[0], atol=1e-12, rtol=1e-12)


@torch.no_grad()
def test_what_pads_a_prompt_is_not_read():
    model = built(transformer(), "causal")
    lengths = torch.tensor([2, 4])
    prompts = torch.tensor([[BOS, 7, 8, 9], [BOS, 7, 8, 9]])
    other = torch.tensor([[BOS, 7, PAD, PAD], [BOS, 7, 8, 9]])
    tokens = torch.tensor([10, 11])
    ours, _ = model.step(tokens, model.start(prompts, lengths))
    theirs, _ = model.step(tokens, model.start(other, lengths))
    assert torch.equal(ours, theirs)


# packed rows


def masked_batch() -> Batch:
    objective = Masked(0.4, 5, SIZE)
    texts = [np.arange(5, 5 + length) for length in (9, 1, 4)]
    rows = [(np.array([EOS]), np.array([BOS, *text, EOS])) for text in texts]
    return collate([objective.row(row, seed) for seed, row in enumerate(rows)])


@pytest.mark.parametrize("name", [*MASKED])
@pytest.mark.parametrize("with_layouts", [False, True])
@torch.no_grad()
def test_hidden_states_give_what_predict_gives(name, with_layouts):
    model, batch = built(MASKED[name], "masked"), masked_batch()
    if with_layouts:
        batch = Batch(**{**vars(batch), "layouts": find_layouts(batch)})
    hidden, targets = model.hidden(batch)
    asked = batch.target_out != PAD
    assert targets.tolist() == batch.target_out[asked].tolist()
    expected = model.predict(batch)[asked]
    torch.testing.assert_close(model.output(hidden), expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_rdrop_without_dropout_is_the_loss(objective):
    model = built(transformer(), objective)
    batch = masked_batch()
    if objective == "causal":
        batch = collate([([EOS], [BOS, 7, 8, 9, EOS]), ([EOS], [BOS, 9, EOS])])
    plain, twice = model.loss(batch, 0.1), model.rdrop(batch, 0.1, 3.0)
    torch.testing.assert_close(twice.loss, plain.loss)
    torch.testing.assert_close(twice.nll, plain.nll)
    assert twice.tokens == plain.tokens == batch.tokens


def test_an_encoder_looks_both_ways_and_a_decoder_does_not():
    texts = torch.tensor([[5, MASK, 7, EOS], [5, MASK, 8, EOS]])
    lengths = torch.tensor([4, 4])
    masked = built(transformer(), "masked")(texts, lengths)
    assert not torch.allclose(masked[0, :2], masked[1, :2])
    causal = built(transformer(), "causal")(texts, lengths, texts)
    assert torch.equal(causal[0, :2], causal[1, :2])
    assert not torch.allclose(causal[0, 2:], causal[1, 2:])
