"""The runs of an experiment, and what makes two of them one and the same."""

import json
import os
from dataclasses import asdict

import pytest

import regard
from regard.comparison.cells import Plan, fingerprint, identity, plan
from regard.comparison.reading import read_experiment
from regard.config import build
from regard.errors import UserError
from regard.recipes.reporter import Reporter

MODEL = {"width": 16, "ffn": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
TOY = {
    "preset": "demo",
    "seeds": [1, 2],
    "data": {"path": "phrases", "options": {"train": 200, "dev": 20, "test": 20}},
    "model": MODEL,
    "budget": {"steps": 10},
    "axes": {"model.score": ["additive", "dot"]},
}
LM = {"data": {"path": "phrases"}, "train": {"objective": "causal", "steps": 5, "epochs": 0}}


def planned(**changes) -> Plan:
    return plan(read_experiment({**TOY, **changes}), Reporter(quiet=True))


def runs_of(found: Plan) -> set[str]:
    return {cell.run for cell in found.cells}


# runs


def test_every_system_with_every_seed():
    found = planned()
    labels = [cell.label for cell in found.cells]
    assert labels == ["additive, seed 1", "additive, seed 2", "dot, seed 1", "dot, seed 2"]
    assert len(found.runs()) == 4
    assert [cell.config.train.seed for cell in found.cells] == [1, 2, 1, 2]


def test_what_only_searches_differently_shares_its_runs():
    found = planned(axes={"search.width": [1, 3]})
    assert len(found.cells) == 4
    assert [len(cells) for cells in found.runs()] == [2, 2]
    assert len({cell.key for cell in found.cells}) == 4


def test_unless_dev_is_decoded_in_training():
    found = planned(axes={"search.width": [1, 3]}, train={"metric": "bleu"})
    assert len(found.runs()) == 4


def test_a_run_keeps_its_hash_when_others_are_added():
    before = runs_of(planned())
    more_seeds = planned(seeds=[1, 2, 3])
    more_systems = planned(axes={"model.score": ["additive", "dot", "scaled_dot"]})
    asked_otherwise = planned(question="Why?", metric="loss")
    assert before < runs_of(more_seeds)
    assert before < runs_of(more_systems)
    assert before == runs_of(asked_otherwise)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {**MODEL, "dropout": 0.3}},
        {"train": {"rate": 0.5}},
        {"budget": {"steps": 11}},
        {"data": {"path": "phrases", "options": {"train": 201, "dev": 20, "test": 20}}},
    ],
)
def test_what_is_trained_otherwise_is_another_run(changes):
    assert not runs_of(planned()) & runs_of(planned(**changes))


def test_another_split_is_scored_anew_but_not_trained(tmp_path):
    data = {"path": "copy", "options": {"train": 50, "dev": 5, "test": 5}}
    test = planned(data=data)
    long = planned(data=data, split="long")
    assert runs_of(test) == runs_of(long)
    assert not {cell.key for cell in test.cells} & {cell.key for cell in long.cells}


def test_names_of_folders_fit_into_a_file_system():
    names = ["a/b\0c:d" * 20, "𝐀" * 150, "..", "?!"]
    axes = {"x": {name: {"train": {"rate": 0.1 * place}} for place, name in enumerate(names)}}
    for cell in planned(axes=axes).cells:
        assert len(os.fsencode(cell.run_name)) < 120
        assert not set(cell.run_name) & set("/\0:. ")


def test_names_that_are_equal_as_folders_have_folders_of_their_own():
    axes = {"x": {"A b": {"train": {"rate": 0.1}}, "a-b": {"train": {"rate": 0.2}}}}
    cells = planned(axes=axes).cells
    assert cells[0].run_name.rpartition("-")[0] == cells[2].run_name.rpartition("-")[0]
    assert len({cell.run_name for cell in cells}) == 4


def test_systems_that_are_the_same_are_refused():
    with pytest.raises(UserError, match="heads=2 and h2 are the same") as caught:
        planned(axes={"a": {"heads=2": {"model": {"heads": 2}}, "h2": {"model": {"heads": 2}}}})
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="are the same"):
        planned(axes={"a": {"said": {"model": {"norm": "layer"}}, "left out": {}}})


def test_a_plan_is_the_same_in_a_file():
    found = planned(axes={"a": {"x": {"train": {"betas": (0.9, 0.99)}}, "y": {}}})
    assert Plan.of(json.loads(json.dumps(asdict(found)))) == found


# data


@pytest.fixture
def pairs(tmp_path):
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"a text {i}\tun texte {i}\n" for i in range(60)))
    return file


def test_runs_know_their_data_by_its_content(pairs):
    changes = {"preset": "small", "data": {"path": str(pairs)}}
    before = planned(**changes)
    asked = read_experiment({**TOY, **changes})
    which = identity(asked)
    assert identity(asked) == which

    pairs.touch()
    assert runs_of(planned(**changes)) == runs_of(before)
    pairs.write_text(pairs.read_text().replace("texte 1", "texte 2"))
    assert not runs_of(planned(**changes)) & runs_of(before)
    assert identity(asked) != which


def test_fingerprints(tmp_path, pairs, monkeypatch):
    whole = fingerprint(str(tmp_path))
    pairs.rename(tmp_path / "other.tsv")
    assert fingerprint(str(tmp_path)) != whole
    monkeypatch.chdir(tmp_path)
    (tmp_path / "phrases").write_text("a\tb\n")
    assert fingerprint("phrases") == "phrases"  # the task, whatever lies here
    assert fingerprint("nowhere") == "nowhere"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="can be read only once"):
        fingerprint(str(tmp_path / "pipe"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": {"path": "phrses"}}, "phrses"),
        ({"preset": "small", "data": {"path": "nowhere.tsv"}}, "nowhere.tsv: no such file"),
        ({"split": "long"}, "additive: "),
    ],
)
def test_data_that_is_not_there_is_told_before_training(changes, words):
    with pytest.raises(UserError, match=words) as caught:
        planned(**changes)
    assert "\n" not in str(caught.value)


def test_every_system_may_have_its_own_data(pairs, tmp_path):
    other = tmp_path / "other.tsv"
    other.write_text(pairs.read_text().replace("texte", "mot"))
    axes = {"data.path": [str(pairs), str(other)]}
    found = planned(preset="small", data={}, axes=axes)
    assert set(found.data) == {str(pairs), str(other)}


# what is decided


def test_without_a_preset_the_data_decides(pairs):
    found = planned(preset="", data={"path": str(pairs)}, model={})
    assert found.decisions
    models = [cell.config.model for cell in found.cells]
    assert len({model.width for model in models}) == 1
    assert {model.score for model in models} == {"additive", "dot"}
    again = planned(preset="", data={"path": str(pairs)}, model={}, seeds=[1, 2, 3])
    assert runs_of(found) < runs_of(again)


def test_equal_parameters():
    budget = {"steps": 5, "parameters": 30_000}
    axes = {"a": {"RNN": {"model": {"kind": "rnn"}}, "Transformer": {}}}
    found = planned(budget=budget, axes=axes, text={"share": True})
    assert [line.split(":")[0] for line in found.decisions] == ["RNN", "Transformer"]
    for line in found.decisions:
        count = int(line.rpartition(" for ")[2].split()[0].replace(",", ""))
        assert abs(count - 30_000) <= 600


def test_as_many_parameters_as_another_system():
    axes = {"model.encoder_layers": [1, 3]}
    budget = {"steps": 5, "parameters": "encoder_layers=1"}
    found = planned(budget=budget, axes=axes)
    one, three = [found.cells[place].config.model for place in (0, 2)]
    assert (one.width, one.ffn) == (16, 16)
    assert (three.width, three.ffn) != (16, 16)
    counts = [line.rpartition(" for ")[2] for line in found.decisions]
    assert len(counts) == 2
    numbers = [int(count.split()[0].replace(",", "")) for count in counts]
    assert numbers[1] == pytest.approx(numbers[0], rel=0.02)


def test_equal_tokens_are_other_epochs():
    axes = {"text.tokenizer": ["words", "characters"]}
    found = planned(budget={"tokens": 10_000}, axes=axes)
    words, letters = [found.cells[place].config.train.epochs for place in (0, 2)]
    assert words > 2 * letters > 0


def test_fewer_tokens_than_can_be_counted_are_refused():
    """No epochs would mean: as many steps as train.steps says."""
    with pytest.raises(UserError, match=r"tokens=1e-06: the data has .* less than a millionth"):
        planned(budget={"tokens": 1e-6})


# pretraining


def test_pretraining_comes_first_and_once_for_each_seed():
    axes = {"start": {"no": {}, "yes": {"train": {"start_from": "lm"}}}, "search.width": [1, 2]}
    found = planned(axes=axes, pretrain={"lm": LM})
    assert [cell.label for cell in found.pretraining] == [
        "pretraining lm, seed 1",
        "pretraining lm, seed 2",
    ]
    assert len(found.runs()) == 6
    started = [cell for cell in found.cells if cell.system.startswith("yes")]
    assert {found.base_of(cell).seed for cell in started if cell.seed == 2} == {2}
    assert found.base_of(found.cells[0]) is None
    assert started[0].settings["train"]["start_from"] == "lm"  # as the report shows it


def test_each_model_has_its_own_pretraining():
    axes = {"model.width": [16, 32], "start": {"no": {}, "yes": {"train": {"start_from": "lm"}}}}
    found = planned(axes=axes, pretrain={"lm": LM}, seeds=[1])
    assert [cell.config.model.width for cell in found.pretraining] == [16, 32]


def test_another_name_for_a_pretraining_changes_no_run():
    axes = [{"s": {"no": {}, "yes": {"train": {"start_from": name}}}} for name in ("lm", "ml")]
    found = [
        planned(axes=of, pretrain={name: LM}) for of, name in zip(axes, ("lm", "ml"), strict=True)
    ]
    assert runs_of(found[0]) == runs_of(found[1])


def test_a_run_to_start_from_gives_its_model_and_tokens(run):
    axes = {"start": {"no": {}, "yes": {"train": {"start_from": str(run.path)}}}}
    found = planned(axes=axes, model={}, preset="demo")
    started = found.cells[2].config
    assert started.model == run.config.model
    assert started.text == run.config.text
    assert build(found.cells[0].settings).model.width == 128
    assert str(run.path) in found.data

    with pytest.raises(UserError, match=r"model\.width=64, but .* has 16: leave it out"):
        planned(axes=axes, model={"width": 64})


def test_our_version_is_part_of_a_run(monkeypatch):
    before = runs_of(planned())
    monkeypatch.setattr(regard, "__version__", "99")
    assert not before & runs_of(planned())


@pytest.mark.parametrize("path", ["text.en", "text"])
def test_both_of_two_aligned_files_decide(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    for language in ("en", "de"):
        lines = [f"{language} {number}" for number in range(60)]
        (tmp_path / f"text.{language}").write_text("\n".join(lines) + "\n")
    data = {"path": path, "source": "en", "target": "de"}
    asked = {**TOY, "preset": "small", "data": data}
    before = plan(read_experiment(asked), Reporter(quiet=True))
    was = identity(read_experiment(asked))
    german = (tmp_path / "text.de").read_text()
    (tmp_path / "text.de").write_text(german.replace("de 7\n", "de seven\n"))
    after = plan(read_experiment(asked), Reporter(quiet=True))
    assert not runs_of(before) & runs_of(after)
    assert identity(read_experiment(asked)) != was


def test_the_code_of_a_part_decides_for_the_systems_that_have_it():
    asked = read_experiment({**TOY, "axes": {"model.score": ["dot", "custom:Mine"]}})
    quiet = Reporter(quiet=True)
    one = {"model.score=custom:Mine": "hash of the code"}
    two = {"model.score=custom:Mine": "hash of other code"}
    assert identity(asked, one) != identity(asked, two)
    before = {cell.label: cell.run for cell in plan(asked, quiet, one).cells}
    after = {cell.label: cell.run for cell in plan(asked, quiet, two).cells}
    changed = {label for label in before if before[label] != after[label]}
    assert changed == {"custom:Mine, seed 1", "custom:Mine, seed 2"}


def test_bleu_is_refused_before_training_where_it_says_nothing():
    data = {"path": "sort", "options": {"train": 50, "dev": 5, "test": 5, "length": 2}}
    with pytest.raises(UserError, match="bleu says nothing about answers as short"):
        planned(data=data, metric="bleu")
