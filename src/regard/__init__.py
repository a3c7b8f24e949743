"""Regard: a sequence-to-sequence toolkit, from attention up."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Config", "Run", "Sampling", "UserError", "__version__", "evaluate", "load", "train"]

if TYPE_CHECKING:
    from regard.config import Config as Config
    from regard.errors import UserError as UserError
    from regard.recipes import evaluate as evaluate
    from regard.recipes import train as train
    from regard.run import Run as Run
    from regard.translator import Sampling as Sampling
    from regard.translator import load as load

_HOME = {
    "Config": "regard.config",
    "Run": "regard.run",
    "Sampling": "regard.translator",
    "UserError": "regard.errors",
    "evaluate": "regard.recipes",
    "load": "regard.translator",
    "train": "regard.recipes",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: torch takes a second, and `regard --help` does not need it."""
    if name not in _HOME:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
