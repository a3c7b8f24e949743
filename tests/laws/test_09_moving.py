"""Law 9: a config round-trips; a run moved to another folder still loads and answers the same."""

import dataclasses
import shutil
import types
import typing
from typing import Literal, get_args, get_origin

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

import regard
from regard.bounds import specs_of
from regard.config import (
    MODELS,
    SECTIONS,
    Config,
    build,
    merge,
    parse_overrides,
    read_toml,
    to_settings,
    to_toml,
)
from regard.errors import UserError
from regard.models import build_model
from regard.nn import Attention
from regard.recipes.reporter import Reporter
from regard.runs.weights import Undrawn, set_weights

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.floats(1e-12, 1e6) | st.integers(1, 50).map(float)


def values(hint, spec):
    """Anything that a field of this type and within these bounds may hold."""
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    if get_origin(hint) is tuple:
        return st.tuples(*(values(h, spec) for h in get_args(hint)))
    if get_origin(hint) is dict:
        simple = st.integers(-(2**60), 2**60) | st.booleans() | texts | numbers
        return st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), simple, max_size=3)
    if get_origin(hint) is types.UnionType:
        return st.none() | values(get_args(hint)[0], spec)
    if hint in (int, float):
        return numbers_in(hint, spec)
    return {bool: st.booleans(), str: texts}[hint]


def numbers_in(hint, spec):
    """Small numbers within the bounds of a field."""
    largest = spec.below if spec.most is None else spec.most
    if hint is int:
        return st.integers(spec.least, min(spec.least + 60, largest - (spec.most is None)))
    is_open = spec.most is None and largest <= 1e6
    return st.floats(spec.least, min(1e6, largest), exclude_max=is_open)


def section(cls):
    hints = typing.get_type_hints(cls)
    specs = specs_of(cls)
    free = {
        f.name: values(hints[f.name], specs[f.name])
        for f in dataclasses.fields(cls)
        if f.name not in ("kind", "heads", "dropout")
    }
    # Some of them: where half of all settings are changed, most configs are refused.
    some = st.lists(st.sampled_from(sorted(free)), max_size=5, unique=True)
    return some.flatmap(lambda names: st.fixed_dictionaries({name: free[name] for name in names}))


def configs():
    plain = {name: section(cls) for name, cls in SECTIONS.items() if name != "model"}
    models = st.sampled_from(sorted(MODELS)).flatmap(
        lambda k: section(MODELS[k]).map(lambda values: {"kind": k, **values})
    )
    return st.fixed_dictionaries({**plain, "model": models})


@settings(max_examples=150, deadline=None, derandomize=True)
@given(configs())
def test_config_round_trip(tmp_path_factory, drawn):
    try:
        config = build(drawn)
    except UserError:
        assume(False)
    path = tmp_path_factory.getbasetemp() / "config.toml"
    path.write_text(to_toml(to_settings(config)), encoding="utf-8")
    again = build(read_toml(path))
    assert again == config
    assert build(merge(to_settings(Config()), to_settings(config))) == config


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_defaults_round_trip(tmp_path, kind):
    config = build({"model": {"kind": kind}})
    (tmp_path / "c.toml").write_text(to_toml(to_settings(config)), encoding="utf-8")
    assert build(read_toml(tmp_path / "c.toml")) == config


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.integers(1, 10**6),
    st.floats(0, 1e3),
    st.booleans(),
    st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)),
    st.text(st.characters(exclude_characters="\r\0", exclude_categories=["Cs"])),
)
def test_overrides_say_values_as_toml_does(whole, real, flag, several, text):
    words = [
        f"train.steps={whole}",
        f"train.rate={real}",
        f"text.share={str(flag).lower()}",
        f"train.betas={list(several)}",
    ]
    built = build(parse_overrides([*words, f"data.path={text}"]))
    assert (built.train.steps, built.train.rate, built.text.share) == (whole, real, flag)
    assert (built.train.betas, built.data.path) == (several, text)


def test_weights_that_come_from_a_file_are_not_drawn(variant, own_parts):
    trained = build_model(variant, 30, 30, own_parts)
    weights = {name: parameter.detach() for name, parameter in trained.named_parameters()}

    with Undrawn():
        loaded = build_model(variant, 30, 30, own_parts)
    for parameter in loaded.parameters():
        parameter.data.fill_(torch.nan)
    set_weights(loaded, weights, "a file")

    assert all(torch.equal(mine, weights[name]) for name, mine in loaded.named_parameters())
    buffers = dict(trained.named_buffers())
    assert all(torch.equal(mine, buffers[name]) for name, mine in loaded.named_buffers())


@pytest.mark.once
def test_undrawn_draws_nothing():
    before = torch.get_rng_state()
    with Undrawn():
        nn.Linear(8, 8)
        nn.LSTM(8, 8)
        Attention(8, heads=2)
    assert torch.equal(before, torch.get_rng_state())

    with Undrawn():
        drawn = torch.empty(8, 8).normal_()  # no parameter
    assert not torch.equal(before, torch.get_rng_state())
    assert drawn.isfinite().all()


MODELS_TO_MOVE = {
    "transformer": {
        "width": 16,
        "ffn": 24,
        "heads": 2,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "position": "relative",
    },
    "rnn": {"kind": "rnn", "width": 16, "embedding": 16},
}


def scores(run):
    """All that an evaluation says, but how long it took."""
    report = regard.evaluate(run).report.as_dict()
    return {
        name: value
        for name, value in report.items()
        if name not in ("seconds", "tokens_per_second")
    }


@pytest.mark.once
@pytest.mark.parametrize("kind", MODELS_TO_MOVE)
def test_a_run_moves(tmp_path, monkeypatch, kind):
    train = {
        "steps": 6,
        "epochs": 0,
        "threads": 1,
        "tensorboard": "off",
        "device": "cpu",
        "average": 2,
        "save_every": 2,
    }
    data = {"limit": 60, "dev": 8, "test": 8, "options": {"length": 4, "symbols": 5}}
    out = tmp_path / "here" / "run"
    threads = torch.get_num_threads()
    regard.train(
        "reverse",
        out=out,
        model=MODELS_TO_MOVE[kind],
        data=data,
        train=train,
        reporter=Reporter(quiet=True),
    )
    texts = ["a b c", "e d", "", "zzz a"]
    before = regard.load(out)(texts, n_best=2)
    judged = scores(out)
    there = tmp_path / "there" / "über den Wolken"
    there.parent.mkdir()
    shutil.move(out, there)
    monkeypatch.chdir(there.parent)
    for path in (there, there.name):
        translator = regard.load(path)
        assert translator(texts, n_best=2) == before
        weights = translator("a b c").attention
        assert {w.dtype.name for w in weights.blocks.values()} == {"float32"}
    assert scores(there.name) == judged
    again = regard.train("reverse", out=there, resume=True, reporter=Reporter(quiet=True))
    assert again.path == there
    assert regard.load(there)(texts, n_best=2) == before
    assert scores(there) == judged
    assert torch.get_num_threads() == threads
