"""What an experiment says: systems, seeds and budget. Mistakes are told in one clear line."""

import os

import pytest

from regard.comparison.experiment import Experiment
from regard.comparison.reading import experiment_of, read_experiment
from regard.config import build
from regard.errors import UserError

TOY = {
    "preset": "demo",
    "data": {"path": "phrases"},
    "budget": {"steps": 10},
    "axes": {"model.score": ["additive", "dot"]},
}
LM = {"data": {"path": "phrases"}, "train": {"objective": "causal", "steps": 5}}


def experiment(**changes) -> Experiment:
    return read_experiment(TOY | changes)


def settings_of(found: Experiment, name: str):
    return next(system.settings for system in found.systems() if system.name == name)


# systems


def test_every_combination_is_a_system():
    axes = {"model.score": ["additive", "dot"], "model.heads": [1, 4]}
    found = experiment(axes=axes)
    names = [system.name for system in found.systems()]
    assert names == ["additive, heads=1", "additive, heads=4", "dot, heads=1", "dot, heads=4"]
    model = build(settings_of(found, "dot, heads=1")).model
    assert (model.score, model.heads) == ("dot", 1)


def test_several_settings_with_the_same_value():
    found = experiment(axes={"model.encoder_layers, model.decoder_layers": [1, 2]})
    model = build(settings_of(found, "decoder_layers=2")).model
    assert (model.encoder_layers, model.decoder_layers) == (2, 2)


def test_choices_by_name_and_a_preset_among_them():
    axes = {"model": {"LSTM": {"model": {"kind": "rnn"}}, "base": {"preset": "base"}}}
    found = experiment(axes=axes)
    assert build(settings_of(found, "LSTM")).model.kind == "rnn"
    assert build(settings_of(found, "base")).model.width == 512


def test_options_of_the_data():
    found = experiment(axes={"data.options.train": [100, 200], "data.options.dev": [5]})
    assert settings_of(found, "train=200, dev=5")["data"]["options"]["train"] == 200


def test_values_that_need_their_setting_to_be_understood():
    axes = {"model.bias": [True, False], "model.activation": ["relu", "gelu"]}
    names = [system.name for system in experiment(axes=axes).systems()]
    assert names[0] == "bias=true, relu"


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ({"steps": 7}, {"steps": 7, "epochs": 0, "minutes": 0}),
        ({"epochs": 2.5}, {"epochs": 2.5, "minutes": 0}),
        ({"minutes": 0.5}, {"minutes": 0.5, "epochs": 0}),
    ],
)
def test_the_budget_is_the_same_for_all(budget, expected):
    for system in experiment(budget=budget).systems():
        train = build(system.settings).train
        assert {name: getattr(train, name) for name in expected} == expected
        assert train.patience == 0


def test_how_many_seeds_or_which():
    assert experiment(seeds=3).seeds == (1, 2, 3)
    assert experiment(seeds=[7, 5]).seeds == (7, 5)
    assert read_experiment(TOY).seeds == (1, 2, 3)


def test_runs_have_one_thread_unless_something_else_is_asked_for():
    assert build(experiment().systems()[0].settings).train.threads == 1
    found = experiment(train={"threads": 2})
    assert build(found.systems()[0].settings).train.threads == 2


# files


def test_files_are_looked_for_beside_the_experiment(tmp_path, monkeypatch):
    (tmp_path / "pairs.tsv").write_text("a\tb\n")
    (tmp_path / "dev.tsv").write_text("a\tb\n")
    file = tmp_path / "asked.toml"
    file.write_text(
        '[data]\npath = "pairs.tsv"\ndev_file = "dev.tsv"\n[budget]\nsteps = 5\n'
        '[axes]\n"model.heads" = [1, 2]\n'
    )
    monkeypatch.chdir("/")
    data = read_experiment(file).systems()[0].settings["data"]
    assert data["path"] == str(tmp_path / "pairs.tsv")
    assert data["dev_file"] == str(tmp_path / "dev.tsv")
    assert read_experiment(file).name == "asked"


def test_a_task_is_never_a_file(tmp_path):
    (tmp_path / "phrases").write_text("a\tb\n")
    found = experiment_of(TOY, "toy", tmp_path)
    assert found.settings["data"]["path"] == "phrases"


def test_a_link_to_an_experiment_is_one(tmp_path):
    (tmp_path / "real.toml").write_text(
        'preset = "demo"\n[data]\npath = "phrases"\n[axes]\n"model.heads" = [1, 2]\n'
    )
    (tmp_path / "link.toml").symlink_to(tmp_path / "real.toml")
    assert read_experiment(tmp_path / "link.toml").name == "link"


# pretraining


def starting(*names, **changes):
    """An experiment whose systems start from pretrainings of these names."""
    axis = {name: {"train": {"start_from": name}} for name in names}
    changes = {"pretrain": {"lm": LM}, **changes}
    return experiment(axes={"start": {"nothing": {}, **axis}}, **changes)


def test_a_pretraining_has_the_model_of_the_system_that_starts_from_it():
    found = starting("lm", model={"width": 64})
    nothing, started = found.systems()
    assert found.pretraining(nothing) is None
    before = found.pretraining(started)
    built = build(before.settings)
    assert (built.model.width, built.train.objective, built.train.steps) == (64, "causal", 5)
    assert before.name == "pretraining lm"


def test_a_folder_of_the_same_name_is_not_meant(tmp_path):
    (tmp_path / "lm").mkdir()
    axes = {"start": {"no": {}, "yes": {"train": {"start_from": "lm"}}}}
    found = experiment_of(TOY | {"axes": axes, "pretrain": {"lm": LM}}, "toy", tmp_path)
    assert found.systems()[1].start_from == "lm"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pretrain": {"lm": 3}}, "[pretrain.lm]: must be a table of data and train"),
        ({"pretrain": {"lm": {"train": {"steps": 5}}}}, "[pretrain.lm]: no data: set data"),
        ({"pretrain": {"lm": {**LM, "model": {"width": 8}}}}, "remove it here"),
        ({"pretrain": {"lm": {**LM, "trian": {}}}}, "no section trian; did you mean train?"),
        ({"pretrain": {"lm": {**LM, "data": 1}}}, "data=1: must be a table"),
        (
            {"pretrain": {"lm": {**LM, "train": {"stesp": 5}}}},
            "pretraining lm: no setting train.stesp; did you mean train.steps?",
        ),
        (
            {"pretrain": {"lm": {**LM, "train": {"steps": 5, "seed": 1}}}},
            "[pretrain.lm]: train.seed: every system has the same seeds",
        ),
        (
            {"pretrain": {"lm": {**LM, "train": {"steps": 5, "start_from": "x"}}}},
            "starts from random weights",
        ),
        ({"pretrain": {"lm": LM, "other": LM}}, "[pretrain.other]: no system starts from it"),
        ({"pretrain": {"ml": LM}}, "train.start_from=lm: no [pretrain.…] and no run has this name"),
        ({"pretrain": {"": LM}}, "a name is empty"),
        ({"budget": {"tokens": 1000}}, "tokens cannot be matched for lm"),
        ({"budget": {"steps": 5, "parameters": 1000}}, "parameters cannot be matched for lm"),
    ],
)
def test_mistakes_about_pretraining(changes, words):
    check_refused(lambda: starting("lm", **changes), words)


# mistakes


def check_refused(call, words):
    """A mistake is told in one line of a bearable length, with these words."""
    with pytest.raises(UserError) as caught:
        call()
    text = str(caught.value)
    assert words in text
    assert "\n" not in text
    assert text.isprintable()
    assert len(text) < 500


DEEP: list = []
for _ in range(500):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"axis": {}}, "no key axis; did you mean axes?"),
        ({"axes": {}}, "nothing to compare"),
        ({"axes": {"model.heads": [1]}}, "nothing to compare"),
        ({"axes": [1]}, "axes=[1]: must be a table"),
        ({"axes": {"model.heads": 4}}, "model.heads=4: must be a list of values"),
        ({"axes": {"model.heads": []}}, "has no choices"),
        ({"axes": {"model.hedas": [1, 2]}}, "no setting model.hedas; did you mean model.heads?"),
        ({"axes": {"model.heads": [1, 1]}}, "has 1 twice"),
        ({"axes": {"model.heads": [1, 3]}}, "heads=3: "),
        ({"axes": {"model.score": ["dot", "dto"]}}, "dto: "),
        ({"axes": {"": [1, 2]}}, "a name is empty"),
        ({"axes": {"a": {"x": {"model": {}}, "y" * 300: {}}}}, "is too long for a name"),
        ({"axes": {"a": {"x": {}, "y": {"modle": {}}}}}, "no section modle; did you mean model?"),
        ({"axes": {"a": {"x": {}, "y": {"model": 3}}}}, "model=3: must be a table"),
        ({"axes": {"a": {"x": {}, "y": 3}}}, "must be settings by section"),
        ({"axes": {"a": {"x": {}, "y": {"preset": 3}}}}, "preset=3: must be the name"),
        ({"axes": {"model": {"heads": [1, 2]}}}, 'write "model.heads" with its quotes'),
        ({"axes": {"a": {"x": {}}, "b": {"x, y": {}, "y": {}}, "c": {}}}, "c has no choices"),
        (
            {"axes": {"a": {"x": {}, "x, y": {}}, "b": {"y, z": {}, "z": {}}}},
            "two systems are called x, y, z",
        ),
        ({"axes": {"model.heads": list(range(1, 400))}, "seeds": 3}, "more than 1,000 runs"),
        ({"axes": {"train.seed": [1, 2]}}, "train.seed: every system has the same seeds"),
        ({"axes": {"data.seed": ["none", 2]}}, "data.seed=none: all systems need the same data"),
        ({"axes": {"train.steps": [1, 2]}}, "train.steps=1: the budget of steps decides it"),
        ({"train": {"epochs": 2}}, "train.epochs=2: the budget of steps decides it"),
        (
            {"budget": {"minutes": 1}, "axes": {"train.schedule": ["linear", "constant"]}},
            "train.schedule=linear: the budget of minutes decides it",
        ),
        ({"seeds": []}, "seeds=[]: must be a list"),
        ({"seeds": 0}, "seeds=0: must be a list"),
        ({"seeds": True}, "seeds=True: must be a list"),
        ({"seeds": [1, 1]}, "seeds: each seed once"),
        ({"seeds": [-1]}, "-1: must be a whole number"),
        ({"seeds": [1.5]}, "1.5: must be a whole number"),
        ({"seeds": [2**63]}, "must be a whole number from 0 to"),
        ({"seeds": [10**5000]}, "bits): must be a whole number"),
        ({"seeds": DEEP}, "must be a whole number"),
        ({"budget": {"steps": 5, "minutes": 1}}, "steps and minutes cannot all be the same"),
        ({"budget": {"stpes": 5}}, "no key stpes; did you mean steps?"),
        ({"budget": {"steps": 0}}, "steps=0: must be a number above 0"),
        ({"budget": {"steps": 1.5}}, "steps=1.5: must be a whole number"),
        ({"budget": {"steps": True}}, "steps=True: must be a number"),
        ({"budget": {"steps": "many"}}, "steps=many: must be a number"),
        ({"budget": {"steps": 10**9}}, "train.steps"),
        ({"budget": {"minutes": float("nan")}}, "minutes=nan: must be a number"),
        ({"budget": {"tokens": float("inf")}}, "tokens=inf: must be a number"),
        ({"budget": {"epochs": 10**5000}}, "bits): must be a number"),
        ({"budget": {"parameters": "dto"}}, "parameters=dto: no such system; did you mean dot?"),
        ({"budget": {"parameters": -5}}, "parameters=-5: must be a number above 0"),
        ({"budget": 5}, "budget=5: must be a table"),
        ({"metric": "blue"}, "metric=blue; did you mean bleu?"),
        ({"metric": ["bleu"]}, "metric=['bleu']"),
        ({"metric": "bits_per_character"}, "which has bleu"),
        ({"metric": "bleu", "train": {"objective": "causal"}}, "train.objective=causal, which has"),
        ({"split": "tset"}, "split=tset; did you mean test?"),
        ({"preset": "dmeo"}, "demo"),
        ({"preset": 3}, "preset=3: must be text"),
        ({"question": "\ud800"}, "is not valid UTF-8"),
        ({"question": ["why"]}, "question=['why']: must be text"),
        ({"data": {}}, "no data: set data.path"),
        ({"data": "pairs.tsv"}, "data=pairs.tsv: must be a table"),
        ({"data": {"paht": "x"}}, "data.paht"),
        ({"budget": {}, "preset": ""}, "how long to train?"),
        ({"model": {"width": DEEP}}, "model.width"),
    ],
)
def test_mistakes_are_told_in_one_line(changes, words):
    check_refused(lambda: experiment(**changes), words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe", "not a TOML file"),
        (b"seeds = [", "not a TOML file"),
        (b"seeds = " + b"9" * 5000, "not a TOML file"),
        (b"seeds = " + b"[" * 3000 + b"]" * 3000, "nested too deeply"),
        (b"#" * 100_000, "more than 65,536 bytes"),
        (b"seeds = nan", "seeds=nan: must be a list"),
        (b"question = '" + b"x" * 9000 + b"'", "has a line of more than"),
        (b"", "nothing to compare"),
    ],
)
def test_files_that_are_no_experiments(tmp_path, content, words):
    file = tmp_path / "asked.toml"
    file.write_bytes(content)
    check_refused(lambda: read_experiment(file), words)
    with pytest.raises(UserError, match=r"asked\.toml"):
        read_experiment(file)


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    check_refused(lambda: read_experiment(tmp_path / "pipe"), "not a regular file")
    check_refused(lambda: read_experiment(tmp_path / "gone"), "no such file")
    check_refused(lambda: read_experiment(tmp_path / "nowhere"), "no such file")
    check_refused(lambda: read_experiment("/dev/null"), "not a regular file")
