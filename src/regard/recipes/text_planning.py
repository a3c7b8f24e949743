"""The plan for a language model: tokens, size and length that suit some texts."""

import math
from typing import Any

from regard.config import DataConfig, Settings, TransformerConfig, build, merge
from regard.data.splits import Splits
from regard.recipes.budget import LEAST_STEPS, Budget, has_budget, largest_in_time
from regard.recipes.pace import Load, Measure
from regard.recipes.plan import (
    Choice,
    Model,
    Plan,
    epochs_text,
    power_of_two,
    rate_of,
    suited,
    tokens_text,
    transformer,
)
from regard.recipes.survey import Kind, TextSurvey, survey_texts

SIZES = (
    (0, transformer(64, 256, 2, 2)),
    (0, transformer(128, 512, 4, 3)),
    (200_000, transformer(192, 768, 4, 4)),
    (3_000_000, transformer(256, 1024, 4, 6)),
    (30_000_000, transformer(512, 2048, 8, 8)),
)
"""The sizes that a plan chooses among, and the fewest characters of text that each is for."""

# What suits a number of characters: each value is for fewer than the number before it.
VOCABULARIES = (
    (100_000, 500),
    (500_000, 1000),
    (3_000_000, 2000),
    (30_000_000, 4000),
    (300_000_000, 8000),
    (math.inf, 16000),
)
BATCHES = ((50_000, 1024), (30_000_000, 2048), (math.inf, 4096))  # tokens
EPOCHS = ((100_000, 60), (1_000_000, 20), (30_000_000, 5), (math.inf, 1))  # if steps are counted

DROPOUTS = ((3, 0.0), (12, 0.1), (50, 0.2), (math.inf, 0.3))
"""Dropout for fewer epochs than this: what is seen often is learned by heart."""
WANTED_EPOCHS = 10_000.0
"""A training wants this many epochs, divided by the square root of the characters …"""
WANTED_CHARACTERS = 40_000_000
"""… but no model is smaller for want of time to read more than this."""
TOKENS_OF_SIGN = 2
"""Tokens of a vocabulary for each different character, at least: writing may have thousands."""
LONGEST_ROW = 512
"""Tokens that are read at once at most, if nobody says: longer texts are cut."""
ROWS_OF_BATCH = 4
"""The fewest rows of average length in a batch."""


def text_plan(splits: Splits, given: Settings, measure: Measure) -> Plan:
    """How to train a language model on texts, for what `given` leaves open."""
    measured = survey_texts(splits.train)
    kind = measured.kind()
    if given["train"]["objective"] != "causal" and kind.name == "texts":
        kind = _of_words(kind)  # behind a mask, a letter says little
    text = _text(measured, kind)
    choices = []
    if not {"tokenizer", "size"} & set(given.get("text", {})):
        choices.append(Choice("tokens", tokens_text(text), f"{kind.name}: {kind.evidence}"))

    draft = _TextDraft(
        measured,
        merge({"text": text}, given),
        has_dev=splits.dev is not None and next(iter(splits.dev), None) is not None,
        measure=measure,
    )
    is_transformer = given.get("model", {}).get("kind", "transformer") == "transformer"
    if is_transformer:
        choices.append(draft.model_choice())
    if draft.has_budget:
        choices.append(draft.budget.choice())
    chosen: Settings = {
        "text": text,
        "model": draft.model if is_transformer else {},
        "train": draft.train,
        "data": draft.data,
        "search": {},
    }
    return Plan(kind, chosen, choices)


def _of_words(kind: Kind) -> Kind:
    """The same kind, but split into words and parts of words."""
    return Kind(kind.name, "bpe", "bpe", True, kind.evidence)


def _text(measured: TextSurvey, kind: Kind) -> dict[str, Any]:
    """Settings of the section text."""
    if kind.source != "bpe":
        return {"tokenizer": kind.source, "share": True}
    signs = TOKENS_OF_SIGN * len(measured.side.alphabet)
    size = max(suited(VOCABULARIES, measured.characters), signs)
    return {"tokenizer": "bpe", "size": size, "share": True}


class _TextDraft:
    """Model, batches and length that go together: what the time allows, and the texts want."""

    def __init__(
        self, measured: TextSurvey, settings: Settings, *, has_dev: bool, measure: Measure
    ) -> None:
        self._measured = measured
        self._text = build({"text": settings.get("text", {})}).text
        self._train = settings["train"]
        self._given_data = settings.get("data", {})
        self._given_model = settings.get("model", {})
        self._has_dev = has_dev
        self.has_budget = has_budget(self._train)

        self._speed = 0.0  # rows a second; 0: not measured
        size = self._largest_in_time(measure) if self.has_budget else self._usual_size()
        self.model = {"dropout": self._dropout()} | size

    # the model

    def _sizes(self) -> list[Model]:
        """The sizes that so much text can train, smallest first."""
        characters = self._measured.characters
        return [size for least, size in SIZES if characters >= least]

    def _usual_size(self) -> Model:
        """The size for a training whose length somebody has set: nobody knows its time."""
        return self._sizes()[-1]

    def _largest_in_time(self, measure: Measure) -> Model:
        """The largest model that reads what it wants in the time there is."""
        wanted = self._wanted_epochs * self._measured.characters
        rows = min(wanted, WANTED_CHARACTERS) * self._rows / max(1, self._measured.characters)
        least_speed = rows / self.budget.seconds
        model, self._speed = largest_in_time(
            self._sizes(), self._given_model, self._load(), measure, least_speed
        )
        return model

    def _dropout(self) -> float:
        """More where the same texts are read more often."""
        epochs = self.budget.epochs if self._speed else self._wanted_epochs
        return suited(DROPOUTS, epochs)

    def model_choice(self) -> Choice:
        """What the model is, and why it is as large as that."""
        model = self.model | self._given_model
        value = (
            f"{self._parts(model)} of width {model['width']}, dropout {model['dropout']}, which "
            f"reads up to {self._max_length:,} tokens"
        )
        tokens = f"about {round(self._tokens, -2):,} training tokens"
        if not self._speed:
            return Choice("model", value, tokens)
        epochs = epochs_text(self.budget.epochs_in_time)
        return Choice("model", value, f"{tokens}; the time allows about {epochs} epochs of them")

    def _parts(self, model: Model) -> str:
        """What the model is made of, for a person."""
        encoder = model["encoder_layers"]
        decoder = model["decoder_layers"]
        if self._train["objective"] == "causal":
            return f"Transformer decoder, {decoder} layers"
        if self._train["objective"] == "masked":
            return f"Transformer encoder, {encoder} layers"
        return f"Transformer, {encoder}+{decoder} layers"

    # what is read

    @property
    def _text_tokens(self) -> float:
        """About how many tokens a text has."""
        return self._measured.side.tokens(self._text.tokenizer)

    @property
    def _tokens(self) -> int:
        """About how many tokens all texts have."""
        return round(self._measured.texts * self._text_tokens)

    @property
    def _text_rows(self) -> int:
        """Rows that an average text is cut into."""
        return math.ceil(self._text_tokens / self._max_length)

    @property
    def _rows(self) -> int:
        """About how many rows an epoch has."""
        return self._measured.texts * self._text_rows

    @property
    def _row_tokens(self) -> float:
        """About how many tokens a row has."""
        return self._text_tokens / self._text_rows

    @property
    def _max_length(self) -> int:
        """The most tokens of a row: the usual limit, or more where many texts are longer."""
        if "max_length" in self._given_data:
            return int(self._given_data["max_length"])
        usual = DataConfig().max_length
        longest = self._measured.side.long_tokens(self._text.tokenizer)
        length = min(LONGEST_ROW, max(usual, power_of_two(longest)))
        if self._given_model.get("position") == "learned":
            learned = self._given_model.get("max_positions", TransformerConfig().max_positions)
            return min(length, int(learned))
        return length

    @property
    def _batch_tokens(self) -> int:
        if self._given_data.get("batch_tokens"):
            return int(self._given_data["batch_tokens"])
        usual = suited(BATCHES, self._measured.characters)
        return max(usual, 1024 * math.ceil(ROWS_OF_BATCH * self._row_tokens / 1024))

    def _load(self) -> Load:
        return Load(
            vocabulary=self._vocabulary(),
            batch_tokens=self._batch_tokens,
            batch_sentences=int(self._given_data.get("batch_sentences", 0)),
            source_length=1.0,
            target_length=self._row_tokens,
            device=str(self._train.get("device", "auto")),
            train=build({"train": self._train}).train,
        )

    def _vocabulary(self) -> int:
        """About how many tokens there are."""
        if self._text.tokenizer in ("bpe", "unigram"):
            return self._text.size
        if self._text.tokenizer == "words":
            return 20 + len(self._measured.side.words)
        return 20 + len(self._measured.side.alphabet)

    # settings

    @property
    def _wanted_epochs(self) -> float:
        """How many epochs are worth their time: more of a few texts than of many."""
        return max(1.0, WANTED_EPOCHS / math.sqrt(max(1, self._measured.characters)))

    @property
    def budget(self) -> Budget:
        """The time there is, and what it allows."""
        return Budget(
            self._train,
            self._rows,
            self._load().pairs,
            self._wanted_epochs,
            self._has_dev,
            self._speed,
        )

    @property
    def data(self) -> dict[str, Any]:
        """Settings of the section data."""
        data: dict[str, Any] = {"batch_tokens": self._batch_tokens}
        if self._max_length != DataConfig().max_length:
            data["max_length"] = self._max_length
        return data

    @property
    def train(self) -> dict[str, Any]:
        """Settings of the section train. Perplexity is what counts, so labels are not smoothed."""
        if self.has_budget:
            train = self.budget.settings(rate_of(self.model | self._given_model), "loss")
        else:
            train = self._counted_train()
        return train | {"smoothing": 0.0}

    def _counted_train(self) -> dict[str, Any]:
        """The same for a training whose schedule or length somebody has set."""
        train: dict[str, Any] = {"schedule": "linear", "warmup": 200, "evaluate_every": 500}
        if self.budget.epoch_steps < 500:
            train["evaluate_every"] = 100
        if not {"steps", "epochs"} & set(self._train):
            least = round(LEAST_STEPS / self.budget.epoch_steps)
            train["epochs"] = max(suited(EPOCHS, self._measured.characters), least)
        return train | {"patience": 10}
