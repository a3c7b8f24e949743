"""The README's ten lines of Python: a right answer after twenty seconds, also the second time."""

import re
import time
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
(CODE,) = re.findall(
    r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), flags=re.M | re.S
)


def run_cell(code, capsys):
    exec(compile(code, "cell", "exec"), {})
    return capsys.readouterr().out.splitlines()


def test_the_cell_runs_twice(here, capsys):
    assert len(CODE.splitlines()) == 10
    sections = 'train={"steps": 3}, data={"options": {"train": 200, "dev": 20, "test": 20}}'
    shorter = CODE.replace("resume=True", f"resume=True, {sections}")
    first = run_cell(shorter, capsys)
    assert first[-1].startswith("(1, 4, ")
    assert run_cell(shorter, capsys) == first


@pytest.mark.slow
def test_the_cell_learns(here, capsys):
    first = run_cell(CODE, capsys)
    assert float(first[0]) > 0.95
    assert first[1:] == ["d r a g e r", "(1, 4, 7, 7)"]

    began = time.process_time()
    assert run_cell(CODE, capsys) == first
    assert time.process_time() - began < 10  # nothing is trained again
