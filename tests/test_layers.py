"""The house rules: imports go down only, some rooms have no torch, nothing unpickles."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import regard

ROOT = Path(regard.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# Higher floors first. Rooms of one floor do not know each other.
FLOORS = [
    {"__main__"},
    {"cli"},
    {"serving", "comparison", "exporting"},
    {"recipes"},
    {"inference"},
    {"inspection"},
    {"training", "search", "scoring", "pictures"},
    {"runs"},
    {"models"},
    {"nn", "data"},
    {"text", "records", "presets"},
    {"config"},
    {"bounds", "files"},
    {"errors", "display"},
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
WITHOUT_TORCH = (
    "cli",
    "text",
    "records",
    "scoring",
    "pictures",
    "config",
    "bounds",
    "files",
    "errors",
    "presets",
    "display",
)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def rooms_known(path: Path) -> set[str]:
    """The rooms of this package that a file imports, at the top or inside a function."""
    package = ("regard", *path.relative_to(ROOT).parts[:-1])
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            base += node.module.split(".") if node.module else []
            names = [[*base, alias.name] for alias in node.names]
        else:
            continue
        found |= {name[1] for name in names if name[0] == "regard" and len(name) > 1}
    return {
        room
        for room in found
        if room in FLOOR or (ROOT / room).exists() or (ROOT / f"{room}.py").exists()
    }


@pytest.mark.parametrize("path", [p for p in FILES if p != ROOT / "__init__.py"], ids=name_of)
def test_imports_go_down(path):
    room = room_of(path)
    assert room in FLOOR, f"{room} has no floor: give it one in FLOORS"
    for known in rooms_known(path) - {room}:
        assert known in FLOOR, f"{known} has no floor: give it one in FLOORS"
        assert FLOOR[known] > FLOOR[room], (
            f"{name_of(path)} imports {known}, which is not below {room}"
        )


def test_the_walk_sees_imports():
    assert {"nn", "config", "errors"} <= rooms_known(ROOT / "models" / "build.py")
    assert "text" in rooms_known(ROOT / "data" / "batches.py") | rooms_known(
        ROOT / "data" / "corpus.py"
    )


def test_rooms_without_torch():
    """`regard --help` answers at once, and a picture needs no GPU library."""
    modules = [
        ".".join(("regard", *p.relative_to(ROOT).with_suffix("").parts))
        for p in FILES
        if room_of(p) in WITHOUT_TORCH
    ]
    lines = ["import importlib, sys", f"for name in {['regard', *modules]!r}:"]
    lines += [
        "    importlib.import_module(name.removesuffix('.__init__'))",
        "    assert 'torch' not in sys.modules, name",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def offences(tree: ast.Module):
    """Ways to run what a file says."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            yield from (
                name
                for name in names
                if name.split(".")[0]
                in ("pickle", "cPickle", "dill", "joblib", "marshal", "shelve")
            )
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in (
                "eval",
                "exec",
                "compile",
                "__import__",
            ):
                yield node.func.id
            spelled = ast.unparse(node.func)
            if spelled in ("torch.load", "os.system", "os.popen", "np.load", "numpy.load"):
                yield spelled
            if any(
                k.arg in ("shell", "allow_pickle")
                and not (isinstance(k.value, ast.Constant) and k.value.value is False)
                for k in node.keywords
            ):
                yield f"{spelled} with shell or allow_pickle"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_runs_what_a_file_says(path):
    assert list(offences(tree_of(path))) == []


def test_the_walk_sees_offences():
    text = (
        "import pickle\nfrom dill import load\ntorch.load(f)\neval(x)\nrun(x, "
        "shell=True)\nmodel.eval()"
    )
    assert len(list(offences(ast.parse(text)))) == 5


def test_nothing_stands_in_the_hallway():
    assert sorted(path.stem for path in ROOT.glob("*.py")) == [
        "__init__",
        "__main__",
        "config",
        "errors",
    ]


def test_no_room_for_oddments():
    assert [
        name_of(p) for p in FILES if p.stem in ("utils", "util", "helpers", "common", "misc")
    ] == []
