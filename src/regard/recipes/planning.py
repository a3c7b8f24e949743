"""What to train when nobody said: look at the data, measure the machine, choose, and say why."""

import math
from collections.abc import Sequence
from typing import Any, Literal

from regard.config import (
    APPROXIMATE,
    DataConfig,
    SearchConfig,
    Settings,
    TransformerConfig,
    build,
    merge,
)
from regard.data.splits import Splits
from regard.data.tasks import TASKS
from regard.errors import counted
from regard.recipes.budget import LEAST_STEPS, Budget, has_budget, largest_in_time
from regard.recipes.pace import Load, Measure, pairs_per_second
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
from regard.recipes.survey import FEW_WORDS, Kind, Survey, survey
from regard.recipes.text_planning import text_plan

TUNED = {"arithmetic": "calculator", "phrases": "demo"}
Architecture = Literal["transformer", "lstm"]
TRANSFORMER: Architecture = "transformer"


def _lstm(width: int) -> Model:
    """An LSTM with attention."""
    return {
        "kind": "rnn",
        "cell": "lstm",
        "width": width,
        "embedding": width // 2,
        "encoder_layers": 2,
        "decoder_layers": 1,
    }


# The sizes that a plan chooses among, smallest first, and the fewest pairs that each is for.
OF_LETTERS = (
    (0, transformer(64, 256, 4, 2)),
    (0, transformer(128, 512, 4, 3)),
    (0, transformer(256, 1024, 4, 4)),
    (50_000, transformer(512, 2048, 8, 4)),
)
OF_WORDS = (
    (0, transformer(128, 512, 4, 2)),
    (3_000, transformer(256, 1024, 4, 3)),
    (50_000, transformer(512, 2048, 8, 4)),
)
LSTMS = (
    (0, _lstm(256)),
    (0, _lstm(512)),
)

# What suits a number of training pairs: each value is for fewer pairs than the number before it.
DROPOUTS = ((50_000, 0.3), (300_000, 0.2), (math.inf, 0.1))
MANY_EPOCHS = 20  # of which even many pairs are learned by heart: the most dropout
VOCABULARIES = ((2_000, 1000), (100_000, 4000), (1_000_000, 8000), (math.inf, 16000))
BATCHES = ((3_000, 1024), (100_000, 2048), (math.inf, 4096))  # tokens
BATCHES_OF_LETTERS = ((500, 1024), (math.inf, 4096))  # some 250 words: 64 were worse
EPOCHS = ((10_000, 30), (100_000, 10), (math.inf, 4))  # where the user counts steps or epochs

# A training wants this many epochs, divided by the square root of its pairs: fewer of more pairs.
EPOCHS_OF_LETTERS = 15_000
EPOCHS_OF_WORDS = 3_000
LONGEST_TEXT = 4096
"""Tokens of the longest texts that are trained on if nobody says."""
LONG_PAIR = 300
"""Characters of both sides from which on a pair counts as several: it has as much text."""
TEXTS_OF_BATCH = 4
"""The fewest texts of average length in a batch …"""
MOST_BATCH_TOKENS = 8192
"""… but for this limit."""
OF_BEAMS = {"width", "length_penalty", "patience", "diversity", "coverage"}
"""Settings of a search by beam: who sets one of them has a search of their own."""
OF_FEW_WORDS: Model = {"position": "relative", "dropout": 0.1}
"""What suits a few words that come again and again, in answers that may be longer than any seen."""


def choose(
    splits: Splits, given: Settings, measure: Measure = pairs_per_second
) -> tuple[Settings, list[Choice]]:
    """Settings for what `given` leaves open, and what was chosen and why.

    measure: how fast a model is trained on this machine.
    """
    [plan] = plans(splits, given, most=1, measure=measure)
    return plan.settings, plan.choices


def plans(
    splits: Splits, given: Settings, *, most: int, measure: Measure = pairs_per_second
) -> list[Plan]:
    """The plan of `choose`, and a second one where the data leaves it open which is better.

    most: how many there are at most.
    """
    if given.get("train", {}).get("objective", "translate") != "translate":
        return [text_plan(splits, given, measure)]
    measured = survey(splits.train, has_tags=bool(given.get("data", {}).get("features")))
    first = measured.kind()
    is_task = splits.name in TASKS
    architectures = [TRANSFORMER] if is_task else _architectures(first, given)
    drafts = [(first, architectures[0])]

    rival = measured.rival() if not is_task and not given.get("text") else None
    if rival is not None:
        drafts.append((rival, _architectures(rival, given)[0]))
    drafts += [(first, architecture) for architecture in architectures[1:]]
    return [
        _plan(measured, kind, architecture, splits, given, measure)
        for kind, architecture in drafts[:most]
    ]


def _architectures(kind: Kind, given: Settings) -> list[Architecture]:
    """The kinds of model that suit the data, the best one first.

    An LSTM with attention spelled better in seven of nine sets of words, a Transformer in two
    (docs/log.md, 2026-11-18).
    """
    train = given.get("train", {})
    is_open = not given.get("model") and has_budget(train)
    has_positions = bool(given.get("data", {}).get("positions"))  # which no RNN reads
    has_graphs = train.get("path", "auto") in ("compiled", "captured")  # nor has it these
    if is_open and has_tokens_of(kind, given) and not has_positions and not has_graphs:
        return ["lstm", TRANSFORMER] if kind.is_spelling else [TRANSFORMER]
    return [TRANSFORMER]


def has_tokens_of(kind: Kind, given: Settings) -> bool:
    """Whether texts are split into what suits this kind: the user may have set something else."""
    text = given.get("text", {})
    source = text.get("tokenizer", kind.source)
    target = text.get("target_tokenizer", kind.target)
    return source == kind.source and (source if target == "same" else target) == kind.target


def _plan(
    measured: Survey,
    kind: Kind,
    architecture: Architecture,
    splits: Splits,
    given: Settings,
    measure: Measure,
) -> Plan:
    """How to train such a model on data that is taken for this kind."""
    chosen: Settings = {"text": {}, "model": {}, "train": {}, "data": {}, "search": {}}
    choices = []

    chosen["text"], why = _text(measured, kind, splits.name)
    if not {"tokenizer", "size"} & set(given.get("text", {})):
        choices.append(Choice("tokens", tokens_text(chosen["text"]), why))

    is_as_surveyed = splits.name not in TASKS and has_tokens_of(kind, given)
    draft = _Draft(
        measured,
        architecture,
        _suited_to(kind, given) if is_as_surveyed else {},
        merge(chosen, given),
        has_dev=splits.dev is not None and next(iter(splits.dev), None) is not None,
        measure=measure,
    )
    given_model = given.get("model", {})
    if given_model.get("kind", "transformer") == "transformer":
        chosen["model"] = draft.model
        choices.append(draft.model_choice(draft.model | given_model))

    chosen["data"] = draft.data
    chosen["train"] = draft.train
    if draft.has_budget:
        choices.append(draft.budget.choice())

    text = build(merge({"text": chosen["text"]}, {"text": given.get("text", {})})).text
    has_ties = not str(given_model.get("kind", "")).startswith("custom:")
    if not text.share and has_ties and architecture == "transformer":
        chosen["model"]["tie"] = "target" if chosen["model"] else "none"
    if is_as_surveyed:
        choices += _for_whole_answers(kind, chosen, given)
    if splits.name in TUNED:
        choices.append(Choice("", f"(--preset {TUNED[splits.name]} was tuned for this task)", ""))
    return Plan(kind, chosen, choices)


def _suited_to(kind: Kind, given: Settings) -> Model:
    """What suits this kind of task, whatever the size of the model."""
    if kind.name != FEW_WORDS:
        return {}
    model = given.get("model", {})
    patterns = {model.get("pattern"), model.get("decoder_pattern")}
    if patterns & set(APPROXIMATE):  # which know no relative positions
        return {name: value for name, value in OF_FEW_WORDS.items() if name != "position"}
    return OF_FEW_WORDS


def _for_whole_answers(kind: Kind, chosen: Settings, given: Settings) -> list[Choice]:
    """Choose what suits answers that are right or wrong as a whole, and say why.

    The figures are in docs/log.md, 2026-11-18.
    """
    if kind.source == "bpe" or OF_BEAMS & set(given.get("search", {})):
        return []
    chosen["search"]["length_penalty"] = 0.0
    if kind.name != FEW_WORDS:
        beam = f"beam of {SearchConfig().width}, no length penalty"
        return [Choice("search", beam, "answers are words, not texts")]

    chosen["search"]["width"] = 1
    return [Choice("search", "greedy", "a beam prefers answers that end too soon")]


def _text(measured: Survey, kind: Kind, name: str) -> tuple[dict[str, Any], str]:
    """Settings of the section text, and why."""
    if name in TASKS:
        return {"tokenizer": TASKS[name].tokenizer, "share": True}, "set by the task"

    reason = f"{kind.name}: {kind.evidence}"
    if kind.source == "bpe":
        characters = measured.source.mean_characters + measured.target.mean_characters
        size = suited(VOCABULARIES, measured.pairs * max(1.0, characters / LONG_PAIR))
        return {"tokenizer": "bpe", "size": size, "share": True}, reason
    if kind.source == kind.target:
        return {"tokenizer": kind.source, "share": kind.share}, reason
    text = {"tokenizer": kind.source, "target_tokenizer": kind.target, "share": False}
    if "HANGUL" in measured.source.scripts:
        text["jamo"] = True  # few syllables are seen often, but all letters
        reason += "; Hangul is split into letters"
    return text, reason


class _Draft:
    """Model, batches and length that go together: what the time allows, and the data wants."""

    def __init__(
        self,
        measured: Survey,
        architecture: Architecture,
        of_kind: Model,
        settings: Settings,
        *,
        has_dev: bool,
        measure: Measure,
    ) -> None:
        self._measured = measured
        self._architecture = architecture
        self._of_kind = of_kind  # what suits the kind of task, whatever the size
        self._text = build({"text": settings.get("text", {})}).text
        self._train = settings.get("train", {})
        self._given_data = settings.get("data", {})
        self._given_model = settings.get("model", {})
        self._has_dev = has_dev
        self._measure = measure

        self.has_budget = has_budget(self._train)

        self._is_of_letters = self._text.tokenizer == "characters"
        self._speed = 0.0  # pairs a second; 0: not measured
        self.model = self._largest_in_time() if self.has_budget else self._usual_size()
        self.model = {"dropout": self._dropout()} | self.model

    # the model

    def _sizes(self) -> list[Model]:
        """The sizes that so many pairs can train, smallest first, with what the user has set."""
        sizes: Sequence[tuple[int, Model]] = OF_LETTERS if self._is_of_letters else OF_WORDS
        if self._architecture == "lstm":
            sizes = LSTMS
        pairs = self._measured.pairs
        return [model | self._of_kind for least, model in sizes if pairs >= least]

    def _usual_size(self) -> Model:
        """The size for a training whose length somebody has set: nobody knows its time."""
        if self._measured.pairs < 3_000:
            return transformer(128, 256, 4, 2)
        if self._measured.pairs >= 300_000:
            return self._sizes()[-1]
        return transformer(256, 1024, 4, 3)

    def _largest_in_time(self) -> Model:
        """The largest model that gets the epochs it wants in the time there is.

        Nobody can measure a model of the user's own.
        """
        sizes = self._sizes()
        if str(self._given_model.get("kind", "transformer")).startswith("custom:"):
            return sizes[0]
        least_speed = self._wanted_epochs * self._pairs / self.budget.seconds
        model, self._speed = largest_in_time(
            sizes, self._given_model, self._load(), self._measure, least_speed
        )
        return model

    def _dropout(self) -> float:
        """Less for many pairs, unless there is time to learn even these by heart."""
        if self._speed and self.budget.epochs >= MANY_EPOCHS:
            return DROPOUTS[0][1]
        return suited(DROPOUTS, self._pairs)

    def _load(self) -> Load:
        longest = self._max_length
        return Load(
            vocabulary=self._vocabulary(),
            batch_tokens=self._batch_tokens,
            batch_sentences=int(self._given_data.get("batch_sentences", 0)),
            source_length=min(longest, self._measured.source.tokens(self._text.tokenizer)),
            target_length=min(longest, self._measured.target.tokens(self._target_tokenizer)),
            device=str(self._train.get("device", "auto")),
        )

    @property
    def _target_tokenizer(self) -> str:
        text = self._text
        return text.tokenizer if text.target_tokenizer == "same" else text.target_tokenizer

    def _vocabulary(self) -> int:
        """About how many tokens there are."""
        if self._text.tokenizer in ("bpe", "unigram"):
            return self._text.size
        if self._text.tokenizer == "words":
            return 20 + len(self._measured.source.words | self._measured.target.words)
        return 20 + len(self._measured.source.alphabet | self._measured.target.alphabet)

    def model_choice(self, model: Model) -> Choice:
        """What the model is, and why it is as large as that."""
        name = "LSTM with attention" if self._architecture == "lstm" else "Transformer"
        value = (
            f"{name}, {model['encoder_layers']}+{model['decoder_layers']} layers of width "
            f"{model['width']}, dropout {model['dropout']}"
        )
        if model.get("position"):
            value += f", {model['position']} positions"
        pairs = counted(self._pairs, "training pair")
        if not self._speed:
            return Choice("model", value, pairs)
        epochs = epochs_text(self.budget.epochs_in_time)
        reason = f"{pairs}; the time allows about {epochs} epochs of them"
        return Choice("model", value, reason)

    # data and length

    @property
    def _pairs(self) -> int:
        return self._measured.pairs

    @property
    def budget(self) -> Budget:
        """The time there is, and what it allows."""
        return Budget(
            self._train,
            self._pairs,
            self._load().pairs,
            self._wanted_epochs,
            self._has_dev,
            self._speed,
        )

    @property
    def _wanted_epochs(self) -> float:
        """How many epochs are worth their time: more of few pairs than of many."""
        factor = EPOCHS_OF_LETTERS if self._is_of_letters else EPOCHS_OF_WORDS
        return max(1.0, factor / math.sqrt(max(1, self._pairs)))

    @property
    def _batch_tokens(self) -> int:
        given = self._given_data.get("batch_tokens")
        if given:
            return int(given)
        usual = suited(BATCHES_OF_LETTERS if self._is_of_letters else BATCHES, self._pairs)
        source = self._measured.source.tokens(self._text.tokenizer)
        target = self._measured.target.tokens(self._target_tokenizer)
        longer = min(self._max_length, max(source, target))
        wanted = 1024 * math.ceil(TEXTS_OF_BATCH * longer / 1024)
        return max(usual, min(MOST_BATCH_TOKENS, wanted))

    @property
    def _max_length(self) -> int:
        """The most tokens of a side: the usual limit, or more where many texts are longer."""
        if "max_length" in self._given_data:
            return int(self._given_data["max_length"])
        source = self._measured.source.long_tokens(self._text.tokenizer)
        target = self._measured.target.long_tokens(self._target_tokenizer)
        usual = DataConfig().max_length
        longest = max(source, target)
        if longest <= usual:
            return usual
        return min(self._most_positions, power_of_two(longest))

    @property
    def _most_positions(self) -> int:
        """Tokens of the longest text that a model can read."""
        has_table = self._given_model.get("position") == "learned"
        has_mixtures = self._given_model.get("pattern") == "linformer"
        if not has_table and not has_mixtures:
            return LONGEST_TEXT
        learned = self._given_model.get("max_positions", TransformerConfig().max_positions)
        return min(LONGEST_TEXT, int(learned))

    @property
    def data(self) -> dict[str, Any]:
        """Settings of the section data."""
        data: dict[str, Any] = {"batch_tokens": self._batch_tokens}
        if self._max_length != DataConfig().max_length:
            data["max_length"] = self._max_length
        return data

    @property
    def train(self) -> dict[str, Any]:
        """Settings of the section train."""
        if not self.has_budget:
            return self._counted_train()

        return self.budget.settings(rate_of(self.model | self._given_model), "accuracy")

    def _counted_train(self) -> dict[str, Any]:
        """The same for a training whose schedule or length somebody has set."""
        train = {
            "schedule": "linear",
            "warmup": 200,
            "evaluate_every": 100 if self._pairs < 10_000 else 500,
            "patience": 10,
        }
        if not {"steps", "epochs"} & set(self._train):
            least = round(LEAST_STEPS / self.budget.epoch_steps)
            train["epochs"] = max(suited(EPOCHS, self._pairs), least)
        return train
