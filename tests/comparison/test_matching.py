"""Widths with which models have as many parameters as wanted, to within 2 %."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.comparison.matching import CLOSE, Sizes, matched
from regard.config import build
from regard.errors import UserError
from regard.models import build_model
from regard.models.size import count_parameters

OBJECTIVES = st.sampled_from(["translate", "causal", "masked", "denoise"])
TRANSFORMERS = st.fixed_dictionaries(
    {
        "width": st.integers(1, 40).map(lambda steps: 16 * steps),
        "heads": st.sampled_from([1, 2, 4, 8]),
        "ffn": st.integers(1, 2000),
        "encoder_layers": st.integers(1, 6),
        "decoder_layers": st.integers(1, 6),
        "position": st.sampled_from(["none", "sinusoidal", "learned", "relative", "rotary"]),
        "score": st.sampled_from(["dot", "scaled_dot", "multiplicative", "additive"]),
        "norm": st.sampled_from(["layer", "rms", "none"]),
        "activation": st.sampled_from(["relu", "swiglu"]),
        "feedforward": st.booleans(),
        "bias": st.booleans(),
        "tie": st.sampled_from(["none", "target"]),
    }
)
RNNS = st.fixed_dictionaries(
    {
        "kind": st.just("rnn"),
        "cell": st.sampled_from(["rnn", "gru", "lstm"]),
        "width": st.integers(2, 300).map(lambda half: 2 * half),
        "embedding": st.integers(1, 600),
        "encoder_layers": st.integers(1, 3),
        "decoder_layers": st.integers(1, 3),
        "attention": st.sampled_from(["none", "before", "after"]),
        "score": st.sampled_from(["dot", "multiplicative", "additive"]),
        "bidirectional": st.booleans(),
    }
)
WANTED = st.floats(4, 8).map(lambda power: 10**power)


def model_of(values):
    """The model of these settings; None: there is no such model."""
    try:
        return build({"model": values}).model
    except UserError:
        return None


@settings(max_examples=150)
@given(
    values=TRANSFORMERS | RNNS,
    wanted=WANTED,
    source=st.integers(5, 8000),
    target=st.integers(5, 8000),
    objective=OBJECTIVES,
)
def test_parameters_are_within_two_per_cent_or_it_is_refused(
    values, wanted, source, target, objective
):
    model = model_of(values)
    if model is None or (values.get("kind") == "rnn" and objective not in ("translate", "causal")):
        return
    sizes = Sizes(source, target, objective)
    try:
        widths = matched(model, wanted, sizes)
    except UserError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert "no width gives this model" in refused
        return

    resized = build({"model": {**values, **widths}}).model
    count = count_parameters(resized, source, target, objective)
    assert abs(count - wanted) <= CLOSE * wanted
    same = {"heads", "encoder_layers", "decoder_layers", "tie", "cell", "attention"}
    assert all(getattr(resized, name) == values[name] for name in same & set(values))


@settings(max_examples=30)
@given(values=TRANSFORMERS, wanted=st.floats(5.5, 8).map(lambda power: 10**power))
def test_where_there_is_room_it_is_never_refused(values, wanted):
    """From some 300,000 parameters on, one step of the feed-forward width is little."""
    model = model_of({**values, "feedforward": True, "encoder_layers": 2, "decoder_layers": 2})
    if model is not None:
        matched(model, wanted, Sizes(50, 50, "translate"))


@pytest.mark.parametrize("kind", ["transformer", "rnn"])
def test_the_model_that_is_built_has_them(kind):
    values = {"kind": kind, "width": 64, "tie": "none"}
    widths = matched(build({"model": values}).model, 200_000, Sizes(100, 120, "translate"))
    model = build_model(build({"model": {**values, **widths}}).model, 100, 120)
    count = sum(weight.numel() for weight in model.parameters())
    assert abs(count - 200_000) <= CLOSE * 200_000


def test_what_fits_already_stays():
    model = build({"model": {"width": 64, "ffn": 100, "heads": 4}}).model
    sizes = Sizes(100, 100, "translate")
    wanted = sizes.parameters(model)
    widths = matched(model, wanted, sizes)
    resized = build({"model": {**widths, "heads": 4}}).model
    assert sizes.parameters(resized) == pytest.approx(wanted, rel=0.002)
    assert resized.width == 64


def test_parts_of_the_users_own_cannot_be_counted():
    model = build({"model": {"score": "custom:Mine"}}).model
    with pytest.raises(UserError, match="custom parts"):
        matched(model, 10**6, Sizes(10, 10, "translate"))


def test_too_few_parameters_for_any_width():
    model = build({"model": {"width": 64}}).model
    with pytest.raises(UserError, match="no width gives this model 1,000 parameters: the nearest"):
        matched(model, 1000, Sizes(5000, 5000, "translate"))
