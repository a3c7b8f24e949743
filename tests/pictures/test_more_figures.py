"""Embedding map, gradient flow, beam tree and attention over training: nothing overlaps, nothing is
cut.
"""

import math
import random
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from regard.errors import UserError
from regard.pictures import any_glyph, save_figure
from regard.pictures.embeddings import embedding_map
from regard.pictures.gradients import Panel, gradients
from regard.pictures.heatmaps import growth, head_grid, heatmap
from regard.pictures.lengths import length_figure
from regard.pictures.tree import beam_tree
from regard.records.tree import Node

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
WORDS = ["the", "Wellington", "qgy", "I", "_signed", "été", "antidisestablishmentarianism"]
LONG = "will your young strange tourists be in front of the restaurant ? → " * 3


def words(count: int) -> list[str]:
    return [WORDS[i % len(WORDS)] for i in range(count)]


def matrix(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).dirichlet(np.ones(shape[-1]), shape[:-1])


def boxes(figure: Figure) -> list[tuple[str, Any]]:
    """Every text that is drawn, with what the renderer measured; of an annotation without
    its line.
    """
    drawn, draw = list[Text](), Text.draw

    def note(text: Text, renderer: Any) -> None:
        drawn.append(text)
        draw(text, renderer)

    with any_glyph(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", note)
        canvas: Any = FigureCanvasAgg(figure)
        canvas.draw()
        texts = [
            text for text in dict.fromkeys(drawn) if text.get_visible() and text.get_text().strip()
        ]
        return [
            (text.get_text(), Text.get_window_extent(text, canvas.get_renderer())) for text in texts
        ]


def clean(figure: Figure) -> list[tuple[str, Any]]:
    """Assert that no two texts overlap and that all lie inside the saved picture, which is cut
    around what is drawn.
    """
    found = boxes(figure)
    for (one, a), (two, b) in combinations(found, 2):
        wide, high = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
        assert wide <= 0.5 or high <= 0.5, (one, two)
    saved = figure.get_tightbbox().padded(0.1)
    for name, box in found:
        assert saved.x0 * figure.dpi <= box.x0, name
        assert saved.x1 * figure.dpi >= box.x1, name
        assert saved.y0 * figure.dpi <= box.y0, name
        assert saved.y1 * figure.dpi >= box.y1, name
    return found


# heatmaps


@pytest.mark.parametrize("shape", [(60, 60), (3, 3), (1, 60), (60, 1), (1, 1), (200, 200)])
def test_a_long_title_makes_a_heatmap_higher_and_not_wider(shape: tuple[int, int]) -> None:
    bare, titled = (
        heatmap(matrix(*shape), words(shape[0]), words(shape[1]), title=title)
        for title in ("", LONG)
    )
    assert titled.get_figwidth() == bare.get_figwidth()
    found = dict(clean(titled))
    assert found[titled.get_suptitle()].width <= titled.bbox.width
    assert titled.get_suptitle().startswith("will your young")


def test_titles_in_wide_letters_and_hostile_ones() -> None:
    titled = heatmap(
        matrix(3, 3), list("abc"), list("abc"), title="日本語の文は長い" * 5 + " $x_1$ \x00\n"
    )
    assert dict(boxes(titled))[titled.get_suptitle()].width <= titled.bbox.width * 1.05
    assert "$x_1$" in titled.get_suptitle()


def test_signed_values_have_one_scale_for_both_signs_and_a_dash_below_0() -> None:
    figure = heatmap(
        [[0.5, -2.0], [0.0, -0.01]], ["a", "b"], ["x", "y"], signed=True, label="evidence"
    )
    axes, bar = figure.axes
    assert axes.images[0].get_clim() == (-2, 2)
    assert [tuple(place) for place in axes.collections[0].get_offsets()] == [(1, 0)]
    assert bar.get_ylabel() == "evidence (–: below 0)"
    clean(heatmap(np.zeros((2, 2)), ["a", "b"], ["x", "y"], signed=True))


def test_all_heads_at_60_tokens_name_every_token() -> None:
    figure = head_grid(matrix(2, 4, 60, 60), words(60), words(60), title=LONG)
    assert len(figure.axes[0].get_yticklabels()) == 60
    clean(figure)


def test_growth_has_a_panel_for_every_checkpoint() -> None:
    figure = growth(
        [(step, matrix(4, 5)) for step in (10, 200, 3000, 4000, 5000, 6000, 7000)],
        words(4),
        words(5),
        title=LONG,
    )
    assert [axes.get_title() for axes in figure.axes[:-1]][:3] == [
        "step 10",
        "step 200",
        "step 3,000",
    ]
    assert len(figure.axes) == 7 + 1
    clean(figure)
    clean(growth([(1, matrix(60, 60)), (2, matrix(60, 60))], words(60), words(60)))
    with pytest.raises(UserError, match="expected"):
        growth([(1, matrix(2, 2))], ["a"], ["x", "y"])


def test_growth_without_a_step_is_refused() -> None:
    with pytest.raises(UserError, match="at least one training step"):
        growth([], ["a"], ["x", "y"])


# embeddings


def test_a_plane_is_drawn_as_it_is_and_more_dimensions_by_pca() -> None:
    square = np.array([[0.0, 0], [0, 1], [1, 1], [1, 0]])
    figure = embedding_map(square, list("abcd"))
    np.testing.assert_array_equal(figure.axes[0].get_lines()[-1].get_xydata(), square)
    assert figure.axes[0].get_xlabel() == "dimension 0"
    turned = (
        square @ np.linalg.qr(np.random.default_rng(0).normal(size=(7, 7)))[0][:2]
    )  # the same square in seven dimensions
    drawn = embedding_map(turned, list("abcd"), joined=True).axes[0]
    points = drawn.get_lines()[-1].get_xydata()
    between = [np.linalg.norm(x[:, None] - x[None], axis=-1) for x in (square, points)]
    np.testing.assert_allclose(*between, atol=1e-12)
    assert [line.get_linestyle() for line in drawn.get_lines()] == ["-", "None", "None"]
    assert {line.get_linestyle() for line in figure.axes[0].get_lines()} == {"None"}
    assert (
        drawn.get_xlabel()
        == drawn.get_ylabel().replace("second", "first")
        == "first principal component: 50% of the variance"
    )


@pytest.mark.parametrize("spread", [1.0, 1e-3])
def test_sixty_labels_do_not_overlap(spread: float) -> None:
    """Also where most of them crowd around one point."""
    vectors = np.random.default_rng(0).normal(size=(60, 16)) * spread
    vectors[0] += 3
    figure = embedding_map(vectors, words(60), title=LONG)
    found = clean(figure)
    named = [name for name, _ in found if any(name.startswith(word[:12]) for word in WORDS)]
    assert len(named) >= (60 if spread == 1.0 else 30)
    frame = figure.axes[0].get_window_extent()
    assert all(
        frame.padded(1).contains(*corner)
        for name, box in found
        if name in named
        for corner in (box.min, box.max)
    )


def test_many_tokens_are_dots_and_the_first_are_named() -> None:
    figure = embedding_map(
        np.random.default_rng(0).normal(size=(1000, 8)), [f"t{i}" for i in range(1000)], labels=20
    )
    assert {f"t{i}" for i in range(20)} <= {name for name, _ in boxes(figure)}
    assert not any(name == "t20" for name, _ in boxes(figure))


@pytest.mark.parametrize("shape", [(1, 8), (2, 8), (3, 1), (13, 2)])
def test_small_maps_and_hostile_tokens(shape: tuple[int, int], tmp_path: Path) -> None:
    embedding_map(
        np.ones(shape) * np.arange(shape[0])[:, None],
        HOSTILE[: shape[0]],
        title="$y_2$",
        out=tmp_path / "e.svg",
    )
    assert (tmp_path / "e.svg").stat().st_size > 1000
    with pytest.raises(UserError, match="2 tokens"):
        embedding_map(np.ones((3, 2)), ["a", "b"])


# gradients


def test_gradients_are_told_apart_by_marker_and_style(tmp_path: Path) -> None:
    flows = {
        f"${name}_1$": np.exp(-np.arange(100.0) * rate)
        for name, rate in (("a", 0.5), ("b", 0.1), ("c", 0.0))
    }
    figure = gradients([panel(flows, answer=50)], title=LONG, out=tmp_path / "g.pdf")
    drawn = [line for line in figure.axes[0].get_lines() if len(line.get_xdata()) == 100]
    assert (
        len({line.get_marker() for line in drawn})
        == len({line.get_linestyle() for line in drawn})
        == 3
    )
    assert figure.axes[0].get_yscale() == "log"
    assert {"$a_1$", "$b_1$", "$c_1$"} <= {name for name, _ in clean(figure)}
    drawn_zero = gradients([panel({"a": np.array([1.0, 0.0, 0.5])})])  # it never arrives
    clean(drawn_zero)


def panel(curves: dict[str, Any], **more: Any) -> Panel:
    return Panel(LONG[:40], curves, "tokens before the predicted one", "norm", **more)


@pytest.mark.parametrize("count", [1, 4, 6])
def test_no_labels_of_gradients_overlap(count: int) -> None:
    figure = gradients([panel({"a": np.ones(5), "b": np.ones(5)})] * count, title=LONG)
    assert len(figure.axes) == count
    assert [name for name, _ in clean(figure)].count("tokens before the predicted one") == count
    with pytest.raises(UserError, match="at least one panel"):
        gradients([])


# the beam


def tree(steps: int, width: int, tokens: list[str]) -> list[Node]:
    """What a beam of this width might try: the first of each step is chosen, `width` go on, as many
    are dropped.
    """
    rng, nodes, live = random.Random(0), list[Node](), [-1]
    for step in range(steps):
        made = []
        for rank in range(2 * width):
            parent = live[0] if rank == 0 else rng.choice(live)
            fate = (
                "chosen"
                if rank == 0
                else "dropped"
                if rank >= width
                else "ended"
                if rng.random() < 0.2
                else "kept"
            )
            logprob = -rng.random() * 3
            total = logprob + (nodes[parent].total if parent >= 0 else 0)
            nodes.append(Node(rng.choice(tokens), parent, step, logprob, total, fate))
            if fate in ("chosen", "kept"):
                made.append(len(nodes) - 1)
        live = made
    return nodes


@pytest.mark.parametrize(("steps", "width"), [(1, 1), (4, 2), (12, 3), (60, 2), (60, 5)])
def test_no_labels_of_a_tree_overlap(steps: int, width: int) -> None:
    nodes = tree(steps, width, WORDS)
    figure = beam_tree(nodes, title=LONG)
    said = [name for name, _ in clean(figure)]
    finished = sum(node.fate == "ended" for node in nodes) + 1
    assert sum(name.startswith("log p −") for name in said) == finished
    dropped = sum(node.fate == "dropped" for node in nodes)
    hidden = [name for name in said if name.endswith("not drawn")]
    assert hidden in ([], [f"{dropped} more were dropped immediately; they are not drawn"])
    assert bool(hidden) == (steps == 60)
    assert len([name for name in said if name.startswith(("0.", "1.", "<"))]) == len(
        nodes
    ) - dropped * bool(hidden)


def test_a_tree_of_hostile_tokens_says_the_probabilities(tmp_path: Path) -> None:
    nodes = [
        *(Node(token, -1, 0, math.log(0.07), math.log(0.07), "dropped") for token in HOSTILE),
        Node("$x_1$", -1, 0, 0.0, 0.0, "chosen"),
    ]
    clean(beam_tree(nodes, title="$x_1$", out=tmp_path / "t.svg"))
    with pytest.raises(UserError, match="the search has no nodes"):
        beam_tree([])


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_every_picture_in_every_format_and_nothing_left_in_pyplot(
    suffix: str, tmp_path: Path
) -> None:
    made = [
        embedding_map(matrix(12, 4), words(12)),
        gradients([panel({"a": np.ones(5)})]),
        beam_tree(tree(4, 2, WORDS)),
        growth([(1, matrix(3, 3)), (2, matrix(3, 3))], words(3), words(3)),
        heatmap(matrix(3, 3), words(3), words(3), signed=True),
    ]
    for i, figure in enumerate(made):
        save_figure(figure, tmp_path / f"{i}{suffix}")
        assert (tmp_path / f"{i}{suffix}").stat().st_size > 1000
    assert (
        "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()
    )


# scores by length


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_scores_by_length_leave_out_what_is_not_known(suffix: str, tmp_path: Path) -> None:
    bins = ["1–10", "11–20", "21 or more"]
    scores = {"$BLEU_1$": [None, 20.0, 10.0], "exact match (%)": [50.0, 40.0, 0.0]}
    out = tmp_path / f"l{suffix}"
    figure = length_figure(bins, [3, 1200, 7], scores, title=LONG, out=out)
    above, below = figure.axes
    bleu, exact = above.get_lines()
    np.testing.assert_array_equal(bleu.get_ydata(), [math.nan, 20, 10])
    np.testing.assert_array_equal(exact.get_ydata(), [50, 40, 0])
    assert [bar.get_height() for bar in below.patches] == [3, 1200, 7]
    assert {"1,200", "$BLEU_1$", "21 or more"} <= {name for name, _ in clean(figure)}
    assert out.stat().st_size > 1000


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [([97.0, 92.0], 90, 100), ([97.0, 30.0], 0, 100), ([8.0, 6.0], 0, 20), ([None, None], 0, 100)],
)
def test_scores_by_length_fill_their_panel(values: Any, low: float, high: float) -> None:
    bottom, top = length_figure(["1", "2"], [3, 4], {"BLEU": values}).axes[0].get_ylim()
    assert low - 4 < bottom < low
    assert high < top < high + 4


def test_scores_by_length_of_unequal_numbers_are_refused() -> None:
    with pytest.raises(UserError, match="as many sentences and scores as bins"):
        length_figure(["1"], [1], {"BLEU": [1.0, 2.0]})
    with pytest.raises(UserError, match="at least one"):
        length_figure([], [], {})
