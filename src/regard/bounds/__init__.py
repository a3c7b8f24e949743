"""What the value of a setting may be: its type, its range, its choices. Checked here only."""

from regard.bounds.fields import SettingSpec, setting, specs_of
from regard.bounds.shown import shown
from regard.bounds.values import TYPE_WORDS, Bounded, checked, draw_seed, from_text, is_none

__all__ = [
    "TYPE_WORDS",
    "Bounded",
    "SettingSpec",
    "checked",
    "draw_seed",
    "from_text",
    "is_none",
    "setting",
    "shown",
    "specs_of",
]
