"""A run -> what it is for: a translator, or a language model."""

from pathlib import Path
from typing import Any, overload

import torch

from regard.errors import UserError
from regard.inference.decoding import check_options, first_place, put, search_settings
from regard.inference.language import LanguageModel
from regard.inference.masked import MaskedLanguageModel
from regard.inference.translator import Translator, load_translator
from regard.models import CausalModel
from regard.models.parts import Parts
from regard.runs.run import Run

VERBS = {
    "translate": "regard translate",
    "causal": "regard generate",
    "masked": "regard fill, or regard embed",
    "denoise": "regard embed, or fine-tune it: regard train pairs.tsv --from RUN",
}
"""The command for a run of each objective."""
Loaded = Translator | LanguageModel | MaskedLanguageModel


@overload
def load(
    run: str | Path | Run,
    *others: str | Path | Run,
    kind: type[Translator] = ...,
    checkpoint: str = ...,
    beam: int | None = ...,
    device: str = ...,
    parts: Parts = ...,
    **search: Any,
) -> Translator: ...


@overload
def load(
    run: str | Path | Run,
    *others: str | Path | Run,
    kind: type[LanguageModel],
    checkpoint: str = ...,
    beam: int | None = ...,
    device: str = ...,
    parts: Parts = ...,
    **search: Any,
) -> LanguageModel: ...


@overload
def load(
    run: str | Path | Run,
    *others: str | Path | Run,
    kind: type[MaskedLanguageModel],
    checkpoint: str = ...,
    beam: int | None = ...,
    device: str = ...,
    parts: Parts = ...,
    **search: Any,
) -> MaskedLanguageModel: ...


def load(
    run: str | Path | Run,
    *others: str | Path | Run,
    kind: type[Any] | None = None,
    checkpoint: str = "best",
    beam: int | None = None,
    device: str = "auto",
    parts: Parts = None,
    **search: Any,
) -> Any:
    """Load a run: a `Translator`, or what suits its train.objective.

    A run with train.objective=causal gives a `LanguageModel`, one with train.objective=masked a
    `MaskedLanguageModel`.

    others: more runs with the same vocabulary, for an ensemble of translators.
    kind: the class that you expect, such as regard.LanguageModel: another run is refused, and type
    checkers know what comes back. Without it they take it to be a `Translator`.
    checkpoint: name of a checkpoint, such as `step-00001000`.
    beam: beam width, instead of the run's search.width.
    device: `auto`, `cpu`, `cuda`, `cuda:1` or `mps`. `auto` starts on the CPU and moves to a GPU,
    if there is one, as soon as there is enough to do; starting a GPU takes seconds.
    parts: your own classes, where the config says custom:Name.
    search: other search settings to override, such as no_repeat=3.
    """
    check_options(search)
    opened = run if isinstance(run, Run) else Run.open(run)
    objective = opened.config.train.objective
    made = {"causal": LanguageModel, "masked": MaskedLanguageModel}.get(objective, Translator)
    if kind is not None and kind is not made:
        raise UserError(
            f"{opened.path}: trained with train.objective={objective}, so it is a "
            f"{made.__name__}, not a {kind.__name__}; use {VERBS[objective]}"
        )
    if made is Translator:
        return load_translator(
            opened,
            *others,
            checkpoint=checkpoint,
            beam=beam,
            device=device,
            parts=parts,
            **search,
        )
    if others:
        raise UserError(f"{opened.path}: only translators can be loaded as an ensemble")

    settings = search_settings(opened, beam, search)
    dtype = torch.bfloat16 if settings.precision == "bf16" else torch.float32
    place = first_place(device, dtype)
    model = opened.model(checkpoint, parts)
    put(model, place, dtype)
    make: Any = LanguageModel if isinstance(model, CausalModel) else MaskedLanguageModel
    max_length = opened.config.data.max_length
    return make(model, opened.source, settings, max_length=max_length, auto=device == "auto")
