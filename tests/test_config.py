"""Settings: what is wrong is told by name, with what was probably meant."""

import math
import os
import re
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.config import (
    BOTH_WAYS,
    MODELS,
    Config,
    CustomConfig,
    RNNConfig,
    SearchConfig,
    TrainConfig,
    TransformerConfig,
    all_settings,
    build,
    full_names,
    load_config,
    merge,
    parse_overrides,
    read_toml,
    to_settings,
    to_toml,
)
from regard.errors import UserError
from regard.presets import preset, presets

laws = settings(max_examples=80, deadline=None, derandomize=True)


@pytest.mark.parametrize(
    ("given_settings", "meant"),
    [
        ({"train": {"stesp": 3}}, r"no setting train\.stesp; did you mean train\.steps\?"),
        ({"model": {"widht": 3}}, r"model\.widht; did you mean model\.width\?"),
        ({"trian": {}}, r"no section trian; did you mean train\?"),
        ({"search": {"zzzzz": 1}}, r"no setting search\.zzzzz \(available: search\.width"),
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
        ("train", "betas", [0.9], "two numbers"),
        ("train", "betas", 0.9, "two numbers"),
        ("train", "betas", [0.9, "high"], "two numbers"),
        ("train", "betas", [0.9, -1], "at least 0"),
        ("data", "path", ["a"], "a string"),
        ("data", "options", 3, "options by name"),
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
        ({"width": 10, "heads": 4}, r"model\.width=10 is not divisible by model\.heads=4"),
        ({"position": "rotary", "score": "additive"}, r"model\.position=rotary needs"),
        ({"position": "rotary", "score": "custom:Mine"}, r"model\.position=rotary needs"),
        ({"position": "rotary", "width": 12, "heads": 4}, "even"),
        ({"kind": "rnn", "tie": "all", "embedding": 8, "width": 16}, r"model\.tie=all"),
        ({"wait": 3}, r"model\.wait=3 .* set model\.causal=true"),
        ({"kind": "rnn", "wait": 3}, r"model\.wait=3 .* set model\.bidirectional=false"),
        ({"kind": "rnn", "causal": True}, r"model\.kind=transformer has it"),
        (
            {"kind": "rnn", "attention": "none", "cross_mask": "custom:far"},
            r"model\.cross_mask needs model\.attention",
        ),
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
        UserError,
        match=rf"train\.path={path} needs model\.kind=transformer: other models",
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


# ---- what a setting says about itself ----

BOUNDED = [spec for spec in all_settings() if spec.least is not None or spec.below is not None]

# What else to set, so that values at the ends of the bounds break no rule between settings.
COMPANIONS = {
    "model.width transformer": {"heads": 1},
    "model.heads transformer": {"width": 2**16},
    "model.wait transformer": {"causal": True},
    "model.width rnn": {"bidirectional": False},
    "model.wait rnn": {"bidirectional": False},
    "model.readout rnn": {"attention": "before"},
    "train.steps": {"epochs": 1},
    "train.decay_start": {"schedule": "wsd", "decay_end": 10**8},
    "train.decay_end": {"schedule": "wsd"},
}


def label(spec):
    return f"{spec.full_name} {spec.kind}".strip()


def build_with(spec, number):
    """The value that the setting has in a config built with this number (for each of several)."""
    value = [number, number] if spec.type == tuple[float, float] else number
    values = {spec.name: value, **COMPANIONS.get(label(spec), {})}
    if spec.kind:
        values["kind"] = spec.kind
    given = {spec.section: values}
    if spec.name == "documents" and number != "no":
        given["train"] = {"objective": "causal"}
    return getattr(getattr(build(given), spec.section), spec.name)


def just_below(spec, bound):
    return bound - 1 if spec.type is int else math.nextafter(bound, -math.inf)


@pytest.mark.parametrize("kind", MODELS)
def test_every_setting_is_listed_in_the_order_of_a_config(kind):
    listed = {}
    for spec in all_settings():
        if spec.kind in ("", kind):
            listed.setdefault(spec.section, {})[spec.name] = spec.default

    written = to_settings(build({"model": {"kind": kind}}))
    assert listed == written
    assert [list(values) for values in listed.values()] == [*map(list, written.values())]


@pytest.mark.parametrize("spec", all_settings(), ids=label)
def test_every_setting_has_one_line_of_help(spec):
    assert spec.help.endswith(".")
    assert spec.help[0].isupper()
    assert len(spec.help) <= 100
    assert spec.help.isprintable()


@pytest.mark.parametrize("spec", all_settings(), ids=label)
def test_every_number_has_bounds_and_nothing_else_has(spec):
    is_number = spec.type in (int, float, float | None, tuple[float, float])
    has_least = spec.least is not None
    has_largest = (spec.most is not None) != (spec.below is not None)
    assert (has_least, has_largest) == (is_number, is_number)
    assert bool(spec.range_words) == is_number
    if is_number and spec.default is not None:
        build_with(spec, spec.default[0] if isinstance(spec.default, tuple) else spec.default)


def refused(spec, number):
    told = rf"^{spec.section}\.{spec.name}=.*: must be {re.escape(spec.range_words)}$"
    for value in (number, str(number)):
        with pytest.raises(UserError, match=told):
            build_with(spec, value)


@pytest.mark.parametrize("spec", BOUNDED, ids=label)
def test_the_lower_bound_is_the_smallest_value(spec):
    least = spec.least
    assert build_with(spec, least) in (least, (least, least))
    refused(spec, just_below(spec, least))


@pytest.mark.parametrize("spec", BOUNDED, ids=label)
def test_the_upper_bound_is_the_largest_value(spec):
    if spec.most is not None:
        largest = spec.most
        first_refused = largest + 1 if spec.type is int else math.nextafter(largest, math.inf)
    else:
        largest = just_below(spec, spec.below)
        first_refused = spec.below
    assert build_with(spec, largest) in (largest, (largest, largest))
    refused(spec, first_refused)


@pytest.mark.parametrize("spec", BOUNDED, ids=label)
@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, "inf", "-inf", "nan"])
def test_numbers_are_finite(spec, number):
    with pytest.raises(UserError, match=r"must be (finite|a whole number)"):
        build_with(spec, number)


@pytest.mark.parametrize("spec", BOUNDED, ids=label)
def test_a_flag_is_no_number(spec):
    for value in (True, "true"):
        with pytest.raises(UserError, match=r"must be (a|two|a whole) number"):
            build_with(spec, value)


@pytest.mark.parametrize("spec", [s for s in all_settings() if s.choices], ids=label)
def test_choices_are_those_of_the_type(spec):
    for choice in spec.choices:
        is_refused = spec.name == "decoder_pattern" and choice in BOTH_WAYS
        assert spec.name == "kind" or is_refused or build_with(spec, choice) == choice
    if spec.name == "kind":
        return

    told = rf"^{spec.section}\.{spec.name}=neither: choose {', '.join(spec.choices)}$"
    with pytest.raises(UserError, match=told):
        build_with(spec, "neither")


@pytest.mark.parametrize("value", ["9" * 400, "9" * 5000], ids=len)
def test_a_number_too_large_for_python_is_told(value):
    with pytest.raises(UserError, match=r"train\.rate=9+….?: must be a number"):
        build({"train": {"rate": value}})


def test_options_of_one_config_are_not_those_of_another():
    assert Config().data.options is not Config().data.options


def test_presets_are_listed_in_the_order_of_their_names():
    assert [*presets()] == sorted(presets())


@pytest.mark.parametrize("name", presets())
def test_a_preset_reads_back_as_it_was_written(name, tmp_path):
    config = build(preset(name))
    (tmp_path / "config.toml").write_text(to_toml(to_settings(config)), encoding="utf-8")
    assert load_config(tmp_path / "config.toml") == config


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


@pytest.mark.parametrize("word", ["stesp=3", "train.steps", "=", "train", "out.x=1"])
def test_what_is_no_override(word):
    with pytest.raises(UserError, match="section"):
        parse_overrides([word])


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("steps", ["train.steps"]),
        ("dropout", ["text.dropout", "model.dropout"]),
        ("batch-size", ["data.batch_sentences"]),
        ("lr", ["train.rate"]),
        ("nothing", []),
    ],
)
def test_a_name_without_its_section(name, meant):
    assert full_names(name) == meant


def test_a_setting_without_its_section_is_answered_with_what_to_write():
    with pytest.raises(UserError, match=r"^'steps=3' is not a setting: write train\.steps=3$"):
        parse_overrides(["steps=3"])


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


# ---- in Python ----


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: TransformerConfig(width=0), r"model\.width=0: must be from 1 to 65,536"),
        (lambda: TransformerConfig(width=10**6), r"model\.width=1000000: must be from 1 to"),
        (lambda: RNNConfig(dropout=math.nan), r"model\.dropout=nan: must be finite"),
        (lambda: TrainConfig(ema=5), r"train\.ema=5: must be at least 0 and less than 1"),
        (lambda: TrainConfig(smoothing=5), r"train\.smoothing=5: must be at least 0 and less"),
        (lambda: TrainConfig(betas=(2, 3)), r"train\.betas=\[2, 3\]: must be at least 0 and less"),
        (lambda: TrainConfig(epochs=1e308), r"train\.epochs=1e\+308: must be from 0 to 1,000,000"),
        (lambda: TrainConfig(threads=100_000), r"train\.threads=100000: must be from 0 to 1,024"),
        (lambda: SearchConfig(length_penalty=1e9), r"length_penalty=1000000000\.0: must be from 0"),
        (lambda: SearchConfig(width=True), r"search\.width=True: must be a whole number"),
        (lambda: Config(train={"steps": 3}), r"Config\(train=.*\): pass .*TrainConfig"),
        (lambda: Config(train=SearchConfig()), r"Config\(train=.*\): pass .*TrainConfig"),
        (lambda: CustomConfig(kind="mine"), r"model\.kind=mine: must be custom:Name"),
        (lambda: build({"train": {5: 3}}), r"no setting train\.5"),
        (lambda: build({"train": 5}), r"train=5: must be settings by name"),
        (lambda: build({5: {}}), r"no section 5"),
    ],
)
def test_bounds_hold_in_python(make, told):
    with pytest.raises(UserError, match=told):
        make()


def test_what_python_passes_is_converted():
    config = TrainConfig(steps=100.0, rate=1)
    assert (config.steps, config.rate) == (100, 1.0)
    assert isinstance(config.steps, int)
    assert isinstance(config.rate, float)


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("train.ema=5", "must be at least 0 and less than 1"),
        ("train.betas=[2,3]", "must be at least 0 and less than 1"),
        ("train.steps=" + "9" * 5000, "must be a whole number"),
        ("train.steps=0x" + "f" * 4000, "must be at least 0 and less than 100,000,000"),
        ("train.betas=" + "[" * 3000, "must be two numbers"),
        ("train.steps=5\ntrain.rate=3", "must be a whole number"),
        ("data.dev=" + "x" * 9000, "must be a whole number of pairs; for a file write data.dev_f"),
        ("data.path=" + "x" * 9000, "9,000 characters long"),
        ("data.path=a\0b", "NUL"),
        ("data.path=\udcff", "not valid UTF-8"),
        ("data.options.a b=3", "no option can be called 'a b'"),
        ("train.steps.x=3", "must be a whole number"),
        ("train." + "a." * 9000 + "b=3", "only options have names of their own"),
        ("train.=3", "no setting train."),
        (".=3", "no section"),
        ('train."steps"=3', "did you mean train.steps"),
        ("model.kind=" + "x" * 9000, "choose transformer or rnn"),
        ("train." + "x" * 9000 + "=3", "no setting train.xx"),
    ],
    ids=lambda text: text[:30].encode("ascii", "replace").decode(),
)
def test_overrides_are_refused_in_one_short_line(word, told):
    with pytest.raises(UserError, match=re.escape(told)) as caught:
        build(parse_overrides([word]))
    message = str(caught.value)
    assert len(message) <= 300
    assert message.isprintable()


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"x": {"y": 1}}, "must be a finite number"),
        ({"x": math.nan}, "must be a finite number"),
        ({"x": 2**70}, "must be a finite number"),
        ({"x": [[[[[[1]]]]]]}, "must be a finite number"),
        ({"x": [0] * 1000}, "short list"),
        ({f"x{i}": 1 for i in range(1000)}, "1,000 options"),
        ({5: 1}, "no option can be called"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_options_are_what_a_config_can_hold(value, told):
    with pytest.raises(UserError, match=told):
        build({"data": {"options": value}})


def test_options_of_a_model_of_ones_own_read_back_equal(tmp_path):
    options = {"width": 3, "name": "a = b", "flags": [True, [1.5, "x"]]}
    config = build({"model": {"kind": "custom:Mine", "options": options}})
    (tmp_path / "config.toml").write_text(to_toml(to_settings(config)), encoding="utf-8")
    assert load_config(tmp_path / "config.toml") == config


# ---- files that are no settings ----


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"[train]\nsteps = " + b"9" * 5000, "not a TOML file"),
        (b"[train]\nbetas = " + b"[" * 5000, "nested too deeply"),
        (b"[train]\nx = " + b"{a=" * 2000, "nested too deeply"),
        (b"[train]\nsteps = 1\nsteps = 2", "not a TOML file"),
        (b"\xff\xfe[train]", "not a TOML file"),
        (b"[train]\n" + b"a." * 20000 + b"b = 1", "a line of more than 8,192 characters"),
        (b"#" + b"\n" * 100_000, "more than 65,536 bytes"),
        (b"steps = 3", "steps is not in a section"),
        (b"[[train]]\nsteps = 3", "train is not in a section"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_files_are_refused_in_one_short_line(content, told, tmp_path):
    path = tmp_path / "x.toml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=told) as caught:
        build(read_toml(path))
    assert len(str(caught.value)) - len(str(path)) <= 300


def test_a_byte_order_mark_is_no_setting(tmp_path):
    (tmp_path / "x.toml").write_bytes(b"\xef\xbb\xbf[train]\r\nsteps = 3\r\n")
    assert read_toml(tmp_path / "x.toml") == {"train": {"steps": 3}}


def test_a_huge_file_is_not_read(tmp_path):
    with (tmp_path / "x.toml").open("wb") as file:
        file.truncate(10**11)  # holes take no room
    with pytest.raises(UserError, match="more than 65,536 bytes"):
        read_toml(tmp_path / "x.toml")


def test_special_files_are_not_read(tmp_path):
    with pytest.raises(UserError, match="a folder"):
        read_toml(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(UserError, match="not a regular file"):
            read_toml(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"decay_start": 5, "decay_end": 9}, "need train.schedule=wsd"),
        ({"schedule": "wsd", "decay_start": 5}, "the end must come after the start"),
        ({"schedule": "wsd", "decay_start": 5, "decay_end": 5}, "the end must come after"),
    ],
)
def test_a_decay_that_cannot_be_is_refused(settings, words):
    with pytest.raises(UserError, match=words):
        build({"train": settings})
