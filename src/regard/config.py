"""Settings: frozen dataclasses, TOML over them, `section.name=value` over that. Each default stands
here and nowhere else.
"""

import contextlib
import dataclasses
import math
import tomllib
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from regard.errors import UserError, nearest

Settings = dict[str, dict[str, Any]]
"""Settings before construction: section -> name -> value. Merged field by field, then built once.
"""

ScoreName = Literal["dot", "scaled_dot", "multiplicative", "additive"]
PositionName = Literal["none", "sinusoidal", "learned", "relative", "rotary", "alibi"]


@dataclass(frozen=True)
class DataConfig:
    """Where pairs come from and how they are batched."""

    path: str = ""  # A task, a named corpus, a file or a folder.
    # Name of the source side: file suffix (`en`), JSON key or Parquet column. Empty: the first
    # column.
    source: str = ""
    target: str = ""  # Name of the target side, as above.
    limit: int = 0  # Use at most this many training pairs, drawn evenly over the file. 0: all.
    group: Literal["source", "pair"] = (
        "source"  # pairs that share this stay in one split; pair: a source or a target
    )
    # Pairs split off for validation where the data has no split of its own. 0: 5 %, at most 2,000.
    dev: int = 0
    test: int = 0  # Pairs split off for the final test, as above.
    seed: int = 123456  # Seed of splits and generated tasks.
    options: dict[str, Any] = field(
        default_factory=dict
    )  # Options of a generated task, such as complexity.
    max_length: int = (
        256  # Pairs with a side of more tokens than this are left out of training, and counted.
    )
    # Tokens in a batch, counted with padding on the longer side. Ignored if batch_sentences is set.
    batch_tokens: int = 4096
    batch_sentences: int = 0  # Pairs in a batch, whatever their length. 0: use batch_tokens.
    # The text is cut into words already: BLEU counts them as they stand (sacreBLEU's `none`).
    tokenized: bool = False
    digest: str = ""  # sha256 of the encoded training data; written by training, checked on resume.

    @property
    def bleu_tokenize(self) -> str:
        """The name of sacreBLEU's tokenizer for texts of this data; decided here for every BLEU."""
        return "none" if self.tokenized else "13a"


@dataclass(frozen=True)
class TextConfig:
    """How text becomes tokens."""

    tokenizer: Literal["characters", "bytes", "words", "bpe", "unigram"] = "bpe"  # What a token is.
    target_tokenizer: Literal["same", "characters", "bytes", "words", "bpe", "unigram"] = (
        "same"  # of the target
    )
    size: int = 8000  # Largest vocabulary that words, BPE and Unigram may learn.
    share: bool = True  # One vocabulary for both sides.
    dropout: float = 0.0  # Merges of BPE left out at random, in training only (BPE-dropout).


@dataclass(frozen=True)
class TransformerConfig:
    """Transformer encoder-decoder (Vaswani et al. 2017)."""

    kind: Literal["transformer"] = "transformer"  # Which model.
    width: int = 256  # Width of the embeddings and of every layer.
    ffn: int = 1024  # Inner width of the feed-forward layer.
    heads: int = 4  # Attention heads; they divide the width.
    encoder_layers: int = 3  # Blocks of the encoder.
    decoder_layers: int = 3  # Blocks of the decoder.
    position: PositionName = "sinusoidal"  # How order is told.
    score: ScoreName = "scaled_dot"  # How a query is compared with a key.
    norm: Literal["layer", "rms", "none"] = "layer"  # Which normalisation.
    placement: Literal["pre", "post"] = (
        "pre"  # Normalise before each part, or after its residual sum.
    )
    activation: Literal["relu", "gelu", "geglu", "swiglu"] = (
        "relu"  # Of the feed-forward layer; the last two are gated.
    )
    residual: bool = (
        True  # Add each part's input to its output. Off: to see what residuals are for.
    )
    feedforward: bool = True  # Have feed-forward layers. Off: attention only.
    tie: Literal["none", "target", "all"] = (
        "all"  # shared weights: target input and output; all: the source too
    )
    bias: bool = True  # Biases in the projections of attention.
    dropout: float = 0.1  # On what each part adds, and on embeddings.
    embedding_dropout: float | None = None  # On embeddings, if it shall differ from dropout.
    attention_dropout: float = 0.0  # On attention weights.
    activation_dropout: float = 0.0  # Inside the feed-forward layer.
    max_positions: int = 1024  # Size of a learned position table.
    relative_clip: int = 16  # Distance beyond which relative positions are alike.
    # The encoder sees only what came before, so that it can read a source while it is being
    # written.
    causal: bool = False
    # Wait-k: target token t, counted from 0, sees the first wait + t source tokens. 0: all. Needs
    # causal.
    wait: int = 0

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise UserError(f"model.heads={self.heads} does not divide model.width={self.width}")
        if self.position == "rotary" and self.score not in ("dot", "scaled_dot"):
            raise UserError(
                f"model.position=rotary needs model.score=dot or scaled_dot, not {self.score}"
            )
        if self.position == "rotary" and (self.width // self.heads) % 2:
            raise UserError("model.position=rotary needs an even width per head")
        if self.wait and not self.causal:
            raise UserError(
                f"model.wait={self.wait} needs an encoder that does not look ahead: set "
                f"model.causal=true as well"
            )


@dataclass(frozen=True)
class RNNConfig:
    """Recurrent encoder-decoder, with attention before the cell (Bahdanau et al. 2015), after it
    (Luong et al. 2015) or none.
    """

    kind: Literal["rnn"] = "rnn"  # Which model.
    cell: Literal["rnn", "gru", "lstm"] = "lstm"  # Which recurrence.
    width: int = 256  # Width of the decoder's state.
    embedding: int = 256  # Width of the embeddings.
    encoder_layers: int = 1  # Layers of the encoder.
    decoder_layers: int = 1  # Layers of the decoder.
    bidirectional: bool = True  # Read the source from both ends.
    attention: Literal["before", "after", "none"] = (
        "after"  # look at the source before the cell, after it, or not
    )
    score: ScoreName = (
        "multiplicative"  # How the decoder's state is compared with the encoder's states.
    )
    score_width: int = 0  # Inner width of the additive score. 0: the decoder's width.
    tie: Literal["none", "target", "all"] = (
        "none"  # Which embeddings share weights (the output layer only if embedding = width).
    )
    dropout: float = 0.2  # On embeddings, between layers and before the output.
    fast: bool = True  # torch's cells. Off: the readable ones, equal and slower.

    def __post_init__(self) -> None:
        if self.tie != "none" and self.embedding != self.width:
            raise UserError(
                f"model.tie={self.tie} needs model.embedding = model.width = {self.width}"
            )
        if self.bidirectional and self.width % 2:
            raise UserError(
                f"model.width={self.width} must be even for a bidirectional encoder: each "
                f"direction has half of it"
            )


ModelConfig = TransformerConfig | RNNConfig


@dataclass(frozen=True)
class TrainConfig:
    """How weights are learned."""

    epochs: float = 0  # Passes over the data. 0: use steps.
    steps: int = 10000  # Updates, where epochs is 0.
    minutes: float = 0  # Stop after this much training time, if it comes first. 0: no limit.
    seed: int = 1  # Seed of weights, order and dropout.
    optimizer: Literal["adamw", "adam", "sgd", "muon"] = (
        "adamw"  # muon: for the matrices of the blocks, AdamW for the rest
    )
    rate: float = 1e-3  # Highest learning rate.
    schedule: Literal["constant", "inverse_sqrt", "cosine", "linear"] = (
        "inverse_sqrt"  # after warm-up
    )
    warmup: int = 400  # Steps over which the rate rises from zero.
    betas: tuple[float, float] = (0.9, 0.98)  # Of Adam.
    weight_decay: float = 0.0  # Of AdamW, on matrices only.
    clip: float = 1.0  # Largest global norm of the gradient. 0: no clipping.
    smoothing: float = 0.1  # Label smoothing.
    rdrop: float = (
        0.0  # Weight of R-Drop: two looks with different dropout must agree. 0: one look.
    )
    # Decay of a moving average of the weights, which is then what is judged and used. 0: none.
    ema: float = 0.0
    # Leave out a step whose loss or gradient norm is so many sigmas above the last ones. 0: never.
    spike: float = 6.0
    accumulate: int = 1  # Batches per update.
    precision: Literal["auto", "fp32", "bf16"] = (
        "auto"  # auto: bf16 on a GPU that has it, else fp32
    )
    device: str = (
        "auto"  # auto (a CUDA GPU if there is one), cpu, cuda, cuda:1 (the second GPU) or mps.
    )
    path: Literal["auto", "plain", "packed", "compiled", "captured"] = (
        "auto"  # how a GPU computes a step; same numbers
    )
    strategy: Literal["ddp", "fsdp"] = (
        "ddp"  # Under torchrun: every process holds the model, or a part of it.
    )
    # CPU threads. 0: as many as torch would use; the number is then written here, since results
    # depend on it.
    threads: int = 0
    evaluate_every: int = 500  # Steps between looks at the dev data.
    save_every: int = 500  # Steps between checkpoints.
    log_every: int = 50  # Steps between lines of the log.
    patience: int = 0  # Stop after this many looks at the dev data without a better loss. 0: never.
    keep: int = 3  # Checkpoints kept, besides the best.
    average: int = 0  # use the mean of the last so many checkpoints, if dev agrees. 0: do not
    metric: Literal["loss", "accuracy", "exact_match", "bleu"] = (
        "loss"  # of the best checkpoint, on dev
    )
    start_from: str = (
        ""  # A run whose weights and tokenizer are copied to start from (fine-tuning).
    )
    tensorboard: Literal["auto", "on", "off"] = "auto"  # event files; auto: if it is installed

    def __post_init__(self) -> None:
        if not self.epochs and not self.steps:
            raise UserError("train.steps=0 and train.epochs=0: nothing would be trained")
        if self.optimizer == "muon" and self.strategy == "fsdp":
            raise UserError(
                "train.optimizer=muon needs whole matrices: train.strategy=ddp, or another "
                "optimiser"
            )


@dataclass(frozen=True)
class SearchConfig:
    """How an answer is found."""

    width: int = 5  # Beam width; 1 is greedy.
    length_penalty: float = 1.0  # A finished hypothesis is ranked by log-probability / length^this.
    patience: float = 1.0  # Stop at width × this finished hypotheses.
    limit_ratio: float = 2.0  # Longest answer, in source tokens × this + limit_extra.
    limit_extra: int = 20  # See limit_ratio.
    minimum: int = 0  # Shortest answer, in tokens.
    no_repeat: int = 0  # No n-gram of this size twice. 0: allowed.
    # The n-th best continuation of a hypothesis counts as n times this worse: n-best lists differ
    # more.
    diversity: float = 0.0
    # Weight of the coverage penalty: answers that leave parts of the source unread are worth less.
    coverage: float = 0.0
    precision: Literal["fp32", "bf16"] = "fp32"  # Of the weights, in decoding.
    batch_tokens: int = 4096  # Source tokens decoded together.
    split: bool = (
        True  # A text longer than any in training is answered in parts, cut at sentence ends.
    )


@dataclass(frozen=True)
class Config:
    """Everything a run needs to be repeated. Written as config.toml."""

    data: DataConfig = field(default_factory=DataConfig)
    text: TextConfig = field(default_factory=TextConfig)
    model: ModelConfig = field(default_factory=TransformerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    search: SearchConfig = field(default_factory=SearchConfig)

    def __post_init__(self) -> None:
        # An RNN asks on the CPU how long its sentences are, so no graph can hold its step.
        if isinstance(self.model, RNNConfig) and self.train.path in ("compiled", "captured"):
            raise UserError(
                f"train.path={self.train.path} needs model.kind=transformer: an RNN trains with "
                f"train.path=auto, plain or packed"
            )


AT_LEAST_ONE = {
    *(
        f"model.{n}"
        for n in (
            "width",
            "ffn",
            "heads",
            "embedding",
            "encoder_layers",
            "decoder_layers",
            "max_positions",
        )
    ),
    *(f"train.{n}" for n in ("accumulate", "evaluate_every", "save_every", "log_every", "keep")),
    *(
        "data.max_length",
        "data.batch_tokens",
        "text.size",
        "search.width",
        "search.batch_tokens",
        "model.relative_clip",
    ),
}
ELSEWHERE = dict.fromkeys(("search.beam", "search.beam_size", "search.num_beams"), "search.width")
"""Names that our settings have in other places, of which no spelling leads to ours."""
MODELS: dict[str, type[TransformerConfig] | type[RNNConfig]] = {
    "transformer": TransformerConfig,
    "rnn": RNNConfig,
}
SECTIONS: dict[str, Any] = {
    section.name: section.default_factory for section in dataclasses.fields(Config)
}


def build(settings: Mapping[str, Mapping[str, Any]]) -> Config:
    """Construct a Config; an unknown key names its nearest neighbour, a wrong value says what is
    allowed.
    """
    parts: dict[str, Any] = {}
    for section, values in settings.items():
        if section not in SECTIONS:
            raise UserError(f"no section {section}{nearest(section, SECTIONS)}")
        cls = SECTIONS[section]
        if section == "model":
            kind = values.get("kind", "transformer")
            if not isinstance(kind, str) or kind not in MODELS:
                raise UserError(f"model.kind={kind}: choose transformer or rnn")
            cls = MODELS[kind]
        hints = get_type_hints(cls)
        for name in (name for name in values if name not in hints):
            for other in MODELS if section == "model" else ():
                if name in get_type_hints(MODELS[other]):
                    raise UserError(
                        f"no setting model.{name} for model.kind={kind} (model.kind={other} has it)"
                    )
            meant = ELSEWHERE.get(f"{section}.{name}")
            hint = f"; did you mean {meant}?" if meant else nearest(name, hints, f"{section}.")
            raise UserError(f"no setting {section}.{name}{hint}")
        parts[section] = cls(
            **{n: _checked(v, hints[n], f"{section}.{n}") for n, v in values.items()}
        )
    return Config(**parts)


def _checked(value: Any, hint: Any, name: str) -> Any:
    origin = get_origin(hint)
    if origin is types.UnionType:  # may be left open
        return None if value is None else _checked(value, get_args(hint)[0], name)
    if (
        isinstance(value, str) and origin is not Literal and hint is not str
    ):  # from the command line
        with contextlib.suppress(tomllib.TOMLDecodeError):
            value = tomllib.loads(f"v = {value}")["v"]
    if isinstance(value, int | float) and value < (1 if name in AT_LEAST_ONE else 0):
        raise UserError(f"{name}={value}: must be at least {1 if name in AT_LEAST_ONE else 0}")
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{name}={value}: must be finite")
    if name.endswith("seed") and isinstance(value, int | float) and value >= 2**63:
        raise UserError(f"{name}={value}: must be less than 2^63")
    if name.endswith("dropout") and isinstance(value, int | float) and value >= 1:
        raise UserError(f"{name}={value}: must be less than 1")
    if origin is Literal:
        own_part = name in ("model.score", "model.position") and str(value).startswith("custom:")
        if value in get_args(hint) or own_part:
            return value
        raise UserError(f"{name}={value}: choose {', '.join(map(str, get_args(hint)))}")
    if origin is tuple and isinstance(value, list | tuple) and len(value) == len(get_args(hint)):
        return tuple(_checked(v, h, name) for v, h in zip(value, get_args(hint), strict=True))
    if origin is dict and isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bool):
        if hint is bool:
            return value
    elif hint in (float, str) and isinstance(value, int | float):
        return hint(value)
    elif hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    elif hint in (int, str) and isinstance(value, hint):
        return value
    wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}.get(
        hint, str(hint)
    )
    raise UserError(f"{name}={value}: must be {wanted}")


def merge(*layers: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Later layers win, field by field. A layer that changes model.kind drops the other kind's
    fields below it.
    """
    merged: Settings = {}
    for layer in layers:
        for section, values in layer.items():
            below = merged.setdefault(section, {})
            if (
                section == "model"
                and "kind" in values
                and values["kind"] != below.get("kind", "transformer")
            ):
                known = get_type_hints(MODELS.get(str(values["kind"]), TransformerConfig))
                for name in [n for n in below if n not in known or n == "kind"]:
                    del below[name]
            for asked, other in (("steps", "epochs"), ("batch_tokens", "batch_sentences")):
                if asked in values and other in below and other not in values:
                    below[other] = 0  # or the layer below would win over what was asked for
            if isinstance(below.get("options"), dict) and isinstance(
                values.get("options"), Mapping
            ):
                values = {**values, "options": {**below["options"], **values["options"]}}
            below.update(values)
    return merged


def parse_overrides(words: Iterable[str]) -> Settings:
    """`train.steps=100 data.options.complexity=3` -> settings, as text: the field says later what
    it means.
    """
    settings: Settings = {}
    for word in words:
        name, equals, text = word.partition("=")
        path = name.split(".")
        if not equals or len(path) < 2:
            raise UserError(
                f"{word!r} is not a setting: write section.name=value, such as train.steps=1000"
            )
        if path[0] not in SECTIONS:
            raise UserError(f"no section {path[0]}{nearest(path[0], SECTIONS)}")
        at: dict[str, Any] = settings.setdefault(path[0], {})
        for step in path[1:-1]:
            at = at.setdefault(step, {})
            if not isinstance(at, dict):
                raise UserError(f"{name}: {step} is a value, not a section")
        at[path[-1]] = text
    return settings


def read_toml(path: Path) -> Settings:
    """Settings of a TOML file."""
    try:
        loaded = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a TOML file: {error}") from None
    for section, values in loaded.items():
        if not isinstance(values, dict):
            advice = "put it under [data], [text], [model], [train] or [search]"
            raise UserError(f"{path}: {section} stands outside a section; {advice}")
    return loaded


def to_settings(config: Config) -> Settings:
    """Every field of every section, so that a written config never depends on later defaults."""
    return dataclasses.asdict(config)


def to_toml(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """TOML that reads back equal."""
    blocks = []
    for section, values in settings.items():
        tables = {n: v for n, v in values.items() if isinstance(v, Mapping)}
        lines = [
            f"[{section}]",
            *(f"{n} = {_toml(v)}" for n, v in values.items() if n not in tables and v is not None),
        ]
        for name, table in tables.items():
            lines += ["", f"[{section}.{name}]", *(f"{n} = {_toml(v)}" for n, v in table.items())]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return (
        '"' + "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in escaped) + '"'
    )


def load(path: Path) -> Config:
    """The Config of a run's config.toml."""
    return build(read_toml(path))
