"""B14, C14, E7, E8: pictures of embeddings, positions and gradients, as the commands draw them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.errors import UserError


@pytest.fixture
def _in_double():
    """Trained runs are float32: the rest of this folder works in float64."""


def show(*words):
    """`regard show …`, which should succeed."""
    words = ["show", *map(str, words)]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def figures(here, monkeypatch):
    """The figures that are saved, in order."""
    from regard.pictures import embeddings, gradients, positions

    kept = []
    for module in (embeddings, gradients, positions):
        monkeypatch.setattr(
            module,
            "save_figure",
            lambda figure, out: kept.append(figure),
        )
    return kept


def test_c14_columns_six_to_nine_by_a_command(figures):
    show("positions", "--width", 32, "--length", 60, "--columns", "6-9")
    show("positions", "--width", 32, "--length", 60, "--columns", "6,7, 8-9")
    for figure in figures:
        lines = figure.axes[1].get_lines()
        assert [line.get_label() for line in lines] == [f"dimension {i}" for i in (6, 7, 8, 9)]
        for column, line in enumerate(lines, 6):
            angles = np.arange(60) / 10_000 ** ((column - column % 2) / 32)
            wave = np.cos(angles) if column % 2 else np.sin(angles)
            np.testing.assert_allclose(line.get_ydata(), wave, atol=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--columns", "9-6"], "expected dimensions from 0, such as 6-9"),
        (["--columns", "six"], "expected dimensions from 0, such as 6-9"),
        (["--columns", "-1"], "expected dimensions from 0, such as 6-9"),
        (["--columns", "64"], "columns 64: choose up to 8 from 0 to 63"),
        (["--columns", "0-9999"], "choose up to 8 from 0 to 63"),
        (["alibi", "--columns", "1"], "alibi adds to the scores of attention"),
    ],
)
def test_c14_columns_that_are_not_there(here, words, message):
    with pytest.raises(UserError, match=message):
        show("positions", *words)
    assert not list(here.iterdir())


def points_of(figure):
    """The points (N, 2) that are named, and their names, of a map of embeddings."""
    axes = figure.axes[0]
    return {text.get_text(): text.xy for text in axes.texts}


def test_b14_all_tokens_and_the_special_ones_untrained(run, figures):
    """As they were before the first step: the seed draws the same weights again."""
    show("embeddings", run.path, "--special", "--untrained")
    show("embeddings", run.path, "--special")
    before, after = figures
    names = run.source.token_texts([*range(4), *range(run.source.first, run.source.size)])
    assert set(points_of(before)) == set(names) > {"<pad>", "<bos>", "<eos>", "<unk>", "+", "7"}
    assert "before training" in before.get_suptitle()
    assert "12 of 12 tokens and 4 special tokens" in before.get_suptitle()

    torch.manual_seed(run.config.train.seed)
    new = run.new_model().encoder.embedding.weight.detach()
    ids = [*range(4), *range(run.source.first, run.source.size)]
    vectors = new[ids].numpy().astype(float)
    components = np.linalg.svd(vectors - vectors.mean(0))[2][:2]  # (2, D)
    expected = np.abs((vectors - vectors.mean(0)) @ components.T)  # their signs are free
    found = np.array([points_of(before)[name] for name in names])
    np.testing.assert_allclose(np.abs(found), expected, atol=1e-4)
    assert not np.allclose(found, [points_of(after)[name] for name in names], atol=1e-3)


def test_b14_two_dimensions_are_drawn_as_they_are(figures, tiny, tmp_path):
    data = {"options": {"train": 20, "dev": 4, "test": 4}}
    model = {"kind": "rnn", "width": 8, "embedding": 2, "tie": "none", "cell": "gru"}
    settings = {"data": data, "model": model, "text": {"tokenizer": "characters", "reserved": 0}}
    train = {**tiny["train"], "steps": 1}
    run = regard.train("arithmetic", out=tmp_path / "run", train=train, **settings)
    show("embeddings", run.path, "--special")
    (figure,) = figures
    weights = run.model().encoder.embedding.weight
    points = points_of(figure)
    assert len(points) == 16
    ids = [*range(4), *range(4, run.source.size)]
    for name, vector in zip(run.source.token_texts(ids), weights.tolist(), strict=True):
        assert points[name] == pytest.approx(vector)


@pytest.mark.parametrize(
    ("tie", "side", "words"),
    [
        ("none", "source", "the source's own table"),
        ("none", "target", "the target's own table"),
        ("target", "target", "the target's table, which is also the output layer's"),
        ("inputs", "source", "one table for source and target;"),
        ("all", "target", "one table for source, target and the output layer;"),
    ],
)
def test_b14_the_title_tells_whether_tables_are_shared(tie, side, words, run, figures, monkeypatch):
    from regard.config import TransformerConfig
    from regard.models import build_model

    model = build_model(TransformerConfig(width=8, ffn=8, heads=2, tie=tie), 28, 28)
    monkeypatch.setattr(regard.Run, "model", lambda self, parts=None: model)
    show("embeddings", run.path, "--side", side)
    (figure,) = figures
    title = figure.get_suptitle().replace("\n", " ")
    assert words in title
    assert "12 of 12 tokens, without special tokens" in title


def test_b14_the_help_names_the_special_tokens():
    assert "<pad>, <bos>, <eos> and <unk>" in " ".join(
        show("embeddings", "--help").replace("│", " ").split()
    )


def test_b14_a_fine_tuned_run_did_not_begin_untrained(run, here, monkeypatch):
    train = replace(run.config.train, start_from="runs/base")
    config = replace(run.config, train=train)
    tuned = regard.Run(run.path, config, run.source, run.target, run.manifest)
    monkeypatch.setattr(regard.Run, "open", lambda path: tuned)
    with pytest.raises(UserError, match="was fine-tuned; draw the run that it started from"):
        show("embeddings", run.path, "--untrained")


def test_b14_special_tokens_by_name(run, figures):
    show("embeddings", run.path, "--tokens", "<eos>,1,<bos>")
    (figure,) = figures
    assert set(points_of(figure)) == {"<eos>", "1", "<bos>"}


@pytest.fixture(scope="module")
def panels():
    """The panels of `regard show gradients`, which are what it draws."""
    return regard.inspection.gradient_panels(100)


def flow_of(panel, name):
    """The only curve of a panel whose name begins like this, without what it says about reach."""
    (curve,) = (curve for known, curve in panel.curves.items() if known.split(":")[0] == name)
    return curve


def test_e7_the_cells_we_train_are_the_other_way_round(panels):
    """These are the models that a config builds, untouched: the panel must say how they start."""
    ours = panels[0]
    assert "as Regard starts them: orthogonal, biases 0" in ours.title
    assert "reverse of the textbook" in ours.title
    settings = {"width": 64, "embedding": 64, "bidirectional": False, "attention": "none"}
    for name, cell in {"plain RNN": "rnn", "GRU": "gru", "LSTM": "lstm"}.items():
        config = regard.config.RNNConfig(cell=cell, **settings)
        torch.manual_seed(0)
        model = regard.models.build_model(config, 80, 80)
        np.testing.assert_allclose(flow_of(ours, name), regard.inspection.gradient_flow(model))

    reach = regard.inspection.reach
    assert reach(flow_of(ours, "plain RNN")) > 3 * reach(flow_of(ours, "LSTM"))
    assert reach(flow_of(ours, "LSTM, forget bias 1")) > reach(flow_of(ours, "plain RNN"))


@pytest.mark.parametrize("seed", range(3))
def test_e7_the_textbook_about_100_steps_rather_than_about_7(seed):
    from regard.inspection.untrained import textbook_cells

    textbook = textbook_cells(100, 32, seed)
    assert "textbooks" in textbook.title
    reach = regard.inspection.reach
    assert 5 <= reach(flow_of(textbook, "plain RNN")) <= 10
    assert reach(flow_of(textbook, "LSTM")) <= 15
    assert 20 <= reach(flow_of(textbook, "LSTM, forget bias 1")) <= 50
    assert reach(flow_of(textbook, "LSTM, forget bias 2")) in (None, *range(70, 100))


def test_e7_attention_is_a_short_way_to_the_source(panels):
    panel = panels[2]
    without = flow_of(panel, "LSTM without attention")
    attending = flow_of(panel, "LSTM with attention")
    assert panel.answer == 50
    assert without[-40:].max() < 1e-6
    assert attending[-40:].min() > 1e-2
    assert attending[30:48].max() < 1e-3  # the answer's own tokens are as far as ever
    assert flow_of(panel, "Transformer")[1:].min() > 1e-2


def test_e7_a_linear_cell_vanishes_and_explodes_by_its_eigenvalues(panels):
    for factor in (1.1, 1.0, 0.9):
        flow = flow_of(panels[3], f"eigenvalues of size {factor:g}")
        per_step = (flow[45] / flow[5]) ** (1 / 40)
        assert per_step == pytest.approx(factor, rel=0.01)


def test_e7_clipping_bounds_what_explodes(panels):
    panel = panels[4]
    names = list(panel.curves)
    exploding, clipped = panel.curves[names[0]], panel.curves[names[1]]
    assert (np.diff(exploding) > 0).all()
    assert exploding[-1] > 1e3
    np.testing.assert_allclose(clipped, 1)
    assert regard.config.TrainConfig().clip == 1
    assert "train.clip=1" in panel.title


@pytest.mark.parametrize("seed", range(3))
def test_e8_the_gradient_against_depth(seed):
    from regard.inspection.untrained import depth

    panel = depth(32, seed)
    plain = flow_of(panel, "feed-forward")
    assert len(plain) == 16
    assert (np.diff(np.log(plain)) < 0).all()  # it vanishes, layer by layer
    assert plain[-1] < 1e-2
    for name in ("feed-forward, residual", "Transformer", "Transformer, no residual"):
        flow = flow_of(panel, name)
        assert flow.min() > 0.1
        assert flow.max() < 100
    assert "with and without residual connections" in panel.title


def test_e8_the_transformers_are_those_of_the_settings(panels):
    settings = {"ffn": 256, "encoder_layers": 16, "decoder_layers": 1, "dropout": 0.0}
    for name, residual in {"Transformer": True, "Transformer, no residual": False}.items():
        config = regard.config.TransformerConfig(width=64, residual=residual, **settings)
        torch.manual_seed(0)
        model = regard.models.build_model(config, 80, 80)
        expected = regard.inspection.gradient_by_depth(model)
        np.testing.assert_allclose(flow_of(panels[5], name), expected)


def test_e8_every_panel_is_drawn_with_its_title_and_curves(figures, panels, monkeypatch):
    monkeypatch.setattr(regard.inspection, "gradient_panels", lambda length: panels)
    said = show("gradients")
    (figure,) = figures
    assert len(figure.axes) == 6
    for axes, panel in zip(figure.axes, panels):
        assert axes.get_title() == panel.title
        assert axes.get_yscale() == "log"
        drawn = {line.get_label(): line.get_ydata() for line in axes.get_lines()}
        for name, curve in panel.curves.items():
            np.testing.assert_array_equal(drawn[name], curve)
    assert "reverse of the textbook" in said
    assert "plain RNN: under 1% after" in said
