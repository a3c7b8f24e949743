"""Regard: a sequence-to-sequence toolkit, from attention up."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from regard import comparison as comparison
    from regard import config as config
    from regard import data as data
    from regard import inspection as inspection
    from regard import models as models
    from regard import nn as nn
    from regard import pictures as pictures
    from regard import scoring as scoring
    from regard import search as search
    from regard import text as text
    from regard import training as training
    from regard.comparison.comparing import compare as compare
    from regard.config import Config as Config
    from regard.errors import UserError as UserError
    from regard.inference.denoising import DenoisingModel as DenoisingModel
    from regard.inference.language import LanguageModel as LanguageModel
    from regard.inference.loading import load as load
    from regard.inference.masked import MaskedLanguageModel as MaskedLanguageModel
    from regard.inference.translator import Translator as Translator
    from regard.recipes.evaluation import Evaluation as Evaluation
    from regard.recipes.evaluation import evaluate as evaluate
    from regard.recipes.text_evaluation import evaluate_texts as evaluate_texts
    from regard.recipes.training import train as train
    from regard.records.result import Result as Result
    from regard.runs.run import Run as Run
    from regard.search.sample import Sampling as Sampling

_NAMES = {
    "Config": "regard.config",
    "DenoisingModel": "regard.inference.denoising",
    "Evaluation": "regard.recipes.evaluation",
    "LanguageModel": "regard.inference.language",
    "MaskedLanguageModel": "regard.inference.masked",
    "Result": "regard.records.result",
    "Run": "regard.runs.run",
    "Sampling": "regard.search.sample",
    "Translator": "regard.inference.translator",
    "UserError": "regard.errors",
    "compare": "regard.comparison.comparing",
    "evaluate": "regard.recipes.evaluation",
    "evaluate_texts": "regard.recipes.text_evaluation",
    "load": "regard.inference.loading",
    "train": "regard.recipes.training",
}
_MODULES = (
    "comparison",
    "config",
    "data",
    "inspection",
    "models",
    "nn",
    "pictures",
    "scoring",
    "search",
    "text",
    "training",
)

__all__ = [  # the keys of _NAMES and _MODULES, written out for type checkers
    "Config",
    "DenoisingModel",
    "Evaluation",
    "LanguageModel",
    "MaskedLanguageModel",
    "Result",
    "Run",
    "Sampling",
    "Translator",
    "UserError",
    "__version__",
    "compare",
    "comparison",
    "config",
    "data",
    "evaluate",
    "evaluate_texts",
    "inspection",
    "load",
    "models",
    "nn",
    "pictures",
    "scoring",
    "search",
    "text",
    "train",
    "training",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: torch takes a second, and `regard --help` does
    not need it.
    """
    if name in _MODULES:
        return import_module(f"regard.{name}")
    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'regard' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, also those that are not imported yet."""
    special = [name for name in globals() if name.startswith("__")]
    return sorted({*__all__, *special})
