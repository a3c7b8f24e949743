"""In a notebook: results, records and runs show themselves, without a script; training draws one
curve again in its place.
"""

import re
import sys
import types

import numpy as np
import pytest

import regard
from regard.recipes.reporter import Reporter
from regard.records.attention import AttentionRecord

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "</table>",
    "&amp;",
    "' onmouseover='x",
]


def test_a_record_shows_itself():
    weights = np.full((1, 1, len(HOSTILE), len(HOSTILE)), 0.2, np.float32)
    shown = AttentionRecord(HOSTILE, HOSTILE, {"cross": weights})._repr_html_()
    assert not re.search(r"<(script|img)", shown)
    assert shown.count("</table>") == 1
    assert shown.count("<td title=") == 25
    assert "rgba(0,114,178,0.200)" in shown
    assert not re.search(r"<td title=\"[^\"]*\" (?!style)", shown)


def test_too_long_or_none():
    weights = np.full((1, 1, 61, 2), 0.5, np.float32)
    assert (
        "61 × 2 tokens" in AttentionRecord(["a", "b"], ["x"] * 61, {"cross": weights})._repr_html_()
    )
    assert "no attention" in AttentionRecord(["a"], ["b"], {})._repr_html_()


def test_a_result_and_a_run_show_themselves(run):
    result = regard.load(run)("12<b>+3")
    shown = result._repr_html_()
    assert "12&lt;b&gt;+3 → <b>" in shown
    assert "warning: not in the vocabulary: &lt;" in shown
    assert shown.count("<table") == 1
    shown = run._repr_html_()
    assert "transformer, width 16, on arithmetic; dev loss" in shown
    assert shown.count('src="data:image/png;base64,iVBOR') == 1
    assert "<script" not in shown


def test_several_models_have_no_one_attention(run):
    assert "load one of them alone" in regard.load(run, run)("1+2")._repr_html_()


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
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
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
