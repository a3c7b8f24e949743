"""Pictures of runs and of attention.

What all of them share is here: labels, safe text, a blank figure, saving. Matplotlib is slow to
import, so it is imported where it is used; pyplot never is, so nothing is left in the caller's
session.
"""

import re
import textwrap
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import UserError
from regard.files import write_output

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.axis import Axis as Axis
    from matplotlib.figure import Figure as Figure
else:
    Axes = Axis = Figure = Any

SUFFIXES = (".png", ".svg", ".pdf")
# Okabe and Ito's colours without yellow, which is too pale for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# One more than colours: 56 lines before two look the same.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
Place = str | PathLike[str] | None  # where to write a picture; None: nowhere
# Fonts for what DejaVu Sans does not have: on Linux, macOS and Windows.
FALLBACKS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "Noto Sans Arabic"),
    *("Noto Sans Hebrew", "Noto Sans Devanagari", "Noto Sans Thai", "Noto Emoji"),
    *("Hiragino Sans", "PingFang SC", "Hiragino Sans GB", "Apple SD Gothic Neo", "Geeza Pro"),
    *("Kohinoor Devanagari", "Thonburi"),
    *("Yu Gothic", "Microsoft YaHei", "Malgun Gothic", "Segoe UI", "Nirmala UI"),
    *("Leelawadee UI", "Segoe UI Emoji"),
)
ISOLATE, POP = "\u2068", "\u2069"  # what stands between them has a direction of its own
# What a combining mark that stands alone is written on; Arabic has a letter for this.
CIRCLE = "◌"
TATWEEL = "ـ"
MISSING = re.compile(r"Glyph (\d+) .* missing from")  # how Matplotlib says that it draws a box


class MissingGlyph(UserWarning):
    """A character of a picture is drawn as a box, since no installed font has it."""


def shown(token: str, limit: int = 24) -> str:
    """The token as a label: blanks and lone marks visible, no control characters, not too long."""
    visible = "".join(_visible(character) for character in token) or "∅"
    if unicodedata.category(visible[0]).startswith("M"):
        is_arabic = unicodedata.name(visible[0], "").startswith("ARABIC")
        visible = (TATWEEL if is_arabic else CIRCLE) + visible
    return visible if len(visible) <= limit else visible[: limit - 1] + "…"


def _visible(character: str) -> str:
    if character.isspace():
        return "␣"
    return character if character.isprintable() else "·"


def text_style() -> dict[str, Any]:
    """Arguments for every text that may hold a caller's words.

    In such a text `$` and `_` are letters, not mathematics.
    """
    from matplotlib.font_manager import fontManager

    installed = set(fontManager.get_font_names())
    fallbacks = [font for font in FALLBACKS if font in installed]
    return {"parse_math": False, "fontfamily": ["DejaVu Sans", *fallbacks]}


def blank(width: float, height: float, title: str) -> Figure:
    """An empty figure of that size in inches, which lays itself out.

    A long title makes it higher, not wider.
    """
    from regard.pictures.figure import InlineFigure

    wide_letters = sum(unicodedata.east_asian_width(letter) in "WF" for letter in title)
    wide_share = wide_letters / max(len(title), 1)
    letters = int(width * 10.5 / (1 + wide_share))  # that fit on a line
    clean = "".join(_title_letter(letter) for letter in title)
    lines = textwrap.wrap(clean, letters, max_lines=6, placeholder=" …", break_on_hyphens=False)
    lines = _isolated_lines(lines)
    figure = InlineFigure(figsize=(width, height + 0.18 * (len(lines) - 1)), layout="compressed")
    figure.suptitle("\n".join(lines), fontsize=11, **text_style())
    return figure


def _title_letter(letter: str) -> str:
    """A letter of a title: marks of direction stay where Matplotlib obeys them."""
    import matplotlib

    if letter in (ISOLATE, POP):
        obeyed = matplotlib.__version_info__ >= (3, 11)
        return letter if obeyed else ""
    return letter if letter.isprintable() else " "


def _isolated_lines(lines: Sequence[str]) -> list[str]:
    """The lines of a title, each of which closes what it isolates and opens it again on the next.

    Matplotlib gives every line a direction of its own.
    """
    isolated = []
    depth = 0
    for line in lines:
        opened = ISOLATE * depth + line
        depth = max(0, opened.count(ISOLATE) - opened.count(POP))
        isolated.append(opened + POP * depth)
    return isolated


@contextmanager
def any_glyph() -> Iterator[None]:
    """Let a character that no installed font has become a box, without a warning or an error."""
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
        texts = [figure.text(0, 0, label, fontsize=points, **text_style()) for label in labels]
        boxes = [text.get_window_extent(canvas.get_renderer()) for text in texts]
    return [(box.width / figure.dpi, box.height / figure.dpi) for box in boxes]


def save_figure(figure: Figure, out: Place) -> Figure:
    """Write the figure where `out` says, in the format of its suffix; None writes nothing."""
    if out is None:
        return figure
    path = Path(out)
    check_suffix(path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        picture = drawn(figure, path.suffix[1:], dpi=150)
    write_output(path, picture)
    _warn_of_boxes(caught, path)
    return figure


def check_suffix(path: Path) -> None:
    """Refuse a name that says no format that a picture can be written in."""
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(
            f"cannot write a picture to {path}: its name must end in {', '.join(SUFFIXES)}"
        )


def drawn(figure: Figure, kind: str, *, dpi: int) -> bytes:
    """The figure as the content of a png, svg or pdf file."""
    content = BytesIO()
    # "tight", so that no label is ever cut.
    figure.savefig(
        content, format=kind, dpi=dpi, facecolor="white", bbox_inches="tight", pad_inches=0.1
    )
    return content.getvalue()


def _warn_of_boxes(caught: Sequence[warnings.WarningMessage], path: Path) -> None:
    """Say once which characters of a picture are boxes; all other warnings are passed on."""
    missing = {}
    for warning in caught:
        match = MISSING.match(str(warning.message))
        if match:
            missing[chr(int(match[1]))] = True
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    if not missing:
        return

    few = " ".join(list(missing)[:8])
    more = " …" if len(missing) > 8 else ""
    warnings.warn(
        f"{path}: no installed font has {few}{more}, so they are drawn as boxes; install one that "
        f"does, such as Noto Sans CJK for Chinese, Japanese and Korean, or Noto Emoji",
        MissingGlyph,
        stacklevel=4,
    )
