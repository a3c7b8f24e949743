"""Every example runs, in miniature, and leaves its table and its picture."""

from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
TABLES = {
    "homework_decoder": ["word ", "a b c ", "z y x w ", "r e g a r d "],
    "course_calculator": ["question ", "123+123 ", "321+321 ", "649+864 ", "-940-819 "],
}


def test_every_example_is_tried():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(TABLES)
    lengths = [len(path.read_text(encoding="utf-8").splitlines()) for path in EXAMPLES.glob("*.py")]
    assert max(lengths) <= 115  # so that an example is read at a glance


@pytest.mark.parametrize("name", TABLES)
def test_example(name, tmp_path, command):
    out = tmp_path / "out"
    done = command(EXAMPLES / f"{name}.py", "--tiny", "--out", out, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.strip().splitlines()
    table = next(i for i, line in enumerate(lines) if line.startswith(TABLES[name][0]))
    for row, start in enumerate(TABLES[name]):
        assert lines[table + row].startswith(start)
    assert lines[-1] == str(out / f"{name}.png")
    assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]  # nothing is written elsewhere
