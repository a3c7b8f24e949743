"""In a notebook: results, records and runs show themselves, without a script."""

import re

import numpy as np

import regard
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
    assert "load one of its runs alone" in regard.load(run, run)("1+2")._repr_html_()
