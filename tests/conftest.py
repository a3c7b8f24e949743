"""What tests share: the option --law-seed, tiny settings, one trained run, and the command
itself.
"""

import json
import multiprocessing
import os
import runpy
import signal
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest

hypothesis.settings.register_profile(
    "regard", derandomize=True
)  # the same examples every time; others by --law-seed
hypothesis.settings.load_profile("regard")

# A shell starts what runs in the background with Ctrl-C ignored, and every child would inherit
# that.
signal.signal(signal.SIGINT, signal.default_int_handler)

ASKED = str(Path(__file__).with_name("asked.py"))
Settings = dict[str, dict[str, Any]]
Command = Callable[..., subprocess.CompletedProcess[str]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--law-seed",
        type=int,
        default=0,
        metavar="N",
        help="draw other weights, batches and examples: laws must hold for every N (default: 0)",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test's own seed, where it has one, wins over derandomize=True."""
    law_seed = config.getoption("--law-seed")
    if law_seed == 0:
        return
    for item in items:
        if isinstance(item, pytest.Function) and hypothesis.is_hypothesis_test(item.obj):
            hypothesis.seed(zlib.crc32(f"{law_seed} {item.originalname}".encode()))(item.obj)


@pytest.fixture(scope="session")
def law_seed(request: pytest.FixtureRequest) -> int:
    """What was said by --law-seed."""
    return int(request.config.getoption("--law-seed"))


@pytest.fixture
def quick_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans time a single step of each model: where the plan is not what is tested."""
    monkeypatch.setattr("regard.recipes.pace.STEPS", 1)


@pytest.fixture(scope="session")
def tiny() -> Settings:
    """Settings that train in a second."""
    return {
        "model": {
            "width": 16,
            "ffn": 16,
            "heads": 2,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "dropout": 0.0,
        },
        "train": {
            "epochs": 0,
            "steps": 6,
            "warmup": 2,
            "log_every": 2,
            "evaluate_every": 3,
            "save_every": 3,
            "tensorboard": "off",
        },
        "search": {"width": 2, "limit_ratio": 1.0, "limit_extra": 2},
    }


@pytest.fixture(scope="session")
def run(tiny: Settings, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A trained run on sums. It cannot calculate, and nobody may change it."""
    import regard
    from regard.recipes.reporter import Reporter

    data = {"options": {"train": 60, "dev": 12, "test": 12}, "batch_sentences": 20}
    text, out = {"tokenizer": "characters"}, tmp_path_factory.mktemp("run") / "sums"
    return regard.train(
        regard.Config(),
        out=out,
        reporter=Reporter(quiet=True),
        **tiny | {"data": data | {"path": "arithmetic"}, "text": text},
    )


@pytest.fixture(scope="session")
def inflections(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TSV of a word, its form and its tags, such as: tab, tablar, N;NOM;PL."""
    stems = [first + vowel + last for first in "tkbs" for vowel in "aeo" for last in "bnl"]
    endings = {"NOM;SG": "", "NOM;PL": "lar", "DAT;SG": "a", "DAT;PL": "lara"}
    lines = [
        f"{stem}\t{stem}{ending}\tN;{tags}" for stem in stems for tags, ending in endings.items()
    ]
    path = tmp_path_factory.mktemp("inflections") / "forms.tsv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tagged_run(tiny: Settings, inflections: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run with data.features, whose two sides share characters; nobody may change it."""
    import regard
    from regard.recipes.reporter import Reporter

    return regard.train(
        inflections,
        out=tmp_path_factory.mktemp("tagged") / "forms",
        reporter=Reporter(quiet=True),
        **tiny | {"data": {"features": "3"}, "text": {"tokenizer": "characters"}},
    )


@pytest.fixture(scope="session")
def processes() -> Any:
    """A server that has imported everything forks each child at once."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(
        [
            "regard.recipes.training",
            "regard.recipes.evaluation",
            "regard.comparison.comparing",
            "regard.cli",
            "torch._dynamo",
            "matplotlib.pyplot",
            "typer._adapters",
            "rich.progress",
            "pytest",
        ]
    )
    return made


@pytest.fixture(scope="session")
def command(processes: Any, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """`regard …` in a process of its own, which need not import torch again.

    A first word that ends with .py is a script, in which a warning is an error.
    """

    def call(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        folder = tmp_path_factory.mktemp("command")
        environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}
        given = {
            "commands": [[str(word) for word in words]],
            "folder": str(folder),
            "place": str(cwd or Path.cwd()),
            "environment": environment,
            "bare": False,
            "draws": True,
        }
        process = processes.Process(target=runpy.run_path, args=(ASKED, given))
        process.start()
        process.join(180)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(given["commands"][0], 180)

        [code] = json.loads((folder / "told.json").read_text())["codes"]
        out = (folder / "0.out").read_text(encoding="utf-8")
        err = (folder / "0.err").read_text(encoding="utf-8")
        return subprocess.CompletedProcess(given["commands"][0], code, out, err)

    return call


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, and we stand in it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
