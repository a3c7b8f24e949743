import re
from collections.abc import Callable
from dataclasses import replace

from regard.comparison.markdown import markdown_report
from regard.comparison.outcome import Outcome
from regard.comparison.scores import Scores

Maker = Callable[..., Outcome]
HOSTILE = "a | b\n# <img src=x> `code` **bold** [link](http://example.org) \u202e"


def test_the_report_begins_with_the_verdict(made_outcome: Maker) -> None:
    lines = markdown_report(made_outcome(examples=100), "regard compare made.toml").splitlines()
    assert lines[0] == "# Which size?"
    assert lines[4].startswith("**Take large")
    assert "```sh\nregard compare made.toml\n```" in "\n".join(lines)


def test_every_row_of_a_table_has_as_many_cells(made_outcome: Maker) -> None:
    names = {HOSTILE: 0.1, "b": 0.5, "c": 0.9}
    text = markdown_report(made_outcome(names, question=HOSTILE), "")
    blocks = re.findall(r"(?:^\|.*\|$\n?)+", text, re.M)
    assert len(blocks) >= 4
    for block in blocks:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1


def test_hostile_texts_are_text(made_outcome: Maker) -> None:
    def hostile(scores: Scores) -> Scores:
        answers = [HOSTILE, scores.system]
        return replace(scores, sources=[HOSTILE] * 2, references=[[HOSTILE]] * 2, answers=answers)

    outcome = made_outcome(change=hostile, question=HOSTILE, decisions=[HOSTILE])
    text = markdown_report(outcome, HOSTILE)
    assert "Where the systems disagree most" in text
    body = text[: text.index("## Repeat it")]
    assert "<img" not in body
    assert "http://" not in body
    assert "\u202e" not in text
    assert not re.search(r"(?<!\\)`code", body)
    assert [line for line in body.splitlines() if line.startswith("# ")] == body.splitlines()[:1]


def test_a_command_cannot_leave_its_block(made_outcome: Maker) -> None:
    text = markdown_report(made_outcome(), "regard compare '```\n# x'")
    assert text.endswith("````sh\nregard compare '```\\n# x'\n````\n")


def test_empty_parts_are_left_out(made_outcome: Maker) -> None:
    text = markdown_report(
        made_outcome(scored=lambda cell: (cell.system, cell.seed) == ("small", 1)), ""
    )
    for title in ("Which systems really differ", "disagree", "decided for", "Repeat it"):
        assert title not in text
    assert "## Results" in text
    assert "\n\n\n" not in text


def test_right_answers_have_a_sign(made_outcome: Maker) -> None:
    def answered(scores: Scores) -> Scores:
        answer = "right" if scores.system == "large" else "wrong"
        return replace(scores, sources=["in"], references=[["right"]], answers=[answer])

    text = markdown_report(made_outcome(change=answered), "")
    assert "- ✓ large: right" in text
    assert "- ✗ small: wrong" in text
