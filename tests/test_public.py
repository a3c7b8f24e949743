"""The public surface: what `import regard` offers, what it costs, and what a type checker makes of
it.
"""

import os
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import regard

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_public_name_is_listed_and_there():
    assert {*regard._NAMES, *regard._MODULES, "__version__"} == set(regard.__all__)
    assert set(regard.__all__) <= set(dir(regard))
    for name in regard.__all__:
        assert getattr(regard, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = regard.nothing


def test_looking_costs_no_torch_and_modules_come_when_asked_for():
    code = """
import sys
import regard
print(*dir(regard))
print("torch" in sys.modules)
print(regard.nn.Attention.__name__, regard.scoring.bleu.__name__, regard.models.Seq2Seq.__name__)
print(regard.Translator.__name__, regard.Result.__name__, regard.Evaluation.__name__)
"""
    names, torch, *found = python(code).splitlines()
    assert {"train", "load", "evaluate", "nn", "models", "scoring", "Translator", "Result"} <= set(
        names.split()
    )
    assert torch == "False"
    assert found == ["Attention bleu Seq2Seq", "Translator Result Evaluation"]


def test_one_text_has_one_result_and_several_a_list():
    one, several = typing.get_overloads(regard.Translator.__call__)
    assert typing.get_type_hints(one)["return"] is regard.Result
    assert typing.get_type_hints(several)["return"] == list[regard.Result]


def test_the_readme_type_checks(tmp_path):
    """By mypy as `make lint` runs it, whose cache it shares."""
    pytest.importorskip("mypy")
    (code,) = re.findall(r"^```python\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    code += 'for one in translator(["1+1", "2+2"]):\n    print(one.text)\n'
    (tmp_path / "readme.py").write_text(code, encoding="utf-8")
    words = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        ROOT / "pyproject.toml",
        tmp_path / "readme.py",
    ]
    environment = {**os.environ, "MYPYPATH": str(Path(regard.__file__).parents[1])}
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
