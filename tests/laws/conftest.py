"""Every kind of model the config can say, tiny. A law that takes `model` runs over all of them."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import pytest
import torch
from torch import Tensor

from regard.config import ModelConfig, RNNConfig, TransformerConfig
from regard.data.batches import Batch, collate
from regard.models import Seq2Seq, build_model
from regard.text.vocabulary import BOS, EOS

SIZE = 30
FIRST_WORD = 5
SCORES = ("dot", "scaled_dot", "multiplicative", "additive")
POSITIONS = ("none", "sinusoidal", "learned", "relative", "rotary", "alibi")


def tiny_rnn(**changes) -> RNNConfig:
    return RNNConfig(**({"width": 16, "embedding": 16, "dropout": 0.0} | changes))


def tiny_transformer(**changes) -> TransformerConfig:
    sizes = {
        "width": 16,
        "ffn": 24,
        "heads": 2,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "max_positions": 64,
        "relative_clip": 3,
    }
    return TransformerConfig(**(sizes | {"dropout": 0.0} | changes))


def rnns() -> Iterator[tuple[str, RNNConfig]]:
    looks = [*product(("before", "after"), SCORES), ("none", "dot")]
    for number, (cell, (attention, score)) in enumerate(product(("rnn", "gru", "lstm"), looks)):
        both, layers = number % 2 == 0, 2 if number % 3 == 0 else 1
        name = "-".join((cell, attention, *([score] if attention != "none" else []), *(["both"] if both else [])))
        name += f"-{layers}layers" if layers > 1 else ""
        yield name, tiny_rnn(cell=cell, attention=attention, score=score, bidirectional=both, decoder_layers=layers)
    yield "lstm-deep-encoder", tiny_rnn(encoder_layers=2, decoder_layers=2)
    yield "gru-readable", tiny_rnn(cell="gru", fast=False, encoder_layers=2)
    yield "lstm-before-readable", tiny_rnn(cell="lstm", attention="before", fast=False)
    yield "gru-tie-target", tiny_rnn(cell="gru", tie="target")
    yield "lstm-tie-all", tiny_rnn(tie="all")
    yield "lstm-narrow-score", tiny_rnn(score="additive", score_width=5, embedding=12)


def transformers() -> Iterator[tuple[str, TransformerConfig]]:
    for position, placement in product(POSITIONS, ("pre", "post")):
        yield f"transformer-{position}-{placement}", tiny_transformer(position=position, placement=placement)
    for position, score in product(("sinusoidal", "relative", "alibi"), ("dot", "multiplicative", "additive")):
        yield f"transformer-{position}-{score}", tiny_transformer(position=position, score=score)
    yield "transformer-rotary-dot", tiny_transformer(position="rotary", score="dot")
    others = {
        "rms": {"norm": "rms"},
        "no-norm": {"norm": "none"},
        "rms-post": {"norm": "rms", "placement": "post"},
        "gelu": {"activation": "gelu"},
        "geglu": {"activation": "geglu"},
        "swiglu": {"activation": "swiglu"},
        "no-feedforward": {"feedforward": False},
        "no-residual": {"residual": False},
        "tie-none": {"tie": "none"},
        "tie-target": {"tie": "target"},
        "no-bias": {"bias": False},
        "one-head": {"heads": 1},
        "one-layer": {"encoder_layers": 1, "decoder_layers": 1},
        "causal": {"causal": True},
        "causal-relative": {"causal": True, "position": "relative"},
        "wait-1": {"causal": True, "wait": 1},
        "wait-2-post": {"causal": True, "wait": 2, "placement": "post"},
        "wait-2-alibi": {"causal": True, "wait": 2, "position": "alibi"},
        "wait-3-rotary": {"causal": True, "wait": 3, "position": "rotary"},
        "wait-3-additive": {"causal": True, "wait": 3, "position": "relative", "score": "additive"},
    }
    for name, changes in others.items():
        yield f"transformer-{name}", tiny_transformer(**changes)


VARIANTS: dict[str, ModelConfig] = {**dict(rnns()), **dict(transformers())}


def built(config: ModelConfig, seed: int = 0) -> Seq2Seq:
    """With weights such that no bias is zero and no norm is one: a zero would hide mistakes."""
    torch.manual_seed(seed)
    model = build_model(config, SIZE, SIZE).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


@pytest.fixture(scope="session", params=VARIANTS.values(), ids=VARIANTS.keys())
def model(request: pytest.FixtureRequest) -> Seq2Seq:
    """Do not change it: the next law gets the same one."""
    return built(request.param)


REPEATABLE = {n: c for n, c in VARIANTS.items() if isinstance(c, TransformerConfig) and c.position != "learned"}


@pytest.fixture(scope="session", params=REPEATABLE.values(), ids=REPEATABLE.keys())
def repeatable(request: pytest.FixtureRequest) -> Seq2Seq:
    """One whose steps a GPU can repeat as a graph: no RNN, no table of positions that may be too short."""
    return built(request.param)


@pytest.fixture(scope="session")
def close() -> Callable[[Tensor, Tensor], None]:
    """Equal to 1e-5, or to 1e-5 of the largest number where a model without norms makes large ones."""

    def check(ours: Tensor, theirs: Tensor) -> None:
        largest = theirs.abs().max().item() if theirs.numel() else 1.0
        torch.testing.assert_close(ours, theirs, atol=1e-5 * max(1.0, largest), rtol=0)

    return check


@pytest.fixture(scope="session")
def build() -> Callable[..., Seq2Seq]:
    return built


@pytest.fixture(scope="session")
def rnn() -> Callable[..., RNNConfig]:
    return tiny_rnn


@pytest.fixture(scope="session")
def transformer() -> Callable[..., TransformerConfig]:
    return tiny_transformer


@pytest.fixture(scope="session")
def batch_of() -> Callable[[int, Sequence[tuple[int, int]]], Batch]:
    """Sentences of random words: batch_of(seed, [(source words, target words), …])."""

    def make(seed: int, lengths: Sequence[tuple[int, int]]) -> Batch:
        words = torch.Generator().manual_seed(seed)

        def draw(count: int) -> list[int]:
            return torch.randint(FIRST_WORD, SIZE, (count,), generator=words).tolist()

        return collate([([*draw(s), EOS], [BOS, *draw(t), EOS]) for s, t in lengths])

    return make
