"""The `fast/` folders can be deleted: the library still works, only slower."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import regard
from regard.errors import only_fast_is_missing

ROOT = Path(regard.__file__).parent
TESTS = Path(__file__).parent

SCRIPT = """
import regard
from regard.errors import only_fast_is_missing
from regard.recipes.reporter import Reporter

model = {"width": 16, "ffn": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
train = {"steps": 4, "epochs": 0, "threads": 1, "tensorboard": "off", "ema": 0.9, "device": "cpu"}
data = {"limit": 40, "dev": 8, "test": 8, "options": {"length": 4, "symbols": 5}}
for number, changes in enumerate(({}, {"optimizer": "muon"}, {"optimizer": "sgd"})):
    settings = {"model": model, "train": train | changes, "data": data}
    run = regard.train("copy", out=f"run{number}", reporter=Reporter(quiet=True), **settings)
    translator = regard.load(run)
    result = translator("a b c")
    assert result.attention.blocks["cross"].shape[0] == 1
    assert regard.evaluate(run).report.examples

import sys
assert not [name for name in sys.modules if name.startswith("regard.") and ".fast" in name]
print("works")
"""


@pytest.fixture
def without_fast(tmp_path):
    """The environment of a process that finds a copy of the library without its fast folders."""
    package = tmp_path / "src" / "regard"
    shutil.copytree(ROOT, package, ignore=shutil.ignore_patterns("__pycache__"))
    folders = list(package.rglob("fast"))
    assert sorted(folder.parent.name for folder in folders) == [
        "models",
        "nn",
        "search",
        "training",
    ]
    for folder in folders:
        shutil.rmtree(folder)
    return {**os.environ, "PYTHONPATH": str(tmp_path / "src"), "PYTHONSAFEPATH": "1"}


def test_trains_saves_loads_and_translates(without_fast, tmp_path):
    command = [sys.executable, "-c", SCRIPT]
    options = {"cwd": tmp_path, "env": without_fast, "capture_output": True, "text": True}
    done = subprocess.run(command, check=False, **options)
    assert done.stdout == "works\n", done.stderr


def test_a_path_that_needs_a_fast_folder_is_refused(without_fast, tmp_path):
    words = "train copy --out run train.steps=2 train.epochs=0 train.path=packed data.limit=40"
    command = [sys.executable, "-m", "regard", *words.split()]
    options = {"cwd": tmp_path, "env": without_fast, "capture_output": True, "text": True}
    done = subprocess.run(command, check=False, **options)
    assert done.returncode == 2
    assert "train.path=packed: regard/training/fast is missing; use train.path=plain" in done.stderr


def test_another_missing_module_is_told():
    error = ModuleNotFoundError("No module named 'numpy'", name="numpy")
    with pytest.raises(ModuleNotFoundError, match="numpy"):
        only_fast_is_missing(error)


@pytest.mark.slow
def test_the_laws_hold(without_fast):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(TESTS / "laws")]
    done = subprocess.run(command, check=False, env=without_fast, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
