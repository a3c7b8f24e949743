"""Every kind of model the config can say, tiny. A law that takes `model` runs over all that write:
encoder-decoders, and decoders alone (causal language models), whose encoder reads nothing. One that
takes `masked` runs over encoders alone.

Laws are mathematics: they are tested in float64, where no processor's rounding comes near the
tolerance. What is about fp32 is held by a bound that follows from magnitudes and lengths:
`sum_error` for one sum, `rounding` for a whole model. `--law-seed N` draws other weights, other
batches and other examples of hypothesis.
"""

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from regard.config import ModelConfig, Objective, RNNConfig, TransformerConfig
from regard.data.batches import Batch, collate
from regard.data.objectives import Masked
from regard.models import CausalModel, MaskedEncoder, Predictor, Seq2Seq, build_model
from regard.text.vocabulary import BOS, EOS

SIZE = 30
FIRST_WORD = 5
SCORES = ("dot", "scaled_dot", "multiplicative", "additive")
POSITIONS = ("none", "sinusoidal", "learned", "relative", "rotary", "alibi")


def apart(query: Tensor, key: Tensor) -> Tensor:
    """A mask of the user's own: no look at the token itself, nor at its neighbours."""
    return (query - key).abs() > 1


def by_head(query: Tensor, key: Tensor) -> Tensor:
    """The same, but the second head may look at the token itself."""
    return (query - key).abs() != torch.arange(2, device=query.device)[:, None, None]


PARTS = {"encoder_mask": by_head, "decoder_mask": apart, "cross_mask": apart}
OWN_MASKS = {
    "encoder_mask": "custom:by_head",
    "decoder_mask": "custom:apart",
    "cross_mask": "custom:apart",
}


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
        name = "-".join(
            (
                cell,
                attention,
                *([score] if attention != "none" else []),
                *(["both"] if both else []),
            )
        )
        name += f"-{layers}layers" if layers > 1 else ""
        yield (
            name,
            tiny_rnn(
                cell=cell,
                attention=attention,
                score=score,
                bidirectional=both,
                decoder_layers=layers,
            ),
        )
    yield "lstm-deep-encoder", tiny_rnn(encoder_layers=2, decoder_layers=2)
    yield "gru-readable", tiny_rnn(cell="gru", fast=False, encoder_layers=2)
    yield "lstm-before-readable", tiny_rnn(cell="lstm", attention="before", fast=False)
    yield "gru-tie-target", tiny_rnn(cell="gru", tie="target")
    yield "lstm-tie-all", tiny_rnn(tie="all")
    plain = {"bridge": "layers", "encoder_layers": 2, "decoder_layers": 2}
    yield "gru-plain-state", tiny_rnn(cell="gru", attention="before", readout="state", **plain)
    yield "lstm-plain-context", tiny_rnn(readout="context", tie="inputs", **plain)
    yield "linear", tiny_rnn(cell="linear", score="additive")
    one_way = {"bidirectional": False, "encoder_layers": 2, "decoder_layers": 2}
    yield "gru-wait-2", tiny_rnn(cell="gru", wait=2, score="additive", **one_way)
    before = {"attention": "before", "bridge": "layers", "cross_mask": "custom:apart"}
    yield "lstm-before-mask-wait-1", tiny_rnn(wait=1, **before, **one_way)
    yield "lstm-none-wait-1", tiny_rnn(attention="none", wait=1, **one_way)
    yield "lstm-narrow-score", tiny_rnn(score="additive", score_width=5, embedding=12)


def transformers() -> Iterator[tuple[str, TransformerConfig]]:
    for position, placement in product(POSITIONS, ("pre", "post")):
        yield (
            f"transformer-{position}-{placement}",
            tiny_transformer(position=position, placement=placement),
        )
    for position, score in product(
        ("sinusoidal", "relative", "alibi"), ("dot", "multiplicative", "additive")
    ):
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
        "d2l": {"placement": "post", "bias": False, "output_bias": True, "tie": "none"},
        "course": {
            "placement": "post",
            "final_norm": "yes",
            "scale_embeddings": False,
            "output_bias": True,
            "tie": "inputs",
        },
        "one-head": {"heads": 1},
        "one-layer": {"encoder_layers": 1, "decoder_layers": 1},
        "causal": {"causal": True},
        "causal-relative": {"causal": True, "position": "relative"},
        "wait-1": {"causal": True, "wait": 1},
        "wait-2-post": {"causal": True, "wait": 2, "placement": "post"},
        "wait-2-alibi": {"causal": True, "wait": 2, "position": "alibi"},
        "wait-3-rotary": {"causal": True, "wait": 3, "position": "rotary"},
        "wait-3-additive": {"causal": True, "wait": 3, "position": "relative", "score": "additive"},
        "masks": OWN_MASKS,
        "window": {"pattern": "window", "decoder_pattern": "window", "window": 2},
        "window-globals": {
            "pattern": "window",
            "decoder_pattern": "window",
            "window": 1,
            "global_tokens": 1,
            "position": "rotary",
        },
        "chunked": {
            "pattern": "chunked",
            "decoder_pattern": "chunked",
            "window": 3,
            "neighbors": 0,
            "position": "relative",
        },
        "chunked-neighbors": {
            "pattern": "chunked",
            "decoder_pattern": "chunked",
            "window": 2,
            "score": "additive",
        },
        "bigbird": {
            "pattern": "bigbird",
            "decoder_pattern": "bigbird",
            "window": 1,
            "random_blocks": 1,
            "global_tokens": 1,
            "position": "alibi",
        },
        "performer": {"pattern": "performer", "decoder_pattern": "performer", "features": 8},
        "performer-rotary": {
            "pattern": "performer",
            "decoder_pattern": "performer",
            "features": 8,
            "position": "rotary",
            "score": "dot",
        },
        "linformer": {"pattern": "linformer", "features": 4},
        "lsh": {"pattern": "lsh", "window": 2, "rounds": 2, "position": "rotary"},
        "levels": {"levels": 2, "window": 2, "segment_layers": 1},
        "levels-relative": {"levels": 2, "window": 3, "position": "relative", "placement": "post"},
        "routing": {"pattern": "routing", "clusters": 3},
        "wait-2-performer": {"causal": True, "wait": 2, "pattern": "performer", "features": 8},
        "wait-2-window": {"causal": True, "wait": 2, "pattern": "window", "window": 2},
    }
    for name, changes in others.items():
        yield f"transformer-{name}", tiny_transformer(**changes)


VARIANTS: dict[str, ModelConfig] = {**dict(rnns()), **dict(transformers())}
"""Encoder-decoders."""


def decoders_alone() -> Iterator[tuple[str, ModelConfig]]:
    for position in ("sinusoidal", "relative", "rotary", "alibi"):
        yield f"alone-{position}", tiny_transformer(position=position)
    others = {
        "rotary-post-rms": {"position": "rotary", "placement": "post", "norm": "rms"},
        "masks": {"decoder_mask": "custom:apart"},
        "window": {"decoder_pattern": "window", "window": 2},
        "window-globals": {
            "decoder_pattern": "window",
            "window": 1,
            "global_tokens": 1,
            "position": "rotary",
        },
    }
    for name, changes in others.items():
        yield f"alone-{name}", tiny_transformer(**changes)
    yield "alone-gru-2layers", tiny_rnn(cell="gru", decoder_layers=2)
    yield "alone-lstm-tie", tiny_rnn(cell="lstm", tie="target")


def encoders_alone() -> Iterator[tuple[str, TransformerConfig]]:
    for position in POSITIONS:
        yield f"masked-{position}", tiny_transformer(position=position)
    others = {
        "post-biased": {"placement": "post", "output_bias": True},
        "geglu-rms-tie-none": {"activation": "geglu", "norm": "rms", "tie": "none"},
        "masks": {"encoder_mask": "custom:by_head"},
        "window": {"pattern": "window", "window": 2},
        "window-globals": {
            "pattern": "window",
            "window": 1,
            "global_tokens": 1,
            "position": "rotary",
        },
        "chunked": {"pattern": "chunked", "window": 3, "neighbors": 0, "position": "relative"},
        "performer": {"pattern": "performer", "features": 8},
        "linformer": {"pattern": "linformer", "features": 4},
        "lsh": {"pattern": "lsh", "window": 2, "rounds": 2, "position": "rotary"},
        "levels": {"levels": 2, "window": 2, "segment_layers": 1},
        "routing": {"pattern": "routing", "clusters": 3},
    }
    for name, changes in others.items():
        yield f"masked-{name}", tiny_transformer(**changes)


CAUSAL: dict[str, ModelConfig] = dict(decoders_alone())
MASKED: dict[str, TransformerConfig] = dict(encoders_alone())


def shaken(module: nn.Module) -> nn.Module:
    """With weights such that no bias is zero and no norm is one: a zero would hide mistakes."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return module.eval()


def built(config: ModelConfig, seed: int, objective: Objective = "translate") -> Predictor:
    """In float64."""
    torch.manual_seed(seed)
    return shaken(build_model(config, SIZE, SIZE, PARTS, objective)).double()


@pytest.fixture(autouse=True)
def _drawn_anew(law_seed: int) -> None:
    """What a law draws without a seed of its own depends on --law-seed, and not on the tests before
    it.
    """
    torch.manual_seed(law_seed)
    np.random.seed(law_seed)
    random.seed(law_seed)


@pytest.fixture(scope="session")
def seed_of(law_seed: int) -> Callable[[int], int]:
    """A law's own seeds, shifted by --law-seed: seed_of(3)."""
    return lambda seed: seed + 1_000_003 * law_seed


@pytest.fixture(scope="session", params=VARIANTS.values(), ids=VARIANTS.keys())
def variant(request: pytest.FixtureRequest) -> ModelConfig:
    """The config of every kind of encoder-decoder."""
    return request.param


@pytest.fixture(scope="session")
def own_parts() -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """The parts of the user's own that some variants have."""
    return PARTS


@pytest.fixture(
    scope="session",
    params=[
        *((config, "translate") for config in VARIANTS.values()),
        *((config, "causal") for config in CAUSAL.values()),
    ],
    ids=[*VARIANTS, *CAUSAL],
)
def model(request: pytest.FixtureRequest, seed_of: Callable[[int], int]) -> Seq2Seq:
    """One that writes. Do not change it: the next law gets the same one."""
    config, objective = request.param
    return built(config, seed_of(0), objective)


@pytest.fixture(scope="session", params=VARIANTS.values(), ids=VARIANTS.keys())
def translating(request: pytest.FixtureRequest, seed_of: Callable[[int], int]) -> Seq2Seq:
    """One with an encoder, for what is about answers to a source."""
    return built(request.param, seed_of(0))


@pytest.fixture(scope="session", params=CAUSAL.values(), ids=CAUSAL.keys())
def causal_model(request: pytest.FixtureRequest, seed_of: Callable[[int], int]) -> CausalModel:
    """A decoder alone, for what is about prompts."""
    return built(request.param, seed_of(0), "causal")


@pytest.fixture(scope="session", params=MASKED.values(), ids=MASKED.keys())
def masked(request: pytest.FixtureRequest, seed_of: Callable[[int], int]) -> MaskedEncoder:
    """An encoder alone."""
    return built(request.param, seed_of(0), "masked")


REPEATABLE = {
    n: c
    for n, c in VARIANTS.items()
    if isinstance(c, TransformerConfig)
    and c.position != "learned"
    and not c.has_own_masks
    and not c.has_patterns
}


@pytest.fixture(scope="session", params=REPEATABLE.values(), ids=REPEATABLE.keys())
def repeatable(request: pytest.FixtureRequest, seed_of: Callable[[int], int]) -> Seq2Seq:
    """One whose steps a GPU can repeat as a graph: no RNN, no table of positions that may be too
    short.
    """
    return built(request.param, seed_of(0))


EXACT = 1e-9
"""What counts as equal in float64, whose numbers are known to 2e-16: room for some million
roundings, and for no mistake.
"""


def equal(ours: Tensor, theirs: Tensor, name: str = "") -> None:
    assert ours.dtype == theirs.dtype == torch.float64, (
        f"{name}: a law is tested in float64, not {ours.dtype} and {theirs.dtype}"
    )
    largest = theirs.abs().max().item() if theirs.numel() else 1.0
    told = (lambda text: f"{name}: {text}") if name else None
    torch.testing.assert_close(ours, theirs, atol=EXACT * max(1.0, largest), rtol=0, msg=told)


@pytest.fixture(scope="session")
def close() -> Callable[..., None]:
    """close(ours, theirs, name=""): equal, up to 1e-9 of the largest magnitude (of 1, if all are
    smaller). float64 only.
    """
    return equal


@pytest.fixture(scope="session")
def same_gradients() -> Callable[[nn.Module, nn.Module], None]:
    """Of two models with the same parameters, equal as `close` says."""

    def check(one: nn.Module, other: nn.Module) -> None:
        for (name, ours), theirs in zip(one.named_parameters(), other.parameters(), strict=True):
            assert (ours.grad is None) == (theirs.grad is None), name
            if ours.grad is not None:
                equal(ours.grad, theirs.grad, name)

    return check


@pytest.fixture(scope="session")
def sum_error() -> Callable[..., float]:
    """sum_error(terms, magnitude=1.0, kind=torch.float32): how far apart two ways to add up so many
    numbers may be.

    However they are added, each is rounded at most `terms` times, by half of eps each time (Higham
    2002, section 4.2: the error is at most terms · eps/2 · the sum of magnitudes). Two ways: twice
    that. magnitude: the sum of the terms' magnitudes.
    """

    def bound(terms: int, magnitude: float = 1.0, kind: torch.dtype = torch.float32) -> float:
        return torch.finfo(kind).eps * terms * magnitude

    return bound


@pytest.fixture(scope="session")
def rounding() -> Callable[..., float]:
    """rounding(module, compute, terms): how far fp32 may carry compute(module) from what float64
    says.

    A product of fp32 vectors is the exact product of vectors whose entries were changed by at most
    terms · eps/2 (Higham 2002, section 3.1); `terms` is the length of the longest sum. So all
    weights of a float64 copy are changed by as much, with signs drawn at random, several times; the
    bound is the largest change of the result, and what its own last sum may be off. It follows the
    model's own magnitudes. A difference must come with what it is the difference of: that is what
    was rounded.
    """

    @torch.no_grad()
    def changed(module: nn.Module, size: float, signs: torch.Generator) -> nn.Module:
        module = copy.deepcopy(module)
        for parameter in module.parameters():
            sign = torch.randint(0, 2, parameter.shape, generator=signs) * 2 - 1
            parameter.mul_(1 + size * sign)
        return module

    def bound(
        module: nn.Module, compute: Callable[[nn.Module], Tensor], terms: int, draws: int = 4
    ) -> float:
        signs = torch.Generator().manual_seed(0)
        exact = compute(module)
        assert exact.dtype == torch.float64
        size = terms * torch.finfo(torch.float32).eps / 2
        moved = [compute(changed(module, size, signs)) - exact for _ in range(draws)]
        return max(change.abs().max().item() for change in moved) + size * exact.abs().max().item()

    return bound


@pytest.fixture(scope="session")
def build(seed_of: Callable[[int], int]) -> Callable[..., Seq2Seq]:
    """build(config, seed=0), in float64."""
    return lambda config, seed=0: built(config, seed_of(seed))


@pytest.fixture(scope="session")
def shake() -> Callable[[nn.Module], nn.Module]:
    return shaken


@pytest.fixture(scope="session")
def rnn() -> Callable[..., RNNConfig]:
    return tiny_rnn


@pytest.fixture(scope="session")
def transformer() -> Callable[..., TransformerConfig]:
    return tiny_transformer


@pytest.fixture(scope="session")
def batch_of(seed_of: Callable[[int], int]) -> Callable[[int, Sequence[tuple[int, int]]], Batch]:
    """Sentences of random words: batch_of(seed, [(source words, target words), …])."""

    def make(seed: int, lengths: Sequence[tuple[int, int]]) -> Batch:
        words = torch.Generator().manual_seed(seed_of(seed))

        def draw(count: int) -> list[int]:
            return torch.randint(FIRST_WORD, SIZE, (count,), generator=words).tolist()

        return collate([([*draw(s), EOS], [BOS, *draw(t), EOS]) for s, t in lengths])

    return make


@pytest.fixture(scope="session")
def masked_batch_of(seed_of: Callable[[int], int]) -> Callable[[int, Sequence[int]], Batch]:
    """Texts of random words, some of them masked: masked_batch_of(seed, [words, …])."""
    objective = Masked(rate=0.4, first=FIRST_WORD, size=SIZE)

    def make(seed: int, lengths: Sequence[int]) -> Batch:
        words = np.random.default_rng(seed_of(seed))
        texts = [words.integers(FIRST_WORD, SIZE, length) for length in lengths]
        rows = [(np.array([EOS]), np.array([BOS, *text, EOS])) for text in texts]
        return collate([objective.row(row, seed + i) for i, row in enumerate(rows)])

    return make
