"""Pictures of runs and of attention. What all of them share is here: a blank figure, safe labels, saving.

Matplotlib is imported where it is used, so that a command that draws nothing starts fast, and pyplot is never used, so
that nothing is left behind in the caller's session.
"""

import warnings
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from regard.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
# Okabe and Ito's colours without yellow, which is too pale for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")  # one more than colours: 56 runs before two look the same
# For what DejaVu lacks, where the machine has it.
FALLBACKS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans Arabic", "Noto Sans Devanagari", "Noto Emoji")


def blank(width: float, height: float, layout: Literal["constrained", "compressed"] = "constrained") -> "Figure":
    """An empty figure of that size in inches, which lays itself out; "compressed" is for panels of fixed shape."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout=layout)


def save(figure: "Figure", out: str | PathLike[str] | None) -> "Figure":
    """Write the figure where `out` says, in the format of its suffix; None writes nothing."""
    if out is None:
        return figure
    path = Path(out)
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"cannot write a picture to {path}: its name must end in {', '.join(SUFFIXES)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        # A token may hold a character that no installed font has; it becomes a box, which is no reason to fail.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        figure.savefig(path, dpi=150, facecolor="white", bbox_inches="tight", pad_inches=0.1)  # no label is ever cut
    return figure


def shown(token: str, limit: int = 24) -> str:
    """The token as a label: blanks visible, control characters gone, long ones cut."""
    if not token.strip():
        return "␣" * min(len(token), limit) if token else "∅"
    visible = "".join("␣" if c.isspace() else c if c.isprintable() else "·" for c in token)
    return visible if len(visible) <= limit else visible[: limit - 1] + "…"


def text_style() -> dict[str, Any]:
    """Arguments for every text that may hold a caller's words: `$` and `_` are letters there, not mathematics."""
    from matplotlib.font_manager import fontManager

    installed = set(fontManager.get_font_names())
    return {"parse_math": False, "fontfamily": ["DejaVu Sans", *(f for f in FALLBACKS if f in installed)]}
