"""How answers are searched or drawn, as the command line says it."""

from typing import Any

import regard
from regard.config import build, parse_overrides
from regard.errors import UserError


def sampling_asked_for(
    sample: bool, *drawn: Any, advice: str = "--sample or --risk: add one of them"
) -> Any:
    """How to draw; None: not at all, and then nobody may say how.

    advice: what the options of drawing need.
    """
    sampling = regard.Sampling(*drawn)
    if sample or sampling.risk:
        return sampling
    if sampling != regard.Sampling():
        raise UserError(f"--temperature, --top-k, --top-p and --seed need {advice}")
    return None


def search_settings(words: list[str] | None) -> dict[str, Any]:
    """`search.no_repeat=3` or `no_repeat=3` -> {"no_repeat": 3}; any other setting is refused."""
    settings: dict[str, Any] = {}
    for word in words or []:
        section, dot, _ = word.partition("=")[0].partition(".")
        if dot and section != "search":
            raise UserError(
                f"--set {word}: only search settings can be set here, such as search.no_repeat=3"
            )
        full = word if dot else f"search.{word}"
        settings |= parse_overrides([full])["search"]

    # A misspelt name or a wrong value is told before anything is loaded.
    build({"search": settings})
    return settings
