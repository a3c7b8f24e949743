"""One HTML page as a value: a notebook shows it, and it can be written to a file."""

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from regard.display import html_attribute
from regard.errors import UserError
from regard.files import write_output

HEIGHT = 860  # of the frame in a notebook, in pixels
LARGEST = 8_000_000
"""Characters of a page, up to which a notebook holds it; it saves them with its cells."""


@dataclass(frozen=True)
class Page:
    """An HTML page that needs no other file. In a notebook it opens below the cell."""

    html: str

    def __repr__(self) -> str:
        return f"Page of {len(self.html):,} characters: .write('page.html') saves it"

    def _repr_html_(self) -> str:
        """The page in a frame, where its script runs apart from the notebook."""
        if len(self.html) > LARGEST:
            return f"<p>{html_attribute(repr(self))}</p>"
        return (
            f'<iframe srcdoc="{html_attribute(self.html)}" sandbox="allow-scripts allow-downloads" '
            f'title="attention" style="width: 100%; height: {HEIGHT}px; border: 0"></iframe>'
        )

    def write(self, path: str | PathLike[str]) -> Path:
        """Write the page to a file, and say where it is."""
        place = page_path(path)
        write_output(place, self.html.encode())
        return place


def page_path(path: str | PathLike[str]) -> Path:
    """The path of a page, if its name is one that a browser opens."""
    place = Path(path)
    if place.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"cannot write a page to {place}: its name must end in .html")
    return place
