"""A figure that shows itself in a notebook. Imports matplotlib, so it is imported where it is used.

Matplotlib's own figure shows itself only after `%matplotlib inline`, or if pyplot made it.
"""

from io import BytesIO

from matplotlib.figure import Figure

from regard.pictures import any_glyph


class InlineFigure(Figure):
    """A matplotlib figure; what a cell ends with is shown below it."""

    def _repr_png_(self) -> bytes:
        """For a notebook: the picture, in the resolution of the screen."""
        content = BytesIO()
        with any_glyph():
            self.savefig(
                content,
                format="png",
                dpi=100,
                facecolor="white",
                bbox_inches="tight",
                pad_inches=0.1,
            )
        return content.getvalue()
