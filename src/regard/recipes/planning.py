"""What to train when nobody said: look at the data, measure the machine, choose, and say why."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

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
from regard.nn.devices import pick_device
from regard.recipes.pace import Load, Measure, pairs_per_second
from regard.recipes.survey import FEW_WORDS, Kind, Survey, survey
from regard.training.forecast import duration

TUNED = {"arithmetic": "calculator", "phrases": "demo"}
MINUTES = 20.0
"""How long a training takes at most if nobody says."""

Model = dict[str, Any]
Architecture = Literal["transformer", "lstm"]
TRANSFORMER: Architecture = "transformer"


def _model(width: int, ffn: int, heads: int, layers: int) -> Model:
    return {
        "width": width,
        "ffn": ffn,
        "heads": heads,
        "encoder_layers": layers,
        "decoder_layers": layers,
    }


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
    (0, _model(64, 256, 4, 2)),
    (0, _model(128, 512, 4, 3)),
    (0, _model(256, 1024, 4, 4)),
    (50_000, _model(512, 2048, 8, 4)),
)
OF_WORDS = (
    (0, _model(128, 512, 4, 2)),
    (3_000, _model(256, 1024, 4, 3)),
    (50_000, _model(512, 2048, 8, 4)),
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
LONGEST = 6.0
"""How many times as long as it wants a training is, as long as dev improves and time is left."""
LEAST_STEPS = 1000  # no model learns in fewer
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

EVALUATIONS = 30
"""How many times dev is looked at in the time there is: each look takes some of it."""
MOST_EVALUATIONS = 60
"""How many times where there is time for all steps: most trainings are past their best by then."""
PATIENCE = 8
"""How many of these may bring nothing better until the learning rate falls."""

Value = TypeVar("Value")


def _suited(table: Sequence[tuple[float, Value]], pairs: float) -> Value:
    """The value of a table for this number of training pairs."""
    return next(value for most, value in table if pairs < most)


@dataclass(frozen=True)
class Choice:
    """One thing that the plan decided: for a person."""

    what: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what}: {self.value} ({self.reason})" if self.reason else self.value


@dataclass(frozen=True)
class Plan:
    """One way to train on the data."""

    kind: Kind  # what the data is taken for
    settings: Settings  # for what was left open
    choices: list[Choice]  # what was chosen, and why

    @property
    def tokens(self) -> str:
        """What texts are split into, for a person."""
        return _tokens_text(self.settings["text"])

    @property
    def architecture(self) -> str:
        """The kind of model, for a person; empty if the user has chosen it."""
        model = self.settings["model"]
        if "width" not in model:
            return ""
        return "LSTM" if model.get("kind") == "rnn" else "Transformer"

    @property
    def name(self) -> str:
        """What tells it from another plan."""
        return ", ".join(part for part in (self.architecture, self.tokens) if part)


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


def has_budget(train: Mapping[str, Any]) -> bool:
    """Whether a training ends by the clock, since nobody has set its length or its schedule."""
    return train.get("schedule", "wsd") == "wsd" and not {"steps", "epochs"} & set(train)


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
        choices.append(Choice("tokens", _tokens_text(chosen["text"]), why))

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
        choices.append(draft.length_choice())

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
        size = _suited(VOCABULARIES, measured.pairs * max(1.0, characters / LONG_PAIR))
        return {"tokenizer": "bpe", "size": size, "share": True}, reason
    if kind.source == kind.target:
        return {"tokenizer": kind.source, "share": kind.share}, reason
    text = {"tokenizer": kind.source, "target_tokenizer": kind.target, "share": False}
    if "HANGUL" in measured.source.scripts:
        text["jamo"] = True  # few syllables are seen often, but all letters
        reason += "; Hangul is split into letters"
    return text, reason


def _tokens_text(text: dict[str, Any]) -> str:
    """The tokens of both sides, for a person."""
    if text["tokenizer"] == "bpe":
        return f"BPE, up to {text['size']:,}"
    if "target_tokenizer" in text:
        return f"{text['tokenizer']} in the source, {text['target_tokenizer']} in the target"
    return str(text["tokenizer"])


class _Draft:
    """Model, batches and length that go together: what the time allows, and the data wants."""

    def __init__(
        self,
        measured: Survey,
        architecture: Architecture,
        suited: Model,
        settings: Settings,
        *,
        has_dev: bool,
        measure: Measure,
    ) -> None:
        self._measured = measured
        self._architecture = architecture
        self._suited = suited  # what suits the kind of task, whatever the size
        self._text = build({"text": settings.get("text", {})}).text
        self._train = settings.get("train", {})
        self._given_data = settings.get("data", {})
        self._given_model = settings.get("model", {})
        self._has_dev = has_dev
        self._measure = measure

        self._limit = float(self._train.get("minutes", MINUTES))  # 0: none
        self._minutes = self._limit or MINUTES
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
        return [model | self._suited for least, model in sizes if pairs >= least]

    def _usual_size(self) -> Model:
        """The size for a training whose length somebody has set: nobody knows its time."""
        if self._measured.pairs < 3_000:
            return _model(128, 256, 4, 2)
        if self._measured.pairs >= 300_000:
            return self._sizes()[-1]
        return _model(256, 1024, 4, 3)

    def _largest_in_time(self) -> Model:
        """The largest model that gets the epochs it wants in the time there is.

        What the user has set of the model is measured as it is set. Nobody can measure a model of
        the user's own.
        """
        sizes = self._sizes()
        kind = str(self._given_model.get("kind", "transformer"))
        if kind.startswith("custom:"):
            return sizes[0]

        best = sizes[0]
        measured: list[Model] = []
        for size in sizes:
            model = self._given_model if kind != "transformer" else size | self._given_model
            if model in measured:  # the user has set what differs
                continue
            measured.append(model)
            speed = self._measure(model, self._load())
            if speed == 0:  # too large for memory, and so are the larger ones
                break
            if self._speed and speed * 60 * self._minutes < self._wanted_epochs * self._pairs:
                break
            best = size
            self._speed = speed
        return dict(best)

    def _dropout(self) -> float:
        """Less for many pairs, unless there is time to learn even these by heart."""
        most_epochs = self._most_steps() / self._epoch_steps
        if self._speed and min(self._epochs_in_time, most_epochs) >= MANY_EPOCHS:
            return DROPOUTS[0][1]
        return _suited(DROPOUTS, self._pairs)

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
        epochs = self._epochs_in_time
        share = f"{epochs:,.0f}" if epochs >= 2 else f"{epochs:.2g}"
        reason = f"{pairs}; the time allows about {share} epochs of them"
        return Choice("model", value, reason)

    # data and length

    @property
    def _pairs(self) -> int:
        return self._measured.pairs

    @property
    def _epochs_in_time(self) -> float:
        """How many epochs the time allows, at the speed that was measured."""
        return self._speed * 60 * self._minutes / max(1, self._pairs)

    @property
    def _wanted_epochs(self) -> float:
        """How many epochs are worth their time: more of few pairs than of many."""
        factor = EPOCHS_OF_LETTERS if self._is_of_letters else EPOCHS_OF_WORDS
        return max(1.0, factor / math.sqrt(max(1, self._pairs)))

    @property
    def _step_pairs(self) -> int:
        """Pairs of a step."""
        return self._load().pairs * int(self._train.get("accumulate", 1))

    @property
    def _epoch_steps(self) -> float:
        return max(1.0, self._pairs / self._step_pairs)

    @property
    def _batch_tokens(self) -> int:
        given = self._given_data.get("batch_tokens")
        if given:
            return int(given)
        usual = _suited(BATCHES_OF_LETTERS if self._is_of_letters else BATCHES, self._pairs)
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
        return min(self._most_positions, 2 ** math.ceil(math.log2(longest)))

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

        steps = self._expected_steps()
        every = max(20, round(min(steps / EVALUATIONS, self._most_steps() / MOST_EVALUATIONS)))
        return {
            "epochs": 0,
            "steps": self._most_steps(),
            "minutes": self._limit,
            "schedule": "wsd",
            "rate": self._rate(),
            "warmup": max(1, min(400, steps // 10)),
            "ema": round(max(0.9, min(0.9995, 1 - 50 / steps)), 4),
            "evaluate_every": every,
            "save_every": 2 * every,
            "patience": PATIENCE,
            "metric": "accuracy",
        }

    def _rate(self) -> float:
        """A small Transformer learns at twice the rate of a larger one."""
        model = self.model | self._given_model
        is_transformer = model.get("kind", "transformer") == "transformer"
        width = int(model["width"])
        return 2e-3 if is_transformer and width <= 128 else 1e-3

    def _counted_train(self) -> dict[str, Any]:
        """The same for a training whose schedule or length somebody has set."""
        train = {
            "schedule": "linear",
            "warmup": 200,
            "evaluate_every": 100 if self._pairs < 10_000 else 500,
            "patience": 10,
        }
        if not {"steps", "epochs"} & set(self._train):
            least = round(LEAST_STEPS / self._epoch_steps)
            train["epochs"] = max(_suited(EPOCHS, self._pairs), least)
        return train

    def _most_steps(self) -> int:
        """Where training ends even if time is left. Without dev, nobody sees when it should."""
        longest = LONGEST if self._has_dev else 1.0
        return max(LEAST_STEPS, round(longest * self._wanted_epochs * self._epoch_steps))

    def _expected_steps(self) -> int:
        """About how many steps there will be."""
        if not self._speed:
            return self._most_steps()
        in_time = round(60 * self._minutes * self._speed / self._step_pairs)
        return max(100, min(self._most_steps(), in_time))

    def length_choice(self) -> Choice:
        """How long it takes, and why."""
        is_cpu = pick_device(str(self._train.get("device", "auto"))).type == "cpu"
        device = "CPU" if is_cpu else "GPU"
        value = f"at most {duration(60 * self._limit)} on this {device}, from the first step on"
        if not self._limit:
            value = f"no limit, at most {counted(self._most_steps(), 'step')}"
        parts = ["to change it, set train.minutes"]
        if self._has_dev:
            parts.insert(0, "it ends sooner when dev stops improving")
        return Choice("time", value, "; ".join(parts))
