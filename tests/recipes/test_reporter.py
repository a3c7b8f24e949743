"""In a notebook, training draws one curve again in its place; elsewhere a bar goes to a stream."""

import sys
import types

import pytest

import regard
from regard.recipes.reporter import Reporter


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


def test_training_draws_one_curve_in_its_place(notebook, tiny, tmp_path):
    data = {
        "options": {"train": 60, "dev": 12, "test": 12},
        "batch_sentences": 20,
        "path": "arithmetic",
    }
    settings = tiny | {"data": data, "text": {"tokenizer": "characters"}}
    regard.train(regard.Config(), out=tmp_path / "run", **settings)
    (handle,) = notebook
    assert len(handle.shown) >= 2
    assert "<progress value=6 max=6></progress> 6 of 6 train loss" in handle.shown[-1]
    assert handle.shown[-1].count("<img") == 1


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
        "1 of 10 one</p><i>picture</i>",
        "2 of 10 &lt;two&gt;</p><i>picture</i>",
    ]


def test_elsewhere_nothing_is_displayed(notebook, capsys):
    with Reporter(sys.stdout).bar(1) as bar:
        bar(1, "done")
    assert not notebook
    assert "1/1  done" in capsys.readouterr().out
