"""A run -> what it is for: a translator, or a language model of one of three kinds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import torch

from regard.data.objectives import objective_of
from regard.errors import UserError
from regard.inference.decoding import check_options, first_place, put, search_settings
from regard.inference.denoising import DenoisingModel
from regard.inference.language import LanguageModel
from regard.inference.masked import MaskedLanguageModel
from regard.inference.translator import Translator
from regard.models import CausalModel, Seq2Seq
from regard.models.ensemble import ensemble
from regard.models.parts import Parts
from regard.runs.run import Run
from regard.text.missing import WithMasks

VERBS = {
    "translate": "regard translate",
    "causal": "regard generate",
    "masked": "regard fill, or regard embed",
    "denoise": "regard embed or score, or fine-tune it: regard train pairs.tsv --from RUN",
}
"""The command for a run of each objective."""
KINDS: dict[str, type[Any]] = {
    "translate": Translator,
    "causal": LanguageModel,
    "masked": MaskedLanguageModel,
    "denoise": DenoisingModel,
}
"""What a run of each objective is loaded as."""
Loaded = Translator | LanguageModel | MaskedLanguageModel


@overload
def load(
    run: str | Path | Run,
    *others: str | Path | Run,
    kind: type[DenoisingModel],
    checkpoint: str = ...,
    beam: int | None = ...,
    device: str = ...,
    parts: Parts = ...,
    **search: Any,
) -> DenoisingModel: ...


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
    `MaskedLanguageModel`, one with train.objective=denoise a `DenoisingModel`.

    others: more runs with the same vocabulary, for an ensemble of translators.
    kind: the class that you expect, such as regard.LanguageModel: a run of another kind is refused,
    and type checkers know what comes back. Without it they take it to be a `Translator`.
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
    made = KINDS[objective]
    if kind is not None and not isinstance(kind, type):
        raise UserError(f"kind={kind!r} must be a class, such as regard.LanguageModel")
    if kind is not None and not issubclass(made, kind):
        raise UserError(
            f"{opened.path}: trained with train.objective={objective}, so it is a "
            f"{made.__name__}, not a {kind.__name__}; use {VERBS[objective]}"
        )
    if issubclass(made, Translator):
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


def load_translator(
    run: str | Path | Run,
    *others: str | Path | Run,
    checkpoint: str = "best",
    beam: int | None = None,
    device: str = "auto",
    parts: Parts = None,
    **search: Any,
) -> Translator:
    """Load a run that answers sources: one that was trained on pairs, or to denoise texts.

    others: more runs with the same vocabulary, for an ensemble.
    checkpoint: name of a checkpoint, such as `step-00001000`.
    beam: beam width, instead of the run's search.width.
    device: `auto`, `cpu`, `cuda`, `cuda:1` or `mps`. `auto` starts on the CPU and moves to a GPU,
    if there is one, as soon as there is enough to translate; starting a GPU takes seconds.
    parts: your own classes, where the config says custom:Name.
    search: other search settings to override, such as no_repeat=3.
    """
    runs = [folder if isinstance(folder, Run) else Run.open(folder) for folder in (run, *others)]
    first = runs[0]
    _check_vocabularies(runs)

    settings = search_settings(first, beam, search)
    kind = torch.bfloat16 if settings.precision == "bf16" else torch.float32
    place = first_place(device, kind)

    models = [translating_model(opened, checkpoint, parts) for opened in runs]
    for model in models:
        put(model, place, kind)

    source = first.source
    training = first.config.train
    make: type[Translator] = Translator
    reading: dict[str, Any] = {}
    if training.objective == "denoise":
        make = DenoisingModel
        reading["objective"] = objective_of(training, source)
        reading["max_length"] = first.config.data.max_length
        source = WithMasks(source)
    return make(
        models[0] if len(models) == 1 else ensemble(models),
        source,
        first.target,
        settings,
        seen=first.manifest.get("longest_source", 0),
        characters=first.manifest.get("characters", ""),
        packs=first.manifest.get("several_sentences", 1.0) >= 0.05,
        auto=device == "auto",
        positions=first.config.data.positions,
        **reading,
    )


def translating_model(run: Run, checkpoint: str, parts: Parts) -> Seq2Seq:
    """The model of a run that answers sources."""
    objective = run.config.train.objective
    model = run.model(checkpoint, parts)
    if objective not in ("translate", "denoise") or not isinstance(model, Seq2Seq):
        raise UserError(
            f"{run.path}: trained with train.objective={objective}, so it answers no sources; see "
            f"regard generate, fill, embed and score"
        )
    return model


def _check_vocabularies(runs: Sequence[Run]) -> None:
    """Refuse runs that cannot answer together, since their ids mean different tokens."""
    first = runs[0]
    for other in runs[1:]:
        same_source = other.source.to_json() == first.source.to_json()
        same_target = other.target.to_json() == first.target.to_json()
        if not (same_source and same_target):
            raise UserError(
                f"{other.path} and {first.path} have different vocabularies: train one with "
                f"train.start_from the other, or both on the same data"
            )
