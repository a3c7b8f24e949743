"""A figure that shows itself in a notebook. Imports matplotlib, so it is imported where it is used.

Matplotlib's own figure shows itself only after `%matplotlib inline`, or if pyplot made it.
"""

from matplotlib.figure import Figure

from regard.pictures import any_glyph, drawn


class InlineFigure(Figure):
    """A matplotlib figure; what a cell ends with is shown below it."""

    def _repr_png_(self) -> bytes:
        """For a notebook: the picture, in the resolution of the screen."""
        with any_glyph():
            return drawn(self, "png", dpi=100)
