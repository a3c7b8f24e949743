"""The code of a user's own parts: runs that were trained with other code are other runs."""

import hashlib
import inspect
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from regard.models.parts import PREFIX, SETTINGS, Parts, listed

Code = Mapping[str, str]
"""For settings such as model.score=custom:Mine, a hash of the code that stands behind it."""
NO_CODE: Code = MappingProxyType({})


def code_of(parts: Parts) -> dict[str, str]:
    """A hash of the code of each part, by the setting that names it."""
    return {
        f"{'.'.join(SETTINGS[part.kind])}={PREFIX}{part.name}": _hash_of(part.value)
        for part in listed(parts)
    }


def code_in(settings: Mapping[str, Mapping[str, Any]], code: Code) -> dict[str, str]:
    """Of this code, what settings name."""
    named = {
        f"{section}.{name}={value}"
        for section, of in settings.items()
        for name, value in of.items()
    }
    return {name: known for name, known in code.items() if name in named}


def _hash_of(value: Any) -> str:
    """A hash of the file of a class or function; of one from a notebook, of its own lines."""
    module = sys.modules.get(getattr(value, "__module__", ""))
    in_file = module is not None and module.__name__ != "__main__"
    try:
        text = inspect.getsource(module if in_file and module is not None else value)
    except (OSError, TypeError):  # typed into a shell, or an object without code
        text = repr(getattr(value, "__qualname__", type(value)))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
