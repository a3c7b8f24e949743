"""`regard settings`: all of them, one of them, or those that speak of something."""

import json

import pytest
from typer.testing import CliRunner

from regard.cli import app
from regard.config import all_settings
from regard.errors import UserError


def call(*words: str) -> str:
    done = CliRunner().invoke(app, ["settings", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def names(*words: str) -> list[str]:
    return [entry["name"] for entry in json.loads(call(*words, "--json"))]


def test_every_setting_has_a_line_and_its_help():
    said = call()
    lines = said.splitlines()
    together = " ".join(said.split())
    for spec in all_settings():
        assert any(line.startswith(f"{spec.full_name}=") for line in lines), spec.full_name
        assert " ".join(spec.help.split()) in together
    assert "train.steps=10000" in lines
    assert "text.share=true" in lines
    assert "model.width=256  (transformer)" in lines
    assert "model.cell=lstm  (rnn)" in lines


def test_one_setting_tells_what_is_allowed():
    assert call("train.metric").splitlines()[0] == "train.metric=loss"
    assert "Allowed: loss, accuracy, exact_match, bleu, step, custom:Name." in " ".join(
        call("train.metric").split()
    )
    assert "Allowed: a whole number, from 1 to 65,536." in " ".join(call("model.width").split())


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_lines_fit(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert max(map(len, call().splitlines())) <= columns


def test_search():
    assert names("train.steps") == ["train.steps"]
    assert set(names("search")) == {s.full_name for s in all_settings() if s.section == "search"}
    assert {"model.dropout", "text.dropout", "train.seed"} <= set(names("dropout"))
    assert names("label", "smoothing") == ["train.smoothing"]
    assert names("lr") == ["train.rate"]
    assert "train.steps" in names("steps")


def test_a_name_that_is_none():
    with pytest.raises(UserError, match=r"no setting matches 'train.stesp'; did you mean train.st"):
        call("train.stesp")
    with pytest.raises(UserError, match=r"no setting matches 'xyzzy'$"):
        call("xyzzy")
