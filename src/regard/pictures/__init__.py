"""Pictures of runs and of attention. What all of them share is here: labels, safe text, a blank
figure, saving.

Matplotlib is slow to import, so it is imported where it is used; pyplot never is, so nothing is
left in the caller's session.
"""

import textwrap
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.axis import Axis as Axis
    from matplotlib.figure import Figure as Figure
else:
    Axes = Axis = Figure = Any

SUFFIXES = (".png", ".svg", ".pdf")
# Okabe and Ito's colours without yellow, which is too pale for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = (
    "o",
    "s",
    "^",
    "D",
    "v",
    "P",
    "X",
    "<",
)  # one more than colours: 56 lines before two look the same
Place = str | PathLike[str] | None  # where to write a picture; None: nowhere
FALLBACKS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans Arabic",
    "Noto Sans Devanagari",
    "Noto Emoji",
)  # after DejaVu


def shown(token: str, limit: int = 24) -> str:
    """The token as a label: blanks visible, control characters gone, long ones cut."""
    visible = "".join("␣" if c.isspace() else c if c.isprintable() else "·" for c in token) or "∅"
    return visible if len(visible) <= limit else visible[: limit - 1] + "…"


def text_style() -> dict[str, Any]:
    """Arguments for every text that may hold a caller's words: `$` and `_` are letters there, not
    mathematics.
    """
    from matplotlib.font_manager import fontManager

    installed = set(fontManager.get_font_names())
    return {
        "parse_math": False,
        "fontfamily": ["DejaVu Sans", *(f for f in FALLBACKS if f in installed)],
    }


def blank(width: float, height: float, title: str) -> Figure:
    """An empty figure of that size in inches, which lays itself out; a long title makes it higher,
    not wider.
    """
    from matplotlib.figure import Figure

    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in title) / max(len(title), 1)
    letters, clean = (
        int(width * 10.5 / (1 + wide)),
        "".join(c if c.isprintable() else " " for c in title),
    )
    lines = textwrap.wrap(clean, letters, max_lines=6, placeholder=" …", break_on_hyphens=False)
    figure = Figure(figsize=(width, height + 0.18 * (len(lines) - 1)), layout="compressed")
    figure.suptitle("\n".join(lines), fontsize=11, **text_style())
    return figure


@contextmanager
def any_glyph() -> Iterator[None]:
    """A token may hold a character that no installed font has; it becomes a box, which is no reason
    to warn or fail.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="Glyph .* missing from|Matplotlib currently does not support"
        )
        yield


def sizes(labels: Sequence[str], points: float) -> list[tuple[float, float]]:
    """Width and height of each label in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure()
    canvas: Any = FigureCanvasAgg(figure)
    with any_glyph():
        boxes = [
            figure.text(0, 0, x, fontsize=points, **text_style()).get_window_extent(
                canvas.get_renderer()
            )
            for x in labels
        ]
    return [(box.width / figure.dpi, box.height / figure.dpi) for box in boxes]


def save(figure: Figure, out: Place) -> Figure:
    """Write the figure where `out` says, in the format of its suffix; None writes nothing."""
    if out is None:
        return figure
    path = Path(out)
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(
            f"cannot write a picture to {path}: its name must end in {', '.join(SUFFIXES)}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with any_glyph():
        figure.savefig(
            path, dpi=150, facecolor="white", bbox_inches="tight", pad_inches=0.1
        )  # no label is ever cut
    return figure
