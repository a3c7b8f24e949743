"""The experiments that ship with Regard can be planned, and say what they find."""

from pathlib import Path

import pytest

from regard.comparison.cells import plan
from regard.comparison.reading import read_experiment
from regard.recipes.reporter import Reporter

HOUSE = Path(__file__).parents[2]
EXPERIMENTS = sorted((HOUSE / "experiments").glob("*.toml"))


@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda file: file.stem)
def test_it_can_be_planned(file):
    """Whatever would stop it (options of the data, the metric, the widths) is told here."""
    asked = read_experiment(file)
    assert asked.question.endswith("?")
    assert len(asked.seeds) >= 3
    planned = plan(asked, Reporter(quiet=True))
    assert len(planned.cells) == len(asked.systems()) * len(asked.seeds)


@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda file: file.stem)
def test_its_first_lines_say_how_to_run_it(file):
    said = file.read_text().splitlines()[1]
    assert said == f"# regard compare experiments/{file.name}"


@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda file: file.stem)
def test_its_finding_is_told_with_its_figure(file):
    told = (HOUSE / "docs" / "experiments.md").read_text()
    assert f"(../experiments/{file.name})" in told
    assert f"(experiments/{file.stem}.md)" in told
    assert (HOUSE / "docs" / "experiments" / f"{file.stem}.md").is_file()
