import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from regard.comparison import tables
from regard.comparison.outcome import Outcome
from regard.comparison.scores import Scores

Maker = Callable[..., Outcome]
THREE = {"poor": 0.1, "fair": 0.6, "good": 0.95}


def test_results_are_ranked_with_their_costs(made_outcome: Maker) -> None:
    outcome = made_outcome(THREE)
    table = tables.results(outcome)
    assert [row[0] for row in table.rows] == ["good", "fair", "poor"]
    assert all(len(row) == len(table.columns) for row in table.rows)
    best = dict(zip(table.columns, table.rows[0]))
    spread = outcome.best.spread("bleu")
    assert best["BLEU"].startswith(f"{spread.mean:.1f} ± ")
    assert best["against the best"] == "best mean"
    assert best["parameters"] == "700,000"
    assert best["training time"] == "80 s"
    assert best["tokens/s, training"] == f"{1.2e6 / 80:,.0f}"
    assert best["tokens/s, decoding"] == "3,000"


def test_a_system_is_worse_only_beyond_chance(made_outcome: Maker) -> None:
    outcome = made_outcome({"one": 0.6, "other": 0.6, "poor": 0.05}, examples=100)
    standings = {row[0]: row[2] for row in tables.results(outcome).rows}
    tied = {system.name for system in outcome.tied}
    assert standings["poor"] == "worse"
    assert {name for name, words in standings.items() if words != "worse"} == tied


def test_where_less_is_better_the_least_is_first(made_outcome: Maker) -> None:
    outcome = made_outcome(THREE, metric="loss")
    assert [row[0] for row in tables.results(outcome).rows] == ["good", "fair", "poor"]
    table = tables.differences(outcome)
    behind = [float(row[2]) for row in table.rows]
    assert 0 < behind[0] < behind[1]


def test_differences_say_how_far_the_others_are_behind(made_outcome: Maker) -> None:
    outcome = made_outcome(THREE)
    table = tables.differences(outcome)
    assert [row[0] for row in table.rows] == ["fair", "poor"]
    means = {system.name: system.spread("bleu").mean for system in outcome.systems}
    for name, worse, behind, _, _, p in table.rows:
        assert float(behind) == pytest.approx(means["good"] - means[name], abs=0.051)
        assert (worse == "yes") == outcome.pair("good", name).differs
        assert p == tables.shown_p(outcome.pair("good", name).p)
    assert "other seeds and other test examples" in table.note
    assert "3 pairs" in table.note


def test_without_seeds_and_examples_nothing_is_decided(made_outcome: Maker) -> None:
    outcome = made_outcome(seeds=[7], has_answers=False)
    [row] = tables.differences(outcome).rows
    assert row[1] == "not decided"
    assert row[3] == "unknown"
    assert "nothing can be decided" in tables.differences(outcome).note
    assert "inf" not in " ".join(row)


def test_every_pair_is_read_from_left_to_right(made_outcome: Maker) -> None:
    outcome = made_outcome({"poor": 0.0, "fair": 0.4, "good": 0.98}, examples=120)
    table = tables.pairs(outcome)
    assert table is not None
    assert [row[0] for row in table.rows] == ["1. good", "2. fair", "3. poor"]
    signs = [list(row[1:]) for row in table.rows]
    assert [signs[place][place] for place in range(3)] == ["", "", ""]
    assert signs[0][2] == "+"
    assert signs[2][0] == "−"
    opposite = {"+": "−", "−": "+", "?": "?", "": ""}
    for row in range(3):
        for column in range(3):
            assert signs[row][column] == opposite[signs[column][row]]


def test_pairs_that_tell_nothing_new_are_left_out(made_outcome: Maker) -> None:
    assert tables.pairs(made_outcome()) is None
    assert tables.pairs(made_outcome({"a": 0.5, "b": 0.5, "c": 0.5})) is None


def test_p_is_never_zero() -> None:
    assert tables.shown_p(0.0) == "< 0.001"
    assert tables.shown_p(0.0312) == "0.031"


def test_seeds_that_are_missing_leave_a_dash(made_outcome: Maker) -> None:
    outcome = made_outcome(scored=lambda cell: (cell.system, cell.seed) != ("small", 2))
    rows = {row[0]: row for row in tables.seeds(outcome).rows}
    assert rows["small"][2] == "–"
    assert "–" not in rows["large"]
    assert "2 to 3 seeds" in tables.results(outcome).note


def test_one_system_alone_is_compared_with_nothing(made_outcome: Maker) -> None:
    outcome = made_outcome(scored=lambda cell: cell.system == "small" and cell.seed == 1)
    assert tables.differences(outcome).rows == []
    assert "against the best" not in tables.results(outcome).columns
    assert "with one seed each" in tables.results(outcome).note


def test_what_is_not_a_number_breaks_no_table(made_outcome: Maker) -> None:
    def diverged(scores: Scores) -> Scores:
        return replace(scores, values={**scores.values, "loss": math.nan, "chrf": None})

    table = tables.results(made_outcome(change=diverged))
    assert "chrF" not in table.columns
    place = table.columns.index("loss")
    assert [row[place] for row in table.rows] == ["nan", "nan"]


def test_lengths_have_a_column_for_each_bin(made_outcome: Maker) -> None:
    outcome = made_outcome(THREE, metric="exact_match")
    table = tables.lengths(outcome)
    assert table is not None
    assert table.columns[1] == "1–2 words"
    assert [row[0] for row in table.rows] == ["good", "fair", "poor", "test examples"]
    assert sum(int(count) for count in table.rows[-1][1:]) == 40
    assert tables.lengths(made_outcome(has_answers=False)) is None


def test_settings_have_fewer_columns_than_rows(made_outcome: Maker) -> None:
    deep = {
        "small": {"model": {"layers": 1, "norm": True}, "data": {"options": {"train": 5}}},
        "large": {"model": {"layers": 2}, "data": {"options": {}}},
    }
    wide = tables.settings(made_outcome(settings=deep))
    assert wide.columns == ["setting", "small", "large"]
    assert ["model.norm", "true", "–"] in wide.rows
    assert ["data.options", "train = 5", "–"] in wide.rows
    many = {name: {"model": {"layers": place}} for place, name in enumerate(THREE)}
    tall = tables.settings(made_outcome(THREE, settings=many))
    assert tall.columns == ["system", "model.layers"]
    assert tall.rows == [["poor", "0"], ["fair", "1"], ["good", "2"]]


def test_too_many_settings_are_counted(made_outcome: Maker) -> None:
    settings = {
        name: {"model": {f"setting{number}": name for number in range(tables.MOST_SETTINGS + 2)}}
        for name in ("small", "large")
    }
    table = tables.settings(made_outcome(settings=settings))
    assert len(table.rows) == tables.MOST_SETTINGS
    assert "2 more settings" in table.note


def test_the_budget_is_told(made_outcome: Maker) -> None:
    budget = {"steps": 600, "parameters": "small"}
    told = tables.shown_budget(made_outcome(budget=budget))
    assert told == "600 training steps, as many parameters as small"
    assert tables.shown_budget(made_outcome()) == ""


def test_the_signature_is_there_where_bleu_is(made_outcome: Maker) -> None:
    def names(outcome: Outcome) -> list[str]:
        return [row[0] for row in tables.machine(outcome).rows]

    assert "sacreBLEU" in names(made_outcome())
    assert "sacreBLEU" not in names(made_outcome(has_answers=False))
