"""Ten lines of Python: a task learned in about twenty seconds, a right answer, and a cell that can
be run twice.
"""

import time

import pytest

CODE = """\
import regard

# Learns to write letters backwards in about twenty seconds; "pairs.tsv" would be your own file.
run = regard.train("reverse", preset="letters", out="runs/reverse", resume=True)
print(regard.evaluate(run).report.exact_match)

translator = regard.load(run)
result = translator("r e g a r d")
print(result.text)  # d r a g e r
print(result.attention.blocks["cross"].shape)  # layers, heads, target, source
"""


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
