"""Settings: what is wrong is told by name, with what was probably meant."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.config import (
    Config,
    RNNConfig,
    TransformerConfig,
    build,
    merge,
    parse_overrides,
    read_toml,
)
from regard.errors import UserError

laws = settings(max_examples=80, deadline=None, derandomize=True)


@pytest.mark.parametrize(
    ("given_settings", "meant"),
    [
        ({"train": {"stesp": 3}}, r"no setting train\.stesp; did you mean train\.steps\?"),
        ({"model": {"widht": 3}}, r"model\.widht; did you mean model\.width\?"),
        ({"trian": {}}, r"no section trian; did you mean train\?"),
        ({"search": {"zzzzz": 1}}, r"no setting search\.zzzzz \(there are: search\.width"),
        ({"model": {"kind": "rnn", "cel": "gru"}}, r"model\.cel; did you mean model\.cell\?"),
    ],
)
def test_unknown_names_have_neighbours(given_settings, meant):
    with pytest.raises(UserError, match=meant):
        build(given_settings)


@pytest.mark.parametrize(
    ("section", "name", "value", "told"),
    [
        ("train", "steps", "many", "whole number"),
        ("train", "steps", 1.5, "whole number"),
        ("train", "steps", True, "whole number"),
        ("train", "rate", "fast", "a number"),
        ("train", "rate", True, "a number"),
        ("text", "share", 1, "true or false"),
        ("text", "share", "maybe", "true or false"),
        ("model", "position", "sine", "sinusoidal"),
        ("model", "kind", "cnn", "transformer or rnn"),
        ("train", "betas", [0.9], "betas"),
        ("train", "betas", 0.9, "betas"),
        ("data", "path", ["a"], "a text"),
        ("data", "options", 3, r"data\.options"),
    ],
)
def test_wrong_values_say_what_is_allowed(section, name, value, told):
    with pytest.raises(UserError, match=told) as caught:
        build({section: {name: value}})
    assert f"{section}.{name}" in str(caught.value)


def test_values_that_mean_the_same_are_taken():
    config = build({"train": {"steps": 100.0, "rate": 1, "betas": [0, 0.5]}, "data": {"path": 123}})
    assert (config.train.steps, config.train.rate, config.train.betas, config.data.path) == (
        100,
        1.0,
        (0.0, 0.5),
        "123",
    )
    assert isinstance(config.train.steps, int)
    assert isinstance(config.train.rate, float)


def test_an_rnn_has_no_heads():
    with pytest.raises(UserError, match=r"no setting model\.heads for model\.kind=rnn"):
        build({"model": {"kind": "rnn", "heads": 4}})
    with pytest.raises(UserError, match=r"no setting model\.cell for model\.kind=transformer"):
        build({"model": {"cell": "gru"}})
    with pytest.raises(TypeError):
        RNNConfig(heads=4)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ({"width": 10, "heads": 4}, r"model\.heads=4 does not divide model\.width=10"),
        ({"position": "rotary", "score": "additive"}, r"model\.position=rotary needs"),
        ({"position": "rotary", "score": "custom:Mine"}, r"model\.position=rotary needs"),
        ({"position": "rotary", "width": 12, "heads": 4}, "even"),
        ({"kind": "rnn", "tie": "all", "embedding": 8, "width": 16}, r"model\.tie=all"),
        ({"wait": 3}, r"model\.wait=3 .* set model\.causal=true"),
        ({"kind": "rnn", "wait": 3}, r"model\.kind=transformer has it"),
    ],
)
def test_what_does_not_go_together(model, told):
    with pytest.raises(UserError, match=told):
        build({"model": model})


@pytest.mark.parametrize("path", ["auto", "plain", "packed", "compiled", "captured"])
def test_an_rnn_is_neither_compiled_nor_captured(path):
    settings = {"model": {"kind": "rnn"}, "train": {"path": path}}
    if path in ("auto", "plain", "packed"):
        assert build(settings).train.path == path
        return
    with pytest.raises(
        UserError, match=rf"train\.path={path} needs model\.kind=transformer: an RNN trains with"
    ):
        build(settings)


@pytest.mark.parametrize(
    ("section", "values"),
    [
        ("model", {"heads": 0}),
        ("model", {"width": 0}),
        ("model", {"encoder_layers": -1}),
        ("model", {"dropout": 1.5}),
        ("model", {"causal": True, "wait": -1}),
        ("model", {"causal": "perhaps"}),
        ("model", {"causal": True, "wait": 1.5}),
        ("model", {"kind": "rnn", "width": 15, "bidirectional": True}),
        ("train", {"save_every": 0}),
        ("train", {"log_every": 0}),
        ("train", {"evaluate_every": 0}),
        ("train", {"accumulate": 0}),
        ("train", {"steps": -5}),
        ("search", {"width": 0}),
        ("data", {"batch_tokens": 0}),
    ],
    ids=str,
)
def test_values_nothing_can_be_made_of(section, values):
    """Told when the config is built, not by a division by zero after the data was read."""
    with pytest.raises(UserError, match=rf"{section}\."):
        build({section: values})


@pytest.mark.parametrize("name", ["score", "position"])
def test_parts_of_ones_own_are_named(name):
    config = build({"model": {name: "custom:Mine"}})
    assert getattr(config.model, name) == "custom:Mine"
    with pytest.raises(UserError, match="choose"):
        build({"model": {"norm": "custom:Mine"}})


# ---- merging ----


def test_later_layers_win_field_by_field():
    merged = merge(
        {"train": {"steps": 1, "rate": 0.1}}, {"train": {"steps": 2}}, {"model": {"width": 8}}
    )
    assert merged == {"train": {"steps": 2, "rate": 0.1}, "model": {"width": 8}}


def test_options_are_merged_one_by_one():
    merged = merge(
        {"data": {"options": {"length": 4, "symbols": 5}}}, {"data": {"options": {"length": 9}}}
    )
    assert merged["data"]["options"] == {"length": 9, "symbols": 5}


def test_merging_changes_no_layer():
    below = {"data": {"options": {"length": 4}}, "model": {"kind": "rnn", "cell": "gru"}}
    merge(below, {"data": {"options": {"length": 9}}, "model": {"kind": "transformer"}})
    assert below == {"data": {"options": {"length": 4}}, "model": {"kind": "rnn", "cell": "gru"}}


def test_another_kind_of_model_drops_what_only_the_old_one_has():
    merged = merge(
        {"model": {"kind": "rnn", "cell": "gru", "width": 32}},
        {"model": {"kind": "transformer", "heads": 2}},
    )
    assert build(merged).model == TransformerConfig(width=32, heads=2)
    merged = merge({"model": {"heads": 2, "width": 32}}, {"model": {"kind": "rnn"}})
    assert build(merged).model == RNNConfig(width=32)


# ---- overrides and files ----


def test_overrides():
    words = [
        "train.steps=100",
        "data.options.complexity=3",
        "data.path=a=b.tsv",
        "model.position=rotary",
        "text.share=false",
    ]
    assert parse_overrides(words) == {
        "train": {"steps": "100"},
        "data": {"options": {"complexity": "3"}, "path": "a=b.tsv"},
        "model": {"position": "rotary"},
        "text": {"share": "false"},
    }
    built = build(parse_overrides(words))
    assert (built.train.steps, built.text.share) == (100, False)


def test_steps_asked_for_win_over_epochs_below():
    assert merge({"train": {"epochs": 3}}, {"train": {"steps": 7}}) == {
        "train": {"epochs": 0, "steps": 7}
    }


@pytest.mark.parametrize("word", ["steps=3", "train.steps", "=", "train", "out.x=1"])
def test_what_is_no_override(word):
    with pytest.raises(UserError, match="section"):
        parse_overrides([word])


@pytest.mark.parametrize(
    "path", ["1_000", "2024-01-01", "0x10", "1e5", "12:30:00", "pairs.tsv", "[a]"]
)
def test_a_file_may_be_called_anything(path):
    """TOML would read some names as numbers or dates."""
    assert build(parse_overrides([f"data.path={path}"])).data.path == path


@laws
@given(
    st.lists(
        st.text("abt.=1[]{}\"'\n #", max_size=8)
        | st.sampled_from(["data.b=1", "data.b.c=2", "data.b={}"]),
        max_size=4,
    )
)
def test_overrides_parse_or_are_told(words):
    with suppress(UserError):
        assert isinstance(parse_overrides(words), dict)


@laws
@given(st.binary(max_size=40) | st.text("[]train.steps= 1\n", max_size=40).map(str.encode))
def test_any_file_is_read_or_told(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(content)
    with suppress(UserError):
        assert isinstance(build(read_toml(path)), Config)


def test_no_file(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_toml(tmp_path / "none.toml")
