"""`--parts FILE.py:Name`: classes and functions of the user's own, from their files."""

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from regard.errors import UserError, nearest

PartsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--parts",
        metavar="FILE.py:NAME",
        help="Your own score, position, block, model, cross_mask=, metric= …; may be repeated.",
    ),
]


def read_parts(words: list[str] | None) -> list[Any] | None:
    """The parts that `--parts` names: FILE.py:Name, module:Name, or metric=FILE.py:name."""
    if not words:
        return None
    from regard.models.parts import SETTINGS, Part

    parts = []
    for word in words:
        kind, equals, rest = word.partition("=")
        if not equals or kind not in SETTINGS:
            kind = ""
            rest = word
        file, _, name = rest.rpartition(":")
        if not file or not name:
            raise UserError(f"--parts {word}: write FILE.py:Name, such as score.py:MyScore")
        parts.append(Part.of(_named(_module(file), name, file), kind))
    return parts


def _named(module: ModuleType, name: str, file: str) -> Any:
    """What the module calls by this name."""
    if not hasattr(module, name):
        known = [other for other in vars(module) if not other.startswith("_")]
        raise UserError(f"--parts: {file} has no {name}{nearest(name, known)}")
    return getattr(module, name)


def _module(file: str) -> ModuleType:
    """The module of a file, or of a name that can be imported; each is run once."""
    path = Path(file)
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        raise UserError(f"--parts: {file}: no such file")

    name = f"regard_parts_{path.stem}" if is_file else file
    if name in sys.modules and getattr(sys.modules[name], "__file__", file) == str(path.resolve()):
        return sys.modules[name]
    try:
        if not is_file:
            sys.path.insert(0, "")
            return importlib.import_module(name)
        return _run_file(name, path.resolve())
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"--parts: {file}{_line_of(error, path)}: {_said(error)}") from error


def _run_file(name: str, path: Path) -> ModuleType:
    """Import a file under this name; what lies beside it can be imported there too."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(path.parent))
    return module


def _line_of(error: Exception, path: Path) -> str:
    """Where in the user's file something went wrong."""
    if isinstance(error, SyntaxError) and error.lineno:
        return f" line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename) == path.resolve()]
    return f" line {lines[-1]}" if lines else ""


def _said(error: Exception) -> str:
    """The error in one line."""
    if isinstance(error, SyntaxError):
        return error.msg
    return f"{type(error).__name__}: {error}".splitlines()[0]
