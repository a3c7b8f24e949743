"""In a notebook: results, records and runs show themselves, without a script."""

import html
import re

import numpy as np
import pytest

import regard
from regard.errors import UserError
from regard.pictures.curves import curves
from regard.pictures.heatmaps import heatmap
from regard.records import page as pages
from regard.records.attention import AttentionRecord
from regard.records.page import Page

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
    assert "<bdi>12&lt;b&gt;+3</bdi> → <b>" in shown
    assert "warning: not in the vocabulary: &lt;" in shown
    assert shown.count("<table") == 1
    shown = run._repr_html_()
    assert "transformer, width 16, on arithmetic; dev loss" in shown
    assert shown.count('src="data:image/png;base64,iVBOR') == 1
    assert "<script" not in shown


def test_several_models_have_no_one_attention(run):
    assert "load one of its runs alone" in regard.load(run, run)("1+2")._repr_html_()


def test_figures_show_themselves_without_a_magic_line(run):
    """IPython asks an object for `_repr_png_`; matplotlib's own figure has none."""
    weights = np.eye(2, dtype=np.float32)
    for figure in (heatmap(weights, ["a", "b"], ["c", "d"]), curves({"run": run.records()})):
        assert figure._repr_png_().startswith(b"\x89PNG")


def test_an_evaluation_is_a_table(run):
    evaluation = regard.evaluate(run)
    assert len(repr(evaluation)) < 1000
    shown = evaluation._repr_html_()
    assert len(shown) < 5000
    assert shown.count("<table>") == 2
    assert '<td style="text-align: left">exact match</td>' in shown
    assert "The first 5 of 12 answers" in shown
    assert "<script" not in shown

    pair = type(evaluation.pairs[0])(HOSTILE[0], (HOSTILE[1],), 1)
    hostile = type(evaluation)(evaluation.report, [pair], [HOSTILE[2]])._repr_html_()
    assert not re.search(r"<(script|img)", hostile)
    assert hostile.count("</table>") == 2


def test_a_page_opens_inline(run, tmp_path, monkeypatch):
    result = regard.load(run)("12+3")
    page = result.page(evidence=False)
    shown = page._repr_html_()
    assert shown.startswith('<iframe srcdoc="')
    assert 'sandbox="allow-scripts' in shown
    assert shown.count("<") == 2  # the frame alone: the page itself is escaped
    assert len(repr(page)) < 100
    path = result.write_page(tmp_path / "page.html", evidence=False)
    assert (
        path.read_text(encoding="utf-8")
        == page.html
        == html.unescape(shown).split('"', 1)[1][: len(page.html)]
    )

    monkeypatch.setattr(pages, "LARGEST", 10)
    assert Page("<p>far too long</p>")._repr_html_() == (
        "<p>Page of 19 characters: .write(&#x27;page.html&#x27;) saves it</p>"
    )


def test_short_tokens_stand_upright_above_their_columns():
    weights = np.full((1, 1, 2, 2), 0.5, np.float32)
    record = AttentionRecord(["r", "<eos>"], ["a", "b"], {"cross": weights})
    headings = re.findall(r'<th scope="col" style="([^"]*)">([^<]*)</th>', record._repr_html_())
    assert [name for _, name in headings] == ["r", "&lt;eos&gt;"]
    assert ["vertical-rl" in style for style, _ in headings] == [False, True]


def test_translators_and_results_have_a_short_repr(run):
    translator = regard.load(run)
    assert re.fullmatch(r"Translator\([\d,]+ parameters, beam \d+, cpu\)", repr(translator))
    result = next(translator.translate(["1+2"], n_best=3))
    assert re.fullmatch(
        r"Result\('1\+2' → '[^']*', score=-?\d+\.\d{3}, 2 alternatives(, \d warnings?)?\)",
        repr(result),
    )


def test_what_is_not_text_is_refused_in_words(run):
    with pytest.raises(UserError, match=r"^pass a text or a list of texts, not int$"):
        regard.load(run)(3)


def test_an_error_shows_the_callers_line_only():
    """IPython asks an exception for `_render_traceback_`."""
    with pytest.raises(UserError) as caught:
        regard.train("pairs.tsv", epochs=1)
    line, message = caught.value._render_traceback_()
    assert re.fullmatch(r'line \d+: regard.train\("pairs.tsv", epochs=1\)', line)
    assert message == 'UserError: train() has no argument epochs: write train={"epochs": 1}'


def test_a_notebook_of_a_newcomer(run, tmp_path):
    """Executed by a real kernel, where there is one."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    cells = [
        f"import regard; run = regard.Run.open({str(run.path)!r}); run",
        "result = regard.load(run)('1+2'); result.attention",
        "result.page(evidence=False)",
        "regard.evaluate(run)",
        "from regard.pictures.curves import curves; curves({'run': run.records()})",
        "regard.train(run.config, out=run.path, resume=True);",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    bad = nbformat.v4.new_code_cell("regard.train('pairs.tsv', epochs=1)")
    bad.metadata["tags"] = ["raises-exception"]
    book.cells.append(bad)
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(book, timeout=300, resources=where).execute()

    shown, attention, page, table, picture, again, error = [cell.outputs for cell in book.cells]
    assert "image/png;base64" in shown[-1].data["text/html"]
    assert attention[-1].data["text/html"].count("<table") == 1
    assert page[-1].data["text/html"].startswith("<iframe")
    assert "exact match" in table[-1].data["text/html"]
    assert "image/png" in picture[-1].data
    assert {output.output_type for output in again} == {"stream"}  # no bar, no second curve
    assert {output.name for output in again} == {"stdout"}
    assert again[0].text.startswith("already trained: ")
    assert error[-1].traceback == [
        "line 1: regard.train('pairs.tsv', epochs=1)",
        'UserError: train() has no argument epochs: write train={"epochs": 1}',
    ]
