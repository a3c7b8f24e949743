"""The report as a file: what is in it, and that no text of the data becomes markup."""

import base64
import hashlib
import html
import math
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from regard.comparison.outcome import Outcome
from regard.comparison.page import report_page
from regard.comparison.scores import Scores

Maker = Callable[..., Outcome]
HOSTILE = "</script></title><img src=x onerror=alert(1)> {{STYLE}} \u202e\u2066\ud800\x00'\"&"
NAMESPACE = "http://www.w3.org/2000/svg"
VOID = {"meta"}
COMMAND = "regard compare made.toml"


class Structure(HTMLParser):
    """Follows the elements of a page, and fails where one is not closed as it was opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.sections: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        if tag == "section" and attributes.get("id"):
            self.sections.append(str(attributes["id"]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)


def read(page: str) -> Structure:
    """The structure of a page that any reader can follow and that asks for nothing."""
    structure = Structure()
    structure.feed(page)
    structure.close()
    assert structure.open == []
    identities = [one["id"] for _, one in structure.elements if "id" in one]
    assert len(set(identities)) == len(identities)
    for _, attributes in structure.elements:
        for name in ("aria-labelledby", "aria-describedby"):
            assert attributes.get(name) in (None, *identities)
        assert not {"src", "style", "onerror", "onclick"} & set(attributes)
        assert attributes.get("href", "#").startswith("#")  # type: ignore[union-attr]
        assert attributes.get("href", "#")[1:] in ("", *identities)  # type: ignore[index]
    assert not {"script", "img", "link", "iframe"} & {tag for tag, _ in structure.elements}
    assert "http" not in page.replace(NAMESPACE, "").replace("http-equiv", "")
    assert "url(" not in page
    for drawing in drawings(page):
        ElementTree.fromstring(drawing)
    assert not re.search(r'="[^"]*\b(nan|inf)\b', page)
    return structure


def drawings(page: str) -> list[str]:
    """Each SVG of a page, with those inside it."""
    found = []
    depth = 0
    start = 0
    for tag in re.finditer("<svg[ >]|</svg>", page):
        if tag.group() == "</svg>":
            depth -= 1
            if depth == 0:
                found.append(page[start : tag.end()])
            continue
        if depth == 0:
            start = tag.start()
        depth += 1
    assert depth == 0
    return found


def words(page: str) -> str:
    return " ".join(" ".join(read(page).words).split())


def test_the_page_says_which_system_to_take_and_how_sure_that_is(made_outcome: Maker) -> None:
    page = report_page(made_outcome(examples=100), COMMAND)
    text = words(page)
    assert text.index("Which size?") < text.index("Which system to take") < text.index("Be careful")
    assert "Take large" in text
    assert "The difference between the two is more than chance" in text
    assert "compared by BLEU on 100 examples of the test set (higher is better)" in text


def test_the_sections_have_their_order(made_outcome: Maker) -> None:
    outcome = made_outcome(
        {"1": 0.1, "2": 0.5, "4": 0.9},
        settings={name: {"model": {"heads": int(name)}} for name in "124"},
        decisions=["a vocabulary of 800 words"],
    )
    structure = read(report_page(outcome, COMMAND))
    order = "quality results differences costs against curves lengths answers settings seeds"
    assert structure.sections == [*order.split(), "machine", "decisions", "repeat"]
    headings = [tag for tag, _ in structure.elements if tag in ("h1", "h2")]
    assert headings == ["h1"] + ["h2"] * (len(structure.sections) + 2)


def test_tables_have_headers_and_scroll_in_their_box(made_outcome: Maker) -> None:
    structure = read(report_page(made_outcome(), COMMAND))
    scopes = [one.get("scope") for tag, one in structure.elements if tag == "th"]
    assert set(scopes) == {"row", "col"}
    boxes = [one for _, one in structure.elements if one.get("class") == "scroll"]
    tables = [one for tag, one in structure.elements if tag == "table"]
    assert len(boxes) == len(tables) >= 5
    assert all(box["tabindex"] == "0" and box["aria-labelledby"] for box in boxes)


def test_hostile_texts_are_text(made_outcome: Maker) -> None:
    def hostile(scores: Scores) -> Scores:
        wrong = "x" * (1 + sorted(names).index(scores.system))  # not equally wrong
        answers = [f"{HOSTILE} {wrong} {number}" for number in range(40)]
        known = {"model": {HOSTILE: scores.system}}
        return replace(
            scores,
            answers=answers,
            sources=[f"{HOSTILE} {number}" for number in range(40)],
            references=[[HOSTILE] for _ in answers],
            settings=known,
            signature=HOSTILE,
            device=HOSTILE,
            machine={**scores.machine, "processor": HOSTILE, "regard": HOSTILE},
        )

    names = {HOSTILE: 0.5, "n" * 2000: 0.9, "<b>": 0.7}
    outcome = made_outcome(
        names, change=hostile, question=HOSTILE, decisions=[HOSTILE], split=HOSTILE, metric="chrf"
    )
    page = report_page(outcome, HOSTILE)
    structure = read(page)
    assert "answers" in structure.sections
    assert not re.search("[\x00-\x08\u202a-\u202e\u2066-\u2069\ud800-\udfff]", page)
    assert "<img" not in page
    assert "{{STYLE}}" in html.unescape(page)
    assert page.count("<style>") == page.count("</style>") == 1
    page.encode()


def test_the_policy_names_the_style_and_no_script(made_outcome: Maker) -> None:
    page = report_page(made_outcome(), COMMAND)
    style = re.search("<style>(.*?)</style>", page, re.S)
    policy = re.search('Content-Security-Policy" content="(.*?)"', page)
    assert style
    assert policy
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in policy[1]
    assert "default-src 'none'" in policy[1]
    assert "script-src 'none'" in policy[1]


def test_every_class_of_a_chart_has_a_style(made_outcome: Maker) -> None:
    names = {f"system {number}": 0.5 for number in range(9)}
    page = report_page(made_outcome(names), COMMAND)
    style = re.search("<style>(.*?)</style>", page, re.S)
    assert style
    styled = set(re.findall(r"\.([a-z]+[0-9]?)\b", style[1]))
    charts = "".join(re.findall("<svg.*?</svg>", page, re.S))
    used = {one for classes in re.findall('class="(.*?)"', charts) for one in classes.split()}
    unstyled = {"narrow", "start", "dash0", "axis", "tick"} | {"name", "chart"}
    assert used - unstyled <= styled


def test_one_seed(made_outcome: Maker) -> None:
    page = report_page(made_outcome(seeds=[5]), COMMAND)
    assert "seeds" not in read(page).sections
    assert 'class="dot' not in page
    assert 'class="interval' not in page
    assert "Only 1 seed" in words(page)


def test_one_system_so_far(made_outcome: Maker) -> None:
    page = report_page(
        made_outcome(scored=lambda cell: (cell.system, cell.seed) == ("small", 1)), COMMAND
    )
    sections = read(page).sections
    assert "results" in sections
    assert not {"differences", "costs", "against", "answers", "settings"} & set(sections)
    assert "has been scored so far" in words(page)


def test_twenty_systems(made_outcome: Maker) -> None:
    names = {f"system {number}": 0.3 + number / 40 for number in range(20)}
    page = report_page(made_outcome(names, seeds=[1, 2]), COMMAND)
    text = words(page)
    assert all(name in text for name in names)
    assert text.count("seed 1") >= 1


def test_a_metric_where_less_is_better(made_outcome: Maker) -> None:
    page = report_page(made_outcome(metric="loss"), COMMAND)
    text = words(page)
    assert "(lower is better)" in text
    assert "Better and cheaper is at the bottom left." in text
    rows = re.findall(r'<table class="results">.*?</table>', page, re.S)[0]
    assert rows.index("large") < rows.index("small")


def test_what_is_not_a_number_is_left_out_of_the_charts(made_outcome: Maker) -> None:
    def diverged(scores: Scores) -> Scores:
        if scores.system == "large":
            return scores
        return replace(
            scores,
            values={**scores.values, "loss": math.nan, "chrf": None},
            curve=[],
            decoding=None,
        )

    page = report_page(made_outcome(change=diverged), COMMAND)
    assert "curves" in read(page).sections
    assert "decoding speed" not in words(page)
    curves = page[page.index('id="curves"') : page.index('id="lengths"')]
    assert "large" in curves
    assert "small" not in curves


def test_language_models_have_no_answers(made_outcome: Maker) -> None:
    settings = {"small": {"text": {"size": 5}}, "large": {"text": {"size": 9}}}
    page = report_page(made_outcome(has_answers=False, settings=settings), COMMAND)
    sections = read(page).sections
    assert not {"answers", "lengths"} & set(sections)
    text = words(page)
    assert "Bits per character of every system" in text
    assert "compare the shapes of the lines" in text
    assert "sacreBLEU" not in text


def test_equal_scores_and_costs(made_outcome: Maker) -> None:
    def equal(scores: Scores) -> Scores:
        values = {**scores.values, "bleu": 100.0}
        same = {"answers": [one[0] for one in scores.references], "curve": scores.curve[:1]}
        return replace(scores, values=values, parameters=1000, seconds=9.0, decoding=5.0, **same)

    sections = read(report_page(made_outcome(change=equal), COMMAND)).sections
    assert "quality" in sections
    assert not {"costs", "curves", "answers"} & set(sections)


def test_inputs_of_one_length_have_no_chart_of_lengths(made_outcome: Maker) -> None:
    def same_length(scores: Scores) -> Scores:
        return replace(scores, sources=["two words"] * len(scores.sources))

    outcome = made_outcome(change=same_length)
    assert "lengths" not in read(report_page(outcome, COMMAND)).sections


def test_answers_are_marked_by_sign_and_by_word(made_outcome: Maker) -> None:
    def answered(scores: Scores) -> Scores:
        wrong = "" if scores.seed == 9 else "the dog house"
        answer = "the red house" if scores.system == "large" else wrong
        return replace(
            scores, sources=["input"], references=[["the red house"]], answers=[answer], examples=1
        )

    page = report_page(made_outcome(change=answered), COMMAND)
    answers = page[page.index('id="answers"') : page.index('id="seeds"')]
    assert answers.index("✓</span>") < answers.index("✗</span>")
    assert "the <mark>dog</mark> house</bdi>" in answers
    assert 'aria-label="not the same as a reference"' in answers
    empty = report_page(made_outcome(seeds=[9], change=answered), COMMAND)
    assert "<i>nothing</i>" in empty[empty.index('id="answers"') : empty.index('id="machine"')]


def test_the_same_answers_are_shown_once(made_outcome: Maker) -> None:
    names = {f"system {number}": 0.9 for number in range(8)}

    def answered(scores: Scores) -> Scores:
        answer = "wrong" if scores.system == "system 7" else "right"
        return replace(
            scores, sources=["input"], references=[["right"]], answers=[answer], examples=1
        )

    page = report_page(made_outcome(names, seeds=[1], change=answered), COMMAND)
    answers = page[page.index('id="answers"') : page.index('id="machine"')]
    assert answers.count("<li>") == 2
    assert "<summary>7 systems</summary>" in answers


def test_a_numeric_setting_has_a_line_for_what_else_differs(made_outcome: Maker) -> None:
    settings = {
        f"{norm} {heads}": {"model": {"heads": heads, "placement": norm}}
        for norm in ("pre", "post")
        for heads in (1, 2, 4)
    }
    page = report_page(made_outcome(dict.fromkeys(settings, 0.5), settings=settings), COMMAND)
    against = page[page.index('id="against"') : page.index('id="curves"')]
    assert "BLEU against heads" in against
    assert len(re.findall('<path class="line ', against)) == 2
    assert "placement = pre" in against


def test_depth_is_the_layers_of_both_sides_and_of_each(made_outcome: Maker) -> None:
    settings = {
        f"{encoder}+{decoder}": {"model": {"encoder_layers": encoder, "decoder_layers": decoder}}
        for encoder, decoder in ((1, 1), (2, 2), (1, 3), (3, 3))
    }
    page = report_page(made_outcome(dict.fromkeys(settings, 0.5), settings=settings), COMMAND)
    against = page[page.index('id="against"') : page.index('id="curves"')]
    assert "layers of encoder and decoder together" in against
    ticks = re.findall('class="tick middle"[^>]*>(.*?)<', against)
    assert ticks == ["2", "4", "6", *"123", *"123"]
    assert 'class="line ' not in against[: against.index('class="legend')]
    assert against.index("layers of the encoder") < against.index("layers of the decoder")

    both = {name: of for name, of in settings.items() if name in ("1+1", "2+2", "3+3")}
    alike = {**both, "4+4": {"model": {"encoder_layers": 4, "decoder_layers": 4}}}
    page = report_page(made_outcome(dict.fromkeys(alike, 0.5), settings=alike), COMMAND)
    assert "layers of the encoder" not in page


def test_widths_that_follow_from_a_budget_are_not_drawn(made_outcome: Maker) -> None:
    settings = {name: {"model": {"width": 10 * place}} for place, name in enumerate("abc")}
    qualities = dict.fromkeys("abc", 0.5)
    free = report_page(made_outcome(qualities, settings=settings), COMMAND)
    assert "against" in read(free).sections
    budget = {"parameters": 1000}
    matched = report_page(made_outcome(qualities, settings=settings, budget=budget), COMMAND)
    assert "against" not in read(matched).sections


@pytest.mark.parametrize(("minutes", "figures"), [(None, ["steps", "time"]), (2, ["time"])])
def test_curves_are_drawn_against_what_was_the_same(
    made_outcome: Maker, minutes: int | None, figures: list[str]
) -> None:
    page = report_page(made_outcome(budget={"minutes": minutes}), COMMAND)
    assert re.findall('"curves-([a-z]+)-title"', page)[::2] == figures
