"""Measured configurations, as TOML. The comment at the head of each says what was measured, where
and when.
"""

import tomllib
from importlib.resources import files

from regard.config import Settings
from regard.errors import UserError, nearest


def presets() -> dict[str, str]:
    """Name -> the comment at the head of the file."""
    found = {}
    for path in sorted(files(__name__).iterdir(), key=lambda p: p.name.removesuffix(".toml")):
        if path.name.endswith(".toml"):
            head = [
                line[1:].strip()
                for line in path.read_text(encoding="utf-8").splitlines()
                if line.startswith("#")
            ]
            found[path.name.removesuffix(".toml")] = " ".join(head)
    return found


def preset(name: str) -> Settings:
    """The settings of a preset."""
    if name not in presets():
        raise UserError(f"no preset {name}{nearest(name, presets())}")
    return tomllib.loads(files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8"))
