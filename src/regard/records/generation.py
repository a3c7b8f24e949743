"""What language models write: a text that goes on from a prompt, and masks that are filled."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from regard.display import html
from regard.errors import UserError, counted
from regard.records.attention import AttentionRecord
from regard.records.result import Alternative, Option

Look = Callable[[str], AttentionRecord]
"""Reads a text once more, and tells where the model looked."""


@dataclass(frozen=True)
class Generation:
    """A text that a language model wrote, from a prompt on."""

    prompt: str
    text: str
    """The whole text, with the prompt."""
    tokens: list[str]
    """What was written, without the prompt."""
    logprobs: list[float]
    """Their log-probabilities; one more if the model ended the text."""
    score: float
    """Log-probability of what was written, divided by its length^search.length_penalty."""
    finished: bool
    """Whether the model ended the text, rather than the limit."""
    alternatives: list[Alternative] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    look: Look | None = field(default=None, repr=False, compare=False)
    """Reads the text again, for its attention. None after pickle or JSON."""

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        """For a notebook: the text, the prompt in bold, and what to know about it."""
        written = self.text.removeprefix(self.prompt)
        begun = html(self.text[: len(self.text) - len(written)])
        lines = [f"<p><b><bdi>{begun}</bdi></b><bdi>{html(written)}</bdi></p>"]
        lines += [f"<p>warning: {html(warning)}</p>" for warning in self.warnings]
        return "".join(lines)

    def __getstate__(self) -> dict[str, Any]:
        """The values without the model."""
        return {**self.__dict__, "look": None}

    @cached_property
    def attention(self) -> AttentionRecord:
        """The attention weights of every layer and head for this text."""
        if self.look is None:
            raise UserError(
                "this text was saved without its model, so it has no attention: ask the model with "
                "model.look(text)"
            )
        return self.look(self.text)

    def as_dict(self) -> dict[str, Any]:
        """The values as a dict that can be written as JSON."""
        values = asdict(replace(self, look=None))
        del values["look"]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Restore it from the values of `as_dict`, without a model."""
        alternatives = [Alternative(**fields) for fields in values["alternatives"]]
        return cls(**{**values, "alternatives": alternatives})


@dataclass(frozen=True)
class Filling:
    """A text whose masks a language model has filled in."""

    source: str
    """With `<mask>` where a token was to be found."""
    text: str
    """With the most likely token in the place of each mask."""
    options: list[list[Option]]
    """For each mask the most likely tokens, and the text with this token in its place."""
    warnings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        """For a notebook: the text, and the options of each mask."""
        rows = [
            f"<tr><td>{number}</td><td><bdi>{html(option.token)}</bdi></td>"
            f"<td>{option.probability:.1%}</td></tr>"
            for number, options in enumerate(self.options, 1)
            for option in options
        ]
        heading = "<tr><th>mask</th><th>token</th><th>probability</th></tr>"
        warnings = "".join(f"<p>warning: {html(warning)}</p>" for warning in self.warnings)
        text = f"<p><b><bdi>{html(self.text)}</bdi></b></p>"
        return f"{text}<table>{heading}{''.join(rows)}</table>{warnings}"

    def __repr__(self) -> str:
        return f"Filling({self.source!r} → {self.text!r}, {counted(len(self.options), 'mask')})"

    def as_dict(self) -> dict[str, Any]:
        """The values as a dict that can be written as JSON."""
        return asdict(self)
