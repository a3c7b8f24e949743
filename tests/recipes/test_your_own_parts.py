"""The code of docs/how-to/your-own-parts.md runs as it stands, only shorter."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "your-own-parts.md"
CODE = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
SHORTER = [
    ('"train": 10000', '"train": 60, "dev": 12, "test": 12'),
    ('"steps": 1200', '"steps": 6, "tensorboard": "off"'),
    ('"steps": 400', '"steps": 6, "tensorboard": "off"'),
    ('"evaluate_every": 50', '"evaluate_every": 3'),
]


def test_the_page_runs(here):
    text = "\n".join(CODE)
    for long, short in SHORTER:
        assert long in text
        text = text.replace(long, short)
    names = {"__name__": "homework"}
    exec(compile(text, str(PAGE), "exec"), names)
    assert names["run"].config.model.block == "custom:Parallel"
    assert names["run"].config.train.metric == "custom:short"
    assert names["translator"]("a b").attention.blocks["cross"].ndim == 4


@pytest.mark.slow
def test_the_homework_learns(here):
    names = {"__name__": "homework"}
    exec(compile("\n".join(CODE[:3]), str(PAGE), "exec"), names)
    assert names["translator"]("a b c d").text == "d c b a"
    assert names["regard"].evaluate(names["run"], parts=names["parts"]).report.exact_match > 0.9
