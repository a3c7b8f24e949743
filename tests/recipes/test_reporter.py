"""In a notebook, training draws one curve again in its place; elsewhere a bar goes to a stream."""

import io
import re
import sys
import types

import pytest
from rich.console import Console

import regard
from regard.recipes.reporter import LONGEST_BAR, SHORTEST_BAR, Pace, Reporter, fit_line


class Handle:
    def __init__(self):
        self.shown = []

    def update(self, html):
        self.shown.append(html)


@pytest.fixture
def notebook(monkeypatch):
    """As in a kernel: what is displayed, one handle each."""
    handles = []

    def display(html, *, display_id):
        assert display_id
        handles.append(Handle())
        return handles[-1]

    tools = types.SimpleNamespace(display=display, HTML=str)
    shell = types.SimpleNamespace(kernel=object())
    ipython = types.SimpleNamespace(get_ipython=lambda: shell, version_info=(9, 0))
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", tools)
    return handles


def test_training_draws_one_curve_in_its_place(notebook, tiny, tmp_path, capsys):
    data = {
        "options": {"train": 60, "dev": 12, "test": 12},
        "batch_sentences": 20,
        "path": "arithmetic",
    }
    settings = tiny | {"data": data, "text": {"tokenizer": "characters"}}
    regard.train(regard.Config(), out=tmp_path / "run", **settings)
    (handle,) = notebook
    assert len(handle.shown) >= 2
    assert "<progress value=1.000 max=1></progress> 6 of 6 · loss" in handle.shown[-1]
    assert handle.shown[-1].count("<img") == 1

    capsys.readouterr()
    regard.train(regard.Config(), out=tmp_path / "run", resume=True, **settings)
    assert capsys.readouterr().out.startswith(f"already trained: {tmp_path / 'run'} is at its last")
    assert notebook == [handle]  # a finished run is not drawn again


def test_lines_are_plain_text_on_standard_output(notebook, capsys):
    """Rich makes a paragraph of HTML of each, and standard error is red in a notebook."""
    reporter = Reporter()
    reporter.say("add train.save_every=90")
    reporter.warn("too few")
    heard = capsys.readouterr()
    assert heard.out == "add train.save_every=90\nwarning: too few\n"
    assert heard.err == ""


def test_a_long_line_is_broken_between_words_on_a_terminal_only():
    text = "only one checkpoint will be kept"
    for is_terminal, expected in (
        (True, "only one\ncheckpoint will\nbe kept\n"),
        (False, f"{text}\n"),
    ):
        stream = io.StringIO()
        stream.isatty = lambda shown=is_terminal: shown
        reporter = Reporter(stream)
        reporter.console.width = 16
        reporter.say(text)
        assert "\n".join(line.rstrip() for line in stream.getvalue().split("\n")) == expected


def test_the_last_word_is_shown_also_after_an_error(notebook):
    def fail():
        with Reporter().bar(10, 0, lambda: "<i>picture</i>") as bar:
            bar(1, "one")
            bar(2, "<two>")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    (handle,) = notebook
    assert [html.split("</progress> ")[1] for html in handle.shown] == [
        "1 of 10 · 0:00 left · one</p><i>picture</i>",
        "2 of 10 · 0:00 left · &lt;two&gt;</p><i>picture</i>",
    ]


def test_elsewhere_nothing_is_displayed(notebook, capsys):
    with Reporter(sys.stdout).bar(1) as bar:
        bar(1, "done")
    assert not notebook
    assert "1/1  done" in capsys.readouterr().out


# a line of a terminal

PIECES = [
    "12,300/250,000",
    "1:23:45 left",
    "loss 3.108",
    "dev loss 2.913",
    "accuracy 0.154",
    "dev accuracy 0.145",
    "123,607 tokens/s",
]


@pytest.mark.parametrize("width", [*range(60, 201), 20, 40])
def test_a_line_fits_and_drops_the_least_important_last(width):
    columns, text = fit_line(width, PIECES)
    assert len(text) + (columns + 1 if columns else 0) <= width
    assert columns <= LONGEST_BAR
    shown = text.split("  ")
    assert shown == PIECES[: len(shown)]
    if width >= 40:
        assert len(shown) >= 3
    if width >= 60:
        assert columns >= SHORTEST_BAR
    if width >= 140:
        assert shown == PIECES


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_on_a_terminal_step_time_and_loss_are_seen(width, monkeypatch):
    monkeypatch.setattr(Pace, "left", lambda self: PIECES[1])
    stream = io.StringIO()
    reporter = Reporter(stream)
    reporter.console = Console(
        file=stream, width=width, force_terminal=True, soft_wrap=True, highlight=False
    )
    with reporter.bar(250_000, 12_000) as bar:
        bar(12_300, *PIECES[2:])

    drawn = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue()).replace("\r", "\n")
    lines = drawn.rstrip().split("\n")
    assert all(len(line.rstrip()) <= width for line in lines)
    assert "  ".join(PIECES[:3]) in lines[-1]


def test_the_time_left_knows_a_time_limit(monkeypatch):
    """Four minutes were given to training that needs 46."""
    clock = 0.0
    monkeypatch.setattr("regard.recipes.reporter.time.monotonic", lambda: clock)
    pace = Pace(1000)
    assert pace.left() == "-:-- left"
    clock = 60.0
    pace.note(20, at_most=180.0)
    assert pace.left() == "3:00 left"
    assert pace.share == pytest.approx(0.25)
    clock = 240.0
    pace.note(80, at_most=0.0)
    assert pace.left() == "0:00 left"
    assert pace.share == pytest.approx(1.0)
    pace.note(80)
    assert pace.left() == "46:00 left"


def test_a_log_ends_with_where_it_stopped():
    """Also before the last step, and though ten seconds have not passed."""
    stream = io.StringIO()
    with Reporter(stream).bar(1000) as bar:
        bar(1, "loss 3.1", at_most=60.0)
        bar(312, "loss 2.1", at_most=0.0)
    assert stream.getvalue() == "312/1,000  loss 2.1  0:00 left\n"
