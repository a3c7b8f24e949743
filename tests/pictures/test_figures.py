import math
import random
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from regard.errors import UserError
from regard.pictures import MissingGlyph, shown, text_style
from regard.pictures.curves import curves
from regard.pictures.heatmaps import head_grid, heatmap
from regard.pictures.positions import positions_figure
from regard.records.attention import AttentionRecord

HOSTILE = [
    "</script>",
    "$x_1$",
    "$",
    "_",
    "😀",
    "مرحبا",
    "\t",
    "",
    "\x00\x1b",
    "日本",
    "a\nb",
    "\\frac{",
    "w" * 80,
]


def attention(*shape: int) -> np.ndarray:
    raw = np.exp(np.random.default_rng(0).normal(size=shape))
    return raw / raw.sum(-1, keepdims=True)


def texts(axis: Any) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def drawn(figure: Figure) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
    return canvas.get_renderer()


def overlaps(axis: Any, renderer: Any, direction: str) -> int:
    """How many neighbouring labels touch, by what the renderer measured."""
    boxes = sorted(
        tuple(getattr(t.get_window_extent(renderer), f"interval{direction}"))
        for t in axis.get_ticklabels()
    )
    return sum(after[0] < before[1] for before, after in pairwise(boxes))


def log(points: int, every: int = 10, dev: bool = True, **scores: float) -> list[dict[str, Any]]:
    rng, records = random.Random(0), []
    for step in range(1, points + 1):
        loss = 3 * math.exp(-step / points) + rng.random() / 10
        records.append(
            {"kind": "train", "step": step, "loss": loss, "accuracy": 1 - loss / 4, "rate": 1e-3}
        )
        if dev and step % every == 0:
            records.append(
                {"kind": "dev", "step": step, "loss": loss, "accuracy": 0.9 - loss / 4, **scores}
            )
    return records


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_hostile_tokens_are_written_in_every_format(tmp_path: Path, suffix: str) -> None:
    n, out = len(HOSTILE), tmp_path / "new folder" / f"a{suffix}"
    heatmap(attention(n, n), HOSTILE, HOSTILE, title="$y_2$ 😀", out=out)
    assert out.stat().st_size > 1000


def test_another_suffix_is_refused_by_naming_the_three(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\.png, \.svg, \.pdf"):
        heatmap(attention(1, 1), ["a"], ["b"], out=tmp_path / "a.gif")


def test_tokens_are_on_both_axes() -> None:
    figure = heatmap(
        [[0.6, 0.3, 0.1], [0, 1, 0]], ["le", "chat_$"], ["the", "cat", "\t"], title="cross"
    )
    axes = figure.axes[0]
    assert texts(axes.yaxis) == ["le", "chat_$"]
    assert texts(axes.xaxis) == ["the", "cat", "␣"]
    assert figure.axes[1].get_ylabel() == "attention weight"
    assert figure.get_suptitle() == "cross"
    assert axes.images[0].get_clim() == (0, 1)
    faint = heatmap(attention(2, 3) / 10, ["le", "chat_$"], ["the", "cat", "\t"]).axes[0].images[0]
    assert faint.get_clim() == (0, pytest.approx(attention(2, 3).max() / 10))


@pytest.mark.parametrize("count", [1, 12, 60, 300])
def test_labels_neither_overlap_nor_leave_the_picture(count: int) -> None:
    tokens = [["the", "Wellington", "qgy", "I", "_signed"][i % 5] for i in range(count)]
    figure = heatmap(attention(count, count), tokens, tokens)
    renderer, axes = drawn(figure), figure.axes[0]
    assert overlaps(axes.xaxis, renderer, "x") == 0
    assert overlaps(axes.yaxis, renderer, "y") == 0
    assert len(texts(axes.xaxis)) == count or count > 100
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        assert figure.bbox.padded(2).containsx(label.get_window_extent(renderer).x0)
        assert figure.bbox.padded(2).containsy(label.get_window_extent(renderer).y1)


def test_head_grid_has_a_panel_for_every_head() -> None:
    figure = head_grid(attention(2, 4, 3, 5), list("abc"), list("vwxyz"), title="cross")
    panels = figure.axes[:-1]
    assert [p.get_title() for p in panels[:2]] == ["layer 1 · head 1", "layer 1 · head 2"]
    assert len(panels) == 8
    assert texts(panels[4].yaxis) == list("abc")
    assert texts(panels[7].xaxis) == list("vwxyz")
    assert not texts(panels[0].xaxis)
    assert not texts(panels[1].yaxis)
    assert all(p.images[0].get_clim() == (0, 1) for p in panels)


def test_shapes_must_fit_the_tokens() -> None:
    with pytest.raises(UserError, match=r"3, 2\), expected \(layers, heads, 2, 3\)"):
        heatmap(np.ones((3, 2)), ["a", "b"], ["x", "y", "z"])
    with pytest.raises(UserError, match="expected"):
        head_grid(np.ones((2, 2)), ["a", "b"], ["x", "y"])
    with pytest.raises(UserError, match="none of them 0"):
        heatmap(np.ones((0, 1)), [], ["x"])


def test_rows_and_columns_tell_what_was_written_and_what_had_been_read() -> None:
    source, target = ["a", "<eos>"], ["x", "y", "<eos>"]
    record = AttentionRecord(source, target, {})
    assert record.sides("cross") == (target, source)
    assert record.sides("encoder") == (source, source)
    assert record.sides("decoder") == (target, ["<bos>", "x", "y"])


def test_labels_make_the_invisible_visible() -> None:
    assert shown("  ") == "␣␣"
    assert shown("") == "∅"
    assert shown("a b\x00") == "a␣b·"
    assert len(shown("x" * 100)) == 24
    assert shown("▁été") == "▁été"
    assert shown("\u0301") == "◌\u0301"  # a combining mark alone
    assert shown("ि") == "◌ि"
    assert shown("\u064e") == "ـ\u064e"  # an Arabic one, on a tatweel
    assert shown("e\u0301") == "e\u0301"


@pytest.mark.parametrize(
    "font",
    ["Hiragino Sans", "PingFang SC", "Microsoft YaHei", "Malgun Gothic", "Noto Sans CJK JP"],
)
def test_fonts_of_every_system_are_looked_for(monkeypatch: pytest.MonkeyPatch, font: str) -> None:
    from matplotlib.font_manager import fontManager

    monkeypatch.setattr(fontManager, "get_font_names", lambda: ["DejaVu Sans", font, "Papyrus"])
    assert text_style()["fontfamily"] == ["DejaVu Sans", font]


def test_a_character_that_no_font_has_is_warned_of_once(tmp_path: Path) -> None:
    strange = ["\U00012000", "\U00013000", "a"]  # cuneiform and a hieroglyph
    with pytest.warns(MissingGlyph) as caught:
        heatmap(np.eye(3), strange, strange, title="\U00012000", out=tmp_path / "boxes.png")
    [warning] = caught
    assert "no installed font has " in str(warning.message)
    assert {*strange[:2]} <= {*str(warning.message).split(",")[0].split()}


def test_a_title_keeps_its_directions_on_every_line() -> None:
    source = "\u2068" + " ".join(["مرحبا"] * 12) + "\u2069"
    figure = heatmap(np.eye(2), ["a", "b"], ["c", "d"], title=f"{source} → \u2068b\u2069")
    assert figure._suptitle is not None
    lines = figure._suptitle.get_text().split("\n")
    assert len(lines) > 2
    assert all(line.count("\u2068") == line.count("\u2069") >= 1 for line in lines)


def test_characters_stand_upright_and_words_do_not() -> None:
    def rotations(tokens: list[str]) -> list[float]:
        figure = heatmap(np.eye(len(tokens)), tokens, tokens)
        return [tick.label2.get_rotation() for tick in figure.axes[0].xaxis.get_major_ticks()]

    assert rotations(["日", "本", "\u0301", "<eos>"]) == [0, 0, 0, 90]
    assert rotations(["elephants", "a", "<eos>"]) == [90, 90, 90]


def test_positions(tmp_path: Path) -> None:
    table = np.sin(np.arange(20)[:, None] / 2.0 ** np.arange(8))
    figure = positions_figure(table, "sinus_$oidal$", tmp_path / "b.png")
    assert "sinus_$oidal$: 20 positions × 8 dimensions" in figure.get_suptitle()
    matrix, curved = figure.axes[:2]
    np.testing.assert_array_equal(matrix.images[0].get_array(), table)
    assert [line.get_label() for line in curved.get_lines()] == [
        f"dimension {i}" for i in (0, 1, 2, 4)
    ]
    assert len({line.get_linestyle() for line in curved.get_lines()}) == 4
    positions_figure(np.zeros((1, 1)), "tiny", tmp_path / "t.svg")
    with pytest.raises(UserError, match="shape"):
        positions_figure(np.ones(3), "flat")


def lines(axes: Axes, style: str) -> list[Any]:
    return [
        line
        for line in axes.get_lines()
        if line.get_linestyle() == style and len(line.get_xdata()) > 1
    ]


def test_one_run_is_dashed_in_training_and_solid_on_dev(tmp_path: Path) -> None:
    records = log(1000, bleu=30.0, exact_match=0.4)
    figure = curves({"_run_$1": records}, tmp_path / "c.png")
    left, right = figure.axes
    assert len(lines(left, "--")) == len(lines(left, "-")) == 1
    assert len(lines(right, "-")) == 3  # accuracy, exact match, BLEU
    assert figure.get_suptitle() == "_run_$1"
    best = min(r["loss"] for r in records if r["kind"] == "dev")
    said = [t.get_text() for t in figure.legends[0].get_texts()]
    assert said[0].startswith(f"loss per token {best:.4g} at step ")
    assert said[1:3] == ["BLEU / 100 0.3 at step 10", "exact match 0.4 at step 10"]
    assert "dashed: training · solid: dev" in figure.legends[0].get_title().get_text()
    assert len({line.get_color() for line in (*lines(left, "-"), *lines(right, "-"))}) == 4
    assert [line.get_ydata()[0] for line in left.get_lines() if line.get_marker() == "*"] == [best]


def test_several_runs_differ_in_colour_and_marker(tmp_path: Path) -> None:
    names = ["_hidden?", "$math$", "a rather long name of a run with all its settings"]
    figure = curves({name: log(100, bleu=3.0) for name in names}, tmp_path / "c.svg")
    said = [t.get_text() for t in figure.legends[0].get_texts()]
    assert all(
        f"{name}: loss per token " in text and "BLEU / 100 0.03" in text
        for name, text in zip(names, said, strict=True)
    )
    solid = lines(figure.axes[1], "-")
    assert (
        len({line.get_color() for line in solid}) == len({line.get_marker() for line in solid}) == 3
    )
    assert figure.axes[1].get_ylabel() == "BLEU / 100"
    legend, renderer = figure.legends[0], drawn(figure)
    box = legend.get_window_extent(renderer)
    assert all(not box.overlaps(axes.get_window_extent(renderer)) for axes in figure.axes)


@pytest.mark.parametrize("records", [log(1, every=1), log(1000, dev=False), log(3, dev=False)])
def test_few_points_or_no_dev(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    curves({"a": records}, tmp_path / "one.png")
    curves({"a": records, "b": records}, tmp_path / "two.png")
    for name in ("one.png", "two.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_odd_records_are_passed_over() -> None:
    odd = [
        {"kind": "train", "step": 1, "loss": math.nan},
        {"kind": "note"},
        {"kind": "dev", "step": 2, "loss": None},
    ]
    figure = curves({"a": [*odd, *log(5)]})
    assert len(lines(figure.axes[0], "--")[0].get_xdata()) == 5
    drawn(curves({"a": odd}))
    with pytest.raises(UserError, match="no records"):
        curves({"a": []})
