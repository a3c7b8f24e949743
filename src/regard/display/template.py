"""A page from its template, under a policy by which a browser loads and runs nothing else."""

import base64
import hashlib
import re
from collections.abc import Mapping
from importlib.resources import files

# The browser runs and applies these two texts and no others.
POLICY = (
    "default-src 'none'; script-src {script}; style-src 'sha256-{style}'; "
    "base-uri 'none'; form-action 'none'"
)


def page_from_template(package: str, name: str, parts: Mapping[str, str]) -> str:
    """The HTML of `name`.html, a file of the package, with its `{{PARTS}}` filled in.

    STYLE and SCRIPT come from `name`.css and `name`.js beside it; a page without a script needs no
    such file. The parts must be safe HTML already.
    """
    folder = files(package)
    template = folder.joinpath(f"{name}.html").read_text("utf-8")
    style = folder.joinpath(f"{name}.css").read_text("utf-8")
    program = folder.joinpath(f"{name}.js")
    script = program.read_text("utf-8") if program.is_file() else ""
    allowed = f"'sha256-{_sha256(script)}'" if script else "'none'"
    every = {
        **parts,
        "STYLE": style,
        "SCRIPT": script,
        "POLICY": POLICY.format(script=allowed, style=_sha256(style)),
    }
    # In one pass, so that a title that says {{DATA}} stays a title.
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda match: every[match[1]], template)


def _sha256(text: str) -> str:
    """The digest of a text in the form that a content security policy names it."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
