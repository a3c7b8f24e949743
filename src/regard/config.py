"""Settings: frozen dataclasses, overridden by TOML files, overridden by `section.name=value`.

The field of a setting has its default, its help and the values it may take.
"""
# ruff: noqa: RUF009 - setting() returns a dataclass field, never a shared value

import dataclasses
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from regard.bounds import (
    Bounded,
    SettingSpec,
    draw_seed,
    from_text,
    is_none,
    setting,
    shown,
    specs_of,
)
from regard.bounds.fields import SEEDS
from regard.errors import UserError, nearest

Settings = dict[str, dict[str, Any]]
"""Values before a Config is built from them: section -> name -> value.

They come in layers, which are merged value by value.
"""

ScoreName = Literal["dot", "scaled_dot", "multiplicative", "additive"]
PositionName = Literal["none", "sinusoidal", "learned", "relative", "rotary", "alibi"]
TokenizerName = Literal["characters", "bytes", "words", "bpe", "unigram"]
Tie = Literal["none", "inputs", "target", "all"]
Objective = Literal["translate", "causal", "masked", "denoise"]
Documents = Literal["no", "auto", "line", "paragraph", "source"]
PatternName = Literal[
    "full", "window", "chunked", "bigbird", "linformer", "performer", "lsh", "routing"
]
WITH_GLOBAL_TOKENS = ("window", "bigbird")
"""Patterns that may have tokens which see all, and which all see."""
APPROXIMATE = ("linformer", "performer", "lsh", "routing")
"""Patterns that compute something cheaper than attention, and near to it."""
BOTH_WAYS = ("linformer", "lsh", "routing")
"""Of these, those whose every token depends on all others, later ones included."""


@dataclass(frozen=True)
class DataConfig(Bounded):
    """Training data: where pairs come from, and how they are split and batched."""

    section: ClassVar[str] = "data"

    path: str = setting("", "Training data: a built-in task, a named corpus, a file or a folder.")
    source: str = setting(
        "", "Source: column (name or number), JSON key (a.b: nested), TMX language or file suffix."
    )
    target: str = setting(
        "", "Target: column (name or number), JSON key (a.b: nested), TMX language or file suffix."
    )
    target_file: str = setting(
        "", "File with the targets, one a line, if path has only the sources."
    )
    dev_file: str = setting("", "File with the validation pairs. Empty: split some off.")
    test_file: str = setting("", "File with the test pairs. Empty: split some off.")
    positions: str = setting(
        "", "Column or JSON key with a position for each source word. Empty: count them."
    )
    features: str = setting(
        "", "Column or JSON key with tags such as N;DAT;SG, each of which is a source token."
    )
    documents: Documents = setting(
        "no",
        "For language models: what a text is; source: that of each pair. auto: look at the file.",
    )
    header: Literal["auto", "yes", "no"] = setting(
        "auto", "Whether the first line of a CSV or TSV file names its columns; auto: look at it."
    )
    encoding: str = setting(
        "", "Encoding of the files, such as latin-1. Empty: UTF-8, or UTF-16 by its BOM."
    )
    limit: int = setting(
        0,
        "Use at most this many training pairs, taken evenly from the file. 0: all.",
        least=0,
        most=10**12,
    )
    order: Literal["random", "file"] = setting(
        "random",
        "How to split the pairs; file: the first data.limit train, then come dev, then test.",
    )
    group: Literal["source", "pair"] = setting(
        "source",
        "Keep pairs with the same source in one split; pair: those with the same target, too.",
    )
    dev: int = setting(
        0,
        "Pairs to hold out for validation if the data has no dev split. 0: 5 %, at most 2,000.",
        least=0,
        most=10**7,
        advice=" of pairs; for a file write data.dev_file={value}",
    )
    test: int = setting(
        0,
        "Pairs to hold out for testing if the data has no test split. 0: 5 %, at most 2,000.",
        least=0,
        most=10**7,
        advice=" of pairs; for a file write data.test_file={value}",
    )
    seed: int = setting(
        123456,
        "Random seed for the splits and for generated tasks; none: draw one.",
        least=0,
        below=SEEDS,
        advice=", or none to draw one",
    )
    options: dict[str, Any] = setting({}, "Options for a generated task, such as complexity.")
    max_length: int = setting(
        256, "Skip training pairs with more tokens than this on either side.", least=1, most=10**6
    )
    batch_tokens: int = setting(
        4096,
        "Tokens per batch, including padding, on the longer side. See batch_sentences.",
        least=1,
        most=10**7,
    )
    batch_sentences: int = setting(
        0, "Pairs per batch, whatever their length. 0: use batch_tokens.", least=0, most=10**6
    )
    batching: Literal["length", "random"] = setting(
        "length", "Put pairs of similar length into a batch (faster: little padding), or any pairs."
    )
    tokenized: bool = setting(
        False, "The text is already tokenized, so BLEU does not tokenize it again."
    )
    digest: str = setting(
        "", "SHA-256 of the encoded training data; written by training and checked on resume."
    )

    @property
    def bleu_tokenize(self) -> str:
        """The name of sacreBLEU's tokenizer for texts of this data; decided here for every BLEU."""
        return "none" if self.tokenized else "13a"


@dataclass(frozen=True)
class TextConfig(Bounded):
    """Tokenization: how text becomes tokens."""

    section: ClassVar[str] = "text"

    tokenizer: TokenizerName = setting("bpe", "How text is split into tokens.")
    target_tokenizer: Literal["same", TokenizerName] = setting(
        "same", "How the target is split into tokens; same: like the source."
    )
    size: int = setting(
        8000,
        "Maximum vocabulary size for the words, bpe and unigram tokenizers.",
        least=1,
        most=10**7,
    )
    min_count: int = setting(
        1, "How often a word or character must occur to be in the vocabulary.", least=1, most=10**9
    )
    reserved: int = setting(
        12,
        "Ids to reserve for <mask>, sentinels and tags, beside <pad>, <bos>, <eos> and <unk>.",
        least=0,
        most=12,
    )
    share: bool = setting(True, "Share one vocabulary between source and target.")
    dropout: float = setting(
        0.0, "Probability of skipping a BPE merge in training (BPE-dropout).", least=0, below=1
    )
    lowercase: bool = setting(
        False, "Lower-case sources and targets, and later every text to be translated."
    )
    spaced_punctuation: bool = setting(
        False, "Separate punctuation from words by spaces: he's calm. becomes he's calm ."
    )
    jamo: bool = setting(
        False, "Split the Hangul syllables of the source into letters; needs share=false."
    )


@dataclass(frozen=True)
class TransformerConfig(Bounded):
    """Transformer encoder-decoder (Vaswani et al. 2017)."""

    section: ClassVar[str] = "model"
    model_kind: ClassVar[str] = "transformer"

    kind: Literal["transformer"] = setting("transformer", "Model architecture.")
    width: int = setting(
        256, "Model dimension: width of the embeddings and of every layer.", least=1, most=2**16
    )
    ffn: int = setting(1024, "Hidden width of the feed-forward layers.", least=1, most=2**20)
    heads: int = setting(
        4, "Number of attention heads; must divide the width.", least=1, most=2**16
    )
    encoder_layers: int = setting(3, "Number of encoder layers.", least=1, most=1000)
    decoder_layers: int = setting(3, "Number of decoder layers.", least=1, most=1000)
    position: PositionName = setting(
        "sinusoidal", "Position encoding; custom:Name for your own class.", custom=True
    )
    score: ScoreName = setting(
        "scaled_dot",
        "Score of a query and a key in attention; custom:Name for your own class.",
        custom=True,
    )
    block: Literal["standard"] = setting(
        "standard",
        "How a layer combines its sublayers; custom:Name for your own class.",
        custom=True,
    )
    encoder_mask: Literal["none"] = setting(
        "none",
        "Which source tokens may look at which, besides the usual; custom:Name for your own.",
        custom=True,
    )
    decoder_mask: Literal["none"] = setting(
        "none",
        "Which target tokens may look at which earlier ones; custom:Name for your own.",
        custom=True,
    )
    cross_mask: Literal["none"] = setting(
        "none",
        "Which target tokens may look at which source tokens; custom:Name for your own.",
        custom=True,
    )
    pattern: PatternName = setting(
        "full", "For long texts: which source tokens see which. full: all of them."
    )
    decoder_pattern: PatternName = setting(
        "full", "The same for target tokens, which see earlier ones only."
    )
    window: int = setting(
        64,
        "Tokens on each side that a token sees (window); of a chunk or segment (other patterns).",
        least=1,
        most=10**6,
    )
    neighbors: int = setting(
        1, "Chunks on each side that a chunk sees (chunked). 0: itself only.", least=0, most=1000
    )
    random_blocks: int = setting(
        2, "Random chunks that a chunk sees (bigbird).", least=0, most=1000
    )
    global_tokens: int = setting(
        0,
        "First tokens that see all and that all see (window, bigbird).",
        least=0,
        most=10**4,
    )
    features: int = setting(
        256,
        "Random features (performer), or mixtures of keys to attend to (linformer).",
        least=1,
        most=10**5,
    )
    levels: int = setting(
        1,
        "Levels of the encoder. 2: segments of model.window tokens are read apart, then together.",
        least=1,
        most=2,
    )
    segment_layers: int = setting(
        2, "Number of layers that read the segments (model.levels=2).", least=1, most=1000
    )
    rounds: int = setting(
        2, "How many times tokens are hashed into buckets (lsh).", least=1, most=100
    )
    clusters: int = setting(
        32,
        "Clusters of tokens, of which a token sees the one that is nearest to it (routing).",
        least=1,
        most=10**4,
    )
    norm: Literal["layer", "rms", "none"] = setting("layer", "Normalization layer.")
    placement: Literal["pre", "post"] = setting(
        "pre", "Normalize before each sublayer (pre) or after its residual connection (post)."
    )
    final_norm: Literal["auto", "yes", "no"] = setting(
        "auto", "Normalize once more after the last layer. auto: only if placement=pre."
    )
    activation: Literal["relu", "gelu", "geglu", "swiglu"] = setting(
        "relu", "Activation of the feed-forward layers; geglu and swiglu are gated."
    )
    residual: bool = setting(True, "Use residual connections; set to false to see what they do.")
    feedforward: bool = setting(True, "Use feed-forward layers; false leaves attention only.")
    tie: Tie = setting(
        "all",
        "Share weights: target embeddings and output (target), source, too (all), or inputs only.",
    )
    scale_embeddings: bool = setting(True, "Multiply the embeddings by √width.")
    bias: bool = setting(True, "Use biases in the attention projections.")
    qkv_init: Literal["separate", "joint"] = setting(
        "separate",
        "Draw the first query, key and value matrices one by one, or as one, smaller (PyTorch).",
    )
    output_bias: bool = setting(False, "Use a bias in the output layer.")
    dropout: float = setting(
        0.1, "Dropout on the output of each sublayer and on the embeddings.", least=0, below=1
    )
    embedding_dropout: float | None = setting(
        None, "Dropout on the embeddings, if different from dropout.", least=0, below=1
    )
    attention_dropout: float = setting(0.0, "Dropout on the attention weights.", least=0, below=1)
    activation_dropout: float = setting(
        0.0, "Dropout inside the feed-forward layers.", least=0, below=1
    )
    max_positions: int = setting(
        1024, "Maximum sequence length with learned positions or linformer.", least=1, most=10**6
    )
    relative_clip: int = setting(
        16,
        "Maximum distance of relative positions; larger distances are treated alike.",
        least=1,
        most=10**5,
    )
    causal: bool = setting(
        False, "Causal encoder: attends only to earlier tokens, so it can encode a growing source."
    )
    wait: int = setting(
        0,
        "Wait-k: target token t = 0, 1, … sees wait + t source tokens. 0: all. Needs causal.",
        least=0,
        most=10**4,
    )

    @property
    def has_own_masks(self) -> bool:
        """Whether a mask is the user's own."""
        return {self.encoder_mask, self.decoder_mask, self.cross_mask} != {"none"}

    @property
    def has_patterns(self) -> bool:
        """Whether attention is not full, but sparse or approximate, somewhere."""
        return {self.pattern, self.decoder_pattern} != {"full"} or self.levels > 1

    @property
    def ends_with_norm(self) -> bool:
        """Whether there is a norm after the last layer."""
        if self.final_norm == "auto":
            return self.placement == "pre"
        return self.final_norm == "yes"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_heads()
        self._check_rotary()
        self._check_wait()
        self._check_patterns()

    def _check_heads(self) -> None:
        if self.width % self.heads:
            raise UserError(
                f"model.width={self.width} is not divisible by model.heads={self.heads}: "
                f"change one of them"
            )

    def _check_rotary(self) -> None:
        """Rotary positions turn pairs of dimensions, and only a dot product sees the angle."""
        if self.position != "rotary":
            return
        if self.score not in ("dot", "scaled_dot"):
            raise UserError(
                f"model.position=rotary needs model.score=dot or scaled_dot, not {self.score}"
            )
        if (self.width // self.heads) % 2:
            raise UserError(
                f"model.position=rotary needs an even width per head, not "
                f"{self.width // self.heads}: change model.width or model.heads"
            )

    def _check_wait(self) -> None:
        if self.wait and not self.causal:
            raise UserError(
                f"model.wait={self.wait} needs a causal encoder: set model.causal=true as well"
            )

    def _check_patterns(self) -> None:
        self._check_levels()
        self._check_masks_of_patterns()
        patterns = {self.pattern, self.decoder_pattern}
        if self.global_tokens and self.has_patterns and not patterns & set(WITH_GLOBAL_TOKENS):
            raise UserError(
                f"model.global_tokens={self.global_tokens} needs model.pattern or "
                f"model.decoder_pattern to be {' or '.join(WITH_GLOBAL_TOKENS)}"
            )
        for name in ("pattern", "decoder_pattern"):
            if getattr(self, name) in APPROXIMATE:
                self._check_approximation(name)

    def _check_approximation(self, name: str) -> None:
        """An approximation computes softmax(q·k) v for all heads alike, and nothing else."""
        given = f"model.{name}={getattr(self, name)}"
        looks_back = name == "decoder_pattern" or self.causal
        if looks_back and getattr(self, name) in BOTH_WAYS:
            side = "a decoder" if name == "decoder_pattern" else "a causal encoder"
            raise UserError(
                f"{given} mixes every token with later ones, which {side} must not see: use "
                f"window, chunked, bigbird or performer"
            )
        if self.score == "additive" or self.score.startswith("custom:"):
            raise UserError(f"{given} needs model.score=dot, scaled_dot or multiplicative")
        if self.position in ("relative", "alibi") or self.position.startswith("custom:"):
            raise UserError(
                f"{given} does not work with model.position={self.position}, which may add to the "
                f"score of each pair of tokens: use sinusoidal, learned, rotary or none"
            )
        if self.attention_dropout:
            raise UserError(f"{given} has no weights to drop: set model.attention_dropout=0")

    def _check_levels(self) -> None:
        """The levels have a pattern of their own, and a segment knows all of its tokens."""
        if self.levels == 1:
            return
        refused = {
            "pattern": (self.pattern, "full"),
            "encoder_mask": (self.encoder_mask, "none"),
            "causal": (self.causal, False),
        }
        for name, (value, needed) in refused.items():
            if value != needed:
                told = str(needed).lower()
                raise UserError(
                    f"model.levels={self.levels} does not work with model.{name}="
                    f"{str(value).lower() if value is True else value}: set model.{name}={told}"
                )

    def _check_masks_of_patterns(self) -> None:
        """A mask of the user's own is a whole matrix, which is to be avoided in long texts."""
        for side, pattern in (("encoder", self.pattern), ("decoder", self.decoder_pattern)):
            mask = getattr(self, f"{side}_mask")
            if pattern != "full" and mask != "none":
                name = "pattern" if side == "encoder" else "decoder_pattern"
                advice = f"set model.{name}=full"
                if pattern not in APPROXIMATE:
                    advice = f"let your own mask hide what the pattern would, and {advice}"
                raise UserError(
                    f"model.{name}={pattern} does not work with model.{side}_mask={mask}: {advice}"
                )


@dataclass(frozen=True)
class RNNConfig(Bounded):
    """Recurrent encoder-decoder, with or without attention.

    Attention is before the cell (Bahdanau et al. 2015) or after it (Luong et al. 2015).
    """

    section: ClassVar[str] = "model"
    model_kind: ClassVar[str] = "rnn"

    kind: Literal["rnn"] = setting("rnn", "Model architecture.")
    cell: Literal["rnn", "gru", "lstm", "linear"] = setting(
        "lstm", "Kind of recurrent cell; linear: an RNN without tanh, for experiments."
    )
    width: int = setting(256, "Width of the decoder state.", least=1, most=2**16)
    embedding: int = setting(256, "Width of the embeddings.", least=1, most=2**16)
    encoder_layers: int = setting(1, "Number of encoder layers.", least=1, most=1000)
    decoder_layers: int = setting(1, "Number of decoder layers.", least=1, most=1000)
    bidirectional: bool = setting(True, "Use a bidirectional encoder.")
    attention: Literal["before", "after", "none"] = setting(
        "after", "Attend to the source before the recurrent cell, after it, or not at all."
    )
    score: ScoreName = setting(
        "multiplicative",
        "Score of a decoder and an encoder state in attention; custom:Name for your own class.",
        custom=True,
    )
    score_width: int = setting(
        0, "Hidden width of the additive score. 0: the width of the decoder.", least=0, most=2**16
    )
    cross_mask: Literal["none"] = setting(
        "none",
        "Which target tokens may look at which source tokens; custom:Name for your own.",
        custom=True,
    )
    bridge: Literal["top", "layers"] = setting(
        "top",
        "First decoder states: made of the encoder's top layer, or those of its layers unchanged.",
    )
    readout: Literal["tanh", "state", "context"] = setting(
        "tanh",
        "The output layer reads tanh(W[context; state]), the state, or [context; state] (context).",
    )
    tie: Tie = setting(
        "none",
        "Share weights, as in the Transformer; target and all need embedding = width.",
    )
    dropout: float = setting(
        0.2, "Dropout on embeddings, between layers and before the output.", least=0, below=1
    )
    fast: bool = setting(
        True, "Use PyTorch's RNNs; false: readable ones with the same results, but slower."
    )
    wait: int = setting(
        0,
        "Wait-k: target token t = 0, 1, … sees wait + t source tokens. 0: all.",
        least=0,
        most=10**4,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_readout()
        self._check_wait()
        self._check_mask()
        self._check_tie()
        self._check_bridge()
        self._check_directions()

    def _check_readout(self) -> None:
        if self.attention == "after" and self.readout == "state":
            raise UserError(
                "model.readout=state never looks at the source if model.attention=after: choose "
                "another readout, or model.attention=before"
            )
        if self.attention == "none" and self.readout == "context":
            raise UserError("model.readout=context needs model.attention=before or after")

    def _check_wait(self) -> None:
        if self.wait and self.bidirectional:
            raise UserError(
                f"model.wait={self.wait} needs an encoder that reads in one direction: set "
                f"model.bidirectional=false as well"
            )

    def _check_mask(self) -> None:
        if self.cross_mask != "none" and self.attention == "none":
            raise UserError("model.cross_mask needs model.attention=before or after")

    def _check_tie(self) -> None:
        if self.tie not in ("target", "all"):
            return
        if self.readout == "context":
            raise UserError(
                f"model.tie={self.tie} cannot go with model.readout=context: its output layer is "
                f"twice as wide as the embeddings; set model.tie=none or inputs"
            )
        if self.embedding != self.width:
            raise UserError(
                f"model.tie={self.tie} needs model.embedding = model.width = {self.width}"
            )

    def _check_bridge(self) -> None:
        if self.bridge == "layers" and self.encoder_layers != self.decoder_layers:
            raise UserError(
                f"model.bridge=layers needs as many decoder layers as encoder layers, not "
                f"{self.decoder_layers} and {self.encoder_layers}"
            )

    def _check_directions(self) -> None:
        if self.bidirectional and self.width % 2:
            raise UserError(
                f"model.width={self.width} must be even for a bidirectional encoder, in which each "
                f"direction has half the width"
            )


@dataclass(frozen=True)
class CustomConfig(Bounded):
    """A model of the user's own, called with the sizes of both vocabularies and the options."""

    section: ClassVar[str] = "model"
    model_kind: ClassVar[str] = "custom"

    kind: str = setting("custom:Model", "Model architecture: your own class.")
    options: dict[str, Any] = setting({}, "Arguments of your model, by name.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.kind.startswith("custom:"):
            raise UserError(f"model.kind={shown(self.kind)}: must be custom:Name")
        # From the command line they come as text.
        options = {name: _value_or_text(value) for name, value in self.options.items()}
        object.__setattr__(self, "options", options)
        super().__post_init__()  # once more: what the texts say


ModelConfig = TransformerConfig | RNNConfig | CustomConfig


@dataclass(frozen=True)
class TrainConfig(Bounded):
    """Training: optimizer, schedule, evaluation and checkpoints."""

    section: ClassVar[str] = "train"

    objective: Objective = setting(
        "translate",
        "What to learn: to translate pairs, or of texts to go on (causal), fill gaps or denoise.",
    )
    mask_rate: float = setting(
        0.15,
        "Share of the tokens of a text that are masked; with denoise 0 leaves it as it is.",
        least=0,
        below=1,
    )
    mask_span: float = setting(
        3.0, "Mean number of tokens that one <mask> replaces (denoise).", least=1, most=1000
    )
    epochs: float = setting(0, "Passes over the training data. 0: use steps.", least=0, most=10**6)
    steps: int = setting(10000, "Number of training steps, if epochs is 0.", least=0, below=10**8)
    minutes: float = setting(
        0,
        "Train for this many minutes; with wsd the rate falls in time for it. 0: no time limit.",
        least=0,
        most=10**7,
    )
    trials: int = setting(
        2,
        "Number of plans to try briefly if the data suits more than one. 0 or 1: try none.",
        least=0,
        most=8,
    )
    seed: int = setting(
        1,
        "Random seed for initial weights, the order of the data and dropout; none: draw one.",
        least=0,
        below=SEEDS,
        advice=", or none to draw one",
    )
    optimizer: Literal["adamw", "adam", "sgd", "muon"] = setting(
        "adamw", "Optimizer; muon: Muon for the matrices of the layers, AdamW for everything else."
    )
    rate: float = setting(1e-3, "Peak learning rate.", least=0, most=1000)
    schedule: Literal["constant", "inverse_sqrt", "cosine", "linear", "wsd"] = setting(
        "inverse_sqrt",
        "Learning rate schedule after the warmup; wsd: constant, then to zero at the end.",
    )
    warmup: int = setting(
        400, "Steps over which the learning rate rises linearly from zero.", least=0, most=10**8
    )
    decay_start: int = setting(
        0,
        "For wsd: step at which the rate begins to fall. 0: on a plateau, or for the last fifth.",
        least=0,
        below=10**8,
    )
    decay_end: int = setting(
        0,
        "For wsd: step at which the rate is zero and training ends. 0: decided in training.",
        least=0,
        most=10**8,
    )
    betas: tuple[float, float] = setting((0.9, 0.98), "Betas for Adam and AdamW.", least=0, below=1)
    weight_decay: float = setting(
        0.0, "Weight decay for AdamW, applied to matrices only.", least=0, most=1000
    )
    clip: float = setting(
        1.0, "Clip the gradient norm to this value. 0: no clipping.", least=0, most=10**9
    )
    smoothing: float = setting(0.1, "Label smoothing.", least=0, below=1)
    rdrop: float = setting(
        0.0,
        "Weight of the R-Drop loss: two passes with different dropout should agree. 0: off.",
        least=0,
        most=1000,
    )
    ema: float = setting(
        0.0,
        "Decay of a moving average of the weights, smaller at first, used to evaluate and decode. "
        "0: off.",
        least=0,
        below=1,
    )
    spike: float = setting(
        6.0,
        "Skip steps whose loss or gradient norm is this many sigmas above recent ones. 0: off.",
        least=0,
        most=10**6,
    )
    accumulate: int = setting(1, "Batches per update (gradient accumulation).", least=1, most=10**4)
    precision: Literal["auto", "fp32", "bf16"] = setting(
        "auto", "Training precision; auto: bf16 on a GPU that supports it, otherwise fp32."
    )
    device: str = setting(
        "auto", "Device: auto (a CUDA GPU if there is one), cpu, cuda, cuda:1 (second GPU) or mps."
    )
    path: Literal["auto", "plain", "packed", "compiled", "captured"] = setting(
        "auto", "How a GPU computes a training step; changes the speed, not the result."
    )
    strategy: Literal["ddp", "fsdp"] = setting(
        "ddp", "Under torchrun: each process holds the whole model (ddp) or a shard of it (fsdp)."
    )
    threads: int = setting(
        0,
        "CPU threads. 0: PyTorch's default, recorded here because results depend on it.",
        least=0,
        most=1024,
    )
    evaluate_every: int = setting(
        500, "Steps between evaluations on the validation set.", least=1, most=10**12
    )
    save_every: int = setting(500, "Steps between checkpoints.", least=1, most=10**12)
    log_every: int = setting(50, "Steps between log entries.", least=1, most=10**12)
    patience: int = setting(
        0,
        "Evaluations without improvement until training stops, or with wsd decays. 0: off.",
        least=0,
        most=10**9,
    )
    keep: int = setting(
        3, "Number of latest checkpoints to keep, besides the best.", least=1, most=10**9
    )
    milestones: int = setting(
        0,
        "Keep this many early checkpoints as well: at 1/2, 1/4, 1/8 … of the steps.",
        least=0,
        most=64,
    )
    average: int = setting(
        0,
        "Average this many of the last checkpoints if that improves validation. 0: off.",
        least=0,
        most=1000,
    )
    metric: Literal["loss", "accuracy", "exact_match", "bleu", "step"] = setting(
        "loss",
        "Validation metric that selects the best checkpoint. step: the last one. "
        "custom:Name: your own.",
        custom=True,
    )
    callback: Literal["none"] = setting(
        "none",
        "Function called at each log entry; custom:Name for your own.",
        custom=True,
    )
    start_from: str = setting(
        "", "Run to fine-tune: training starts from its weights and uses its tokenizer."
    )
    tensorboard: Literal["auto", "on", "off"] = setting(
        "auto", "Write TensorBoard event files; auto: if TensorBoard is installed."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_length()
        self._check_decay()
        self._check_optimizer()

    def _check_length(self) -> None:
        if not self.epochs and not self.steps:
            raise UserError("train.steps=0 and train.epochs=0: nothing to train; set one of them")

    def _check_decay(self) -> None:
        if self.average and self.schedule == "wsd":
            raise UserError(
                "train.average needs another schedule than wsd, whose last weights are the best "
                "already; leave it out, or set train.ema"
            )
        if self.decay_start == self.decay_end == 0:
            return
        if self.schedule != "wsd":
            raise UserError(
                f"train.decay_start and train.decay_end need train.schedule=wsd; it is "
                f"{self.schedule}"
            )
        if not self.decay_start < self.decay_end:
            raise UserError(
                f"train.decay_start={self.decay_start} and train.decay_end={self.decay_end}: the "
                f"end must come after the start; set both, or neither"
            )

    def _check_optimizer(self) -> None:
        if self.optimizer == "muon" and self.strategy == "fsdp":
            raise UserError(
                "train.optimizer=muon does not work with train.strategy=fsdp: use "
                "train.strategy=ddp or another optimizer"
            )


@dataclass(frozen=True)
class SearchConfig(Bounded):
    """Decoding: beam search, length limits and penalties."""

    section: ClassVar[str] = "search"

    width: int = setting(5, "Beam width; 1 is greedy search.", least=1, most=10**4)
    length_penalty: float = setting(
        1.0, "Hypotheses are ranked by log-probability / length^length_penalty.", least=0, most=10
    )
    patience: float = setting(
        1.0, "Stop when width × patience hypotheses are finished.", least=0, most=1000
    )
    limit_ratio: float = setting(
        2.0, "Maximum answer length: source tokens × limit_ratio + limit_extra.", least=0, most=1000
    )
    limit_extra: int = setting(
        20, "Tokens added to the maximum answer length; see limit_ratio.", least=0, most=10**6
    )
    limit: int = setting(
        0,
        "Maximum answer length in tokens, whatever the source. 0: only limit_ratio counts.",
        least=0,
        most=10**6,
    )
    minimum: int = setting(0, "Minimum answer length, in tokens.", least=0, most=10**6)
    no_repeat: int = setting(0, "Never repeat an n-gram of this size. 0: off.", least=0, most=10**4)
    diversity: float = setting(
        0.0,
        "Diversity penalty per rank among the continuations of a hypothesis, for n-best lists.",
        least=0,
        most=1000,
    )
    coverage: float = setting(
        0.0,
        "Weight of the coverage penalty, for answers that skip parts of the source.",
        least=0,
        most=1000,
    )
    precision: Literal["fp32", "bf16"] = setting(
        "fp32", "Precision of the weights in decoding; on a CPU, bf16 is faster only with AMX."
    )
    batch_tokens: int = setting(
        4096,
        "Most source tokens per batch in decoding. A CPU decodes fewer where that is as fast.",
        least=1,
        most=10**7,
    )
    split: bool = setting(
        True, "Split texts longer than any in training at sentence ends and join the answers."
    )

    def most_tokens(self, source_tokens: int, extra: int = 0) -> int:
        """The most tokens of an answer to a source of so many.

        extra: tokens beyond those of limit_ratio and limit_extra.
        """
        tokens = int(source_tokens * self.limit_ratio) + self.limit_extra + extra
        return min(tokens, self.limit) if self.limit else tokens


@dataclass(frozen=True)
class Config:
    """All settings of a run, so that it can be repeated. Saved as config.toml."""

    data: DataConfig = field(default_factory=DataConfig)
    text: TextConfig = field(default_factory=TextConfig)
    model: ModelConfig = field(default_factory=TransformerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    search: SearchConfig = field(default_factory=SearchConfig)

    def __post_init__(self) -> None:
        self._check_sections()
        self._check_path()
        self._check_positions()
        self._check_features()
        self._check_objective()

    def _check_sections(self) -> None:
        for name in SECTIONS:
            section = getattr(self, name)
            if not isinstance(section, Bounded) or section.section != name:
                raise UserError(
                    f"Config({name}={shown(section)}): pass an object such as "
                    f"regard.config.{SECTIONS[name].__name__}()"
                )

    def _check_path(self) -> None:
        """An RNN needs the lengths of its sentences on the CPU, so no graph can hold its step.

        Nor does anybody know what the user's own masks do.
        """
        if self.train.path not in ("compiled", "captured"):
            return
        if isinstance(self.model, TransformerConfig) and self.model.has_own_masks:
            raise UserError(
                f"train.path={self.train.path} does not support your own masks: use "
                f"train.path=auto or plain"
            )
        if isinstance(self.model, TransformerConfig) and self.model.has_patterns:
            raise UserError(
                f"train.path={self.train.path} does not support model.pattern, "
                f"model.decoder_pattern and model.levels: use train.path=auto or plain"
            )
        if not isinstance(self.model, TransformerConfig):
            raise UserError(
                f"train.path={self.train.path} needs model.kind=transformer: other models "
                f"train with train.path=auto, plain or packed"
            )

    def _check_positions(self) -> None:
        """Positions that nothing would read are a mistake."""
        if not self.data.positions:
            return
        given = f"data.positions={shown(self.data.positions)}"
        if isinstance(self.model, RNNConfig):
            raise UserError(f"{given}: an RNN has no positions; set model.kind=transformer")
        if isinstance(self.model, TransformerConfig):
            unused = self.model.position == "none" and not self.model.has_own_masks
            if unused:
                raise UserError(f"{given} has no effect with model.position=none: set another one")
        if self.text.dropout:
            raise UserError(f"{given} does not work with text.dropout: set text.dropout=0")
        if self.train.path in ("compiled", "captured"):
            raise UserError(
                f"{given} does not work with train.path={self.train.path}: use train.path=auto or "
                f"plain"
            )

    def _check_features(self) -> None:
        """Tags are not words, so they have no positions of the user's own."""
        if self.data.features and self.data.positions:
            raise UserError(
                f"data.features={shown(self.data.features)} does not work with data.positions: "
                f"leave one of them out"
            )

    def _check_objective(self) -> None:
        """What a language model does without, and what it needs."""
        objective = self.train.objective
        given = f"train.objective={objective}"
        if objective == "translate":
            if self.data.documents != "no":
                raise UserError(
                    f"data.documents={self.data.documents} is for language models: set "
                    f"train.objective=causal, masked or denoise as well"
                )
            return
        if self.data.documents == "no":
            raise UserError(f"{given} learns from texts: set data.documents=auto as well")

        self._check_texts(given)
        if objective in ("masked", "denoise") and not self.text.reserved:
            raise UserError(f"{given} needs an id for <mask>: set text.reserved=1 or more")
        if objective in ("causal", "masked"):
            self._check_one_sided(given)
        if objective == "masked" and isinstance(self.model, RNNConfig):
            raise UserError(
                f"{given} needs an encoder that looks both ways: model.kind=transformer"
            )

    def _check_texts(self, given: str) -> None:
        """Refuse what only pairs have."""
        if self.train.metric not in ("loss", "accuracy", "step"):
            raise UserError(
                f"{given} has no answers to compare with references, which train.metric="
                f"{shown(self.train.metric)} needs: set train.metric=loss, accuracy or step"
            )
        refused = {
            "data.positions": self.data.positions,
            "data.features": self.data.features,
            "data.target_file": self.data.target_file,
            "text.dropout": self.text.dropout,
        }
        for name, value in refused.items():
            if value:
                raise UserError(f"{given} does not work with {name}={shown(value)}: leave it out")
        if isinstance(self.model, CustomConfig):
            raise UserError(f"{given} needs model.kind=transformer or rnn")

    def _check_one_sided(self, given: str) -> None:
        """A decoder or an encoder alone writes no answers, and has nothing to wait for."""
        assert not isinstance(self.model, CustomConfig)
        if self.model.wait:
            raise UserError(f"{given} has no source to wait for: set model.wait=0")
        if self.train.path not in ("auto", "plain"):
            raise UserError(f"{given} trains with train.path=auto or plain")


ELSEWHERE = {
    "search.beam": "search.width",
    "search.beam_size": "search.width",
    "search.num_beams": "search.width",
    "train.lr": "train.rate",
    "train.learning_rate": "train.rate",
    "train.max_steps": "train.steps",
    "train.max_epochs": "train.epochs",
    "train.num_epochs": "train.epochs",
    "data.batch_size": "data.batch_sentences",
    "model.d_model": "model.width",
    "model.hidden_size": "model.width",
}
"""Names that our settings have in other toolkits, none of which is spelled like ours."""
MODELS: dict[str, type[TransformerConfig] | type[RNNConfig]] = {
    "transformer": TransformerConfig,
    "rnn": RNNConfig,
}
SECTIONS: dict[str, Any] = {
    section.name: section.default_factory for section in dataclasses.fields(Config)
}


# ---- what there is to set ----


def all_settings() -> list[SettingSpec]:
    """Every setting in the order of config.toml; those of each model one after the other."""
    specs: list[SettingSpec] = []
    for section, section_class in SECTIONS.items():
        classes = MODELS.values() if section == "model" else [section_class]
        for class_of_kind in classes:
            specs += specs_of(class_of_kind).values()
    return specs


def full_names(name: str) -> list[str]:
    """The settings that a name without its section may mean: steps -> train.steps."""
    bare = name.replace("-", "_")
    ours = [spec.full_name for spec in all_settings() if spec.name == bare]
    theirs = [ours for theirs, ours in ELSEWHERE.items() if theirs.partition(".")[2] == bare]
    return list(dict.fromkeys([*ours, *theirs]))


# ---- from settings to a Config ----


def build(settings: Mapping[str, Mapping[str, Any]]) -> Config:
    """Construct a Config.

    For an unknown name the error suggests the nearest one; for a wrong value it says what is
    allowed.
    """
    sections: dict[str, Any] = {}
    for section, values in _with_documents(settings).items():
        section_class = _class_of(section, values)
        known = specs_of(section_class)
        for name in values:
            if name not in known:
                raise _unknown(section, name, values, known)

        sections[section] = section_class(**values)
    return Config(**sections)


def _with_documents(settings: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    """The settings, where a language model reads texts even if nobody said so."""
    train = settings.get("train", {})
    data = settings.get("data", {})
    if not isinstance(train, Mapping) or not isinstance(data, Mapping):
        return settings  # which is refused
    if train.get("objective", "translate") == "translate" or "documents" in data:
        return settings
    return {"data": {}, **settings} | {"data": {**data, "documents": "auto"}}


def _class_of(section: str, values: Mapping[str, Any]) -> Any:
    """The dataclass of a section; that of the model depends on its kind."""
    if section not in SECTIONS:
        name = shown(section)
        raise UserError(f"no section {name}{nearest(name, SECTIONS)}")
    if not isinstance(values, Mapping):
        raise UserError(f"{section}={shown(values)}: must be settings by name, not one value")
    if section != "model":
        return SECTIONS[section]

    kind = values.get("kind", "transformer")
    if isinstance(kind, str) and kind.startswith("custom:"):
        return CustomConfig
    if not isinstance(kind, str) or kind not in MODELS:
        raise UserError(
            f"model.kind={shown(kind)}: choose transformer or rnn, or custom:Name for your own "
            f"class"
        )
    return MODELS[kind]


def _unknown(
    section: str, name: Any, values: Mapping[str, Any], known: Mapping[str, SettingSpec]
) -> UserError:
    """The error that there is no such setting: another model has it, or something is like it."""
    if section == "model":
        for other, other_class in MODELS.items():
            if name in specs_of(other_class):
                kind = values.get("kind", "transformer")
                return UserError(
                    f"no setting model.{name} for model.kind={shown(kind)} (model.kind={other} has "
                    f"it)"
                )

    name = shown(name)
    meant = ELSEWHERE.get(f"{section}.{name}")
    if meant:
        return UserError(f"no setting {section}.{name}; did you mean {meant}?")
    return UserError(f"no setting {section}.{name}{nearest(name, known, f'{section}.')}")


def _value_or_text(value: Any) -> Any:
    """What a text says as TOML, such as a number; a text that is no TOML stays one, as do dates."""
    if not isinstance(value, str):
        return value
    try:
        parsed = from_text(value)
    except ValueError:
        return value
    return parsed if isinstance(parsed, str | int | float | list) else value


# ---- layers of settings ----


def merge(*layers: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Merge layers of settings, value by value; later layers win.

    A layer that changes model.kind drops what only the other kind of model has.
    """
    merged: Settings = {}
    for layer in layers:
        for section, values in layer.items():
            below = merged.setdefault(section, {})
            if section == "model":
                _drop_other_kind(below, values)
            _drop_alternatives(below, values)

            old_options = below.get("options")
            below.update(values)
            if isinstance(old_options, dict) and isinstance(values.get("options"), Mapping):
                below["options"] = {**old_options, **values["options"]}
    return merged


def _drop_other_kind(below: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Where `values` asks for another kind of model, drop what only the old kind has."""
    if "kind" not in values or values["kind"] == below.get("kind", "transformer"):
        return

    kind = values["kind"] if isinstance(values["kind"], str) else ""  # which build refuses
    new_class = CustomConfig if kind.startswith("custom:") else MODELS.get(kind, TransformerConfig)
    known = specs_of(new_class)
    for name in list(below):
        if name not in known or name == "kind":
            del below[name]


def _drop_alternatives(below: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Epochs below would win over the steps that `values` asks for, and sentences over tokens."""
    for asked, other in (("steps", "epochs"), ("batch_tokens", "batch_sentences")):
        if asked in values and other in below and other not in values:
            below[other] = 0


def drawn_seeds(given: Mapping[str, Mapping[str, Any]]) -> Settings:
    """A layer of settings with a new number for each seed that is `none`."""
    drawn: Settings = {}
    for spec in all_settings():
        values = given.get(spec.section, {})
        if spec.is_seed and spec.name in values and is_none(values[spec.name]):
            drawn.setdefault(spec.section, {})[spec.name] = draw_seed()
    return drawn


def parse_overrides(words: Iterable[str]) -> Settings:
    """Settings from words such as `train.steps=100` and `data.options.complexity=3`.

    The values stay text; `build` converts them to the types of their fields.
    """
    settings: Settings = {}
    for word in words:
        name, equals, text = word.partition("=")
        path = name.split(".")
        if not equals or len(path) < 2:
            meant = [f"{full}={shown(text)}" for full in full_names(name)] if equals else []
            advice = " or ".join(meant) or "section.name=value, such as train.steps=1000"
            raise UserError(f"{shown(word)!r} is not a setting: write {advice}")
        if path[0] not in SECTIONS:
            section = shown(path[0])
            raise UserError(f"no section {section}{nearest(section, SECTIONS)}")
        if len(path) > 3:
            raise UserError(
                f"no setting {shown(name)}: only options have names of their own, such as "
                f"data.options.complexity=3"
            )

        table: dict[str, Any] = settings.setdefault(path[0], {})
        for step in path[1:-1]:
            table = table.setdefault(step, {})
            if not isinstance(table, dict):
                raise UserError(f"{shown(name)}: {shown(step)} is a value, not a section")
        table[path[-1]] = text
    return settings


LARGEST_FILE = 2**16  # bytes of a TOML file; a written config.toml has about 3,000
LONGEST_LINE = 2**13  # characters of one of its lines: tomllib takes the square of a long key


def read_toml(path: Path) -> Settings:
    """Settings of a TOML file."""
    loaded = load_toml(path)
    for section, values in loaded.items():
        if not isinstance(values, dict):
            advice = "put it under [data], [text], [model], [train] or [search]"
            raise UserError(f"{path}: {shown(section)} is not in a section; {advice}")
    return loaded


def load_toml(path: Path) -> dict[str, Any]:
    """The content of a small TOML file, whatever it is about."""
    text = _read_small_text(path)
    try:
        return tomllib.loads(text)
    except ValueError as error:  # also a number of more than 4,300 digits
        raise UserError(f"{path}: not a TOML file: {str(error)[:100]}") from None
    except RecursionError:  # [[[[…
        raise UserError(f"{path}: not a file of settings: values are nested too deeply") from None


def _read_small_text(path: Path) -> str:
    """The text of a file that is no folder, no pipe and not too long to hold settings."""
    try:
        if path.exists() and not path.is_file():
            kind = "a folder" if path.is_dir() else "not a regular file"
            raise UserError(f"{path}: {kind}; settings are read from a TOML file")
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise UserError(f"{path}: {(error.strerror or str(error)).lower()}") from None

    if len(content) > LARGEST_FILE:
        raise UserError(f"{path}: more than {LARGEST_FILE:,} bytes; not a file of settings")
    try:
        text = content.decode("utf-8-sig")  # Windows begins a file with a byte order mark
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a TOML file: {error}") from None
    if max(map(len, text.split("\n"))) > LONGEST_LINE:
        raise UserError(f"{path}: has a line of more than {LONGEST_LINE:,} characters")
    return text


def to_settings(config: Config) -> Settings:
    """Every field of every section, so that a written config never depends on later defaults."""
    return dataclasses.asdict(config)


def to_toml(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """TOML that reads back equal."""
    blocks = []
    for section, values in settings.items():
        tables = {name: value for name, value in values.items() if isinstance(value, Mapping)}
        lines = [f"[{section}]"]
        for name, value in values.items():
            if name not in tables and value is not None:  # TOML has no None: it is left out
                lines.append(f"{name} = {_toml(value)}")

        for name, table in tables.items():
            lines += ["", f"[{section}.{name}]"]
            lines += [f"{key} = {_toml(value)}" for key, value in table.items()]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _toml(value: Any) -> str:
    """A value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"

    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    characters = [_escaped_control(character) for character in escaped]
    return '"' + "".join(characters) + '"'


def _escaped_control(character: str) -> str:
    """The character, escaped if it is a control character: TOML allows none in a text."""
    if character < " " or character == "\x7f":
        return f"\\u{ord(character):04x}"
    return character


def load_config(path: Path) -> Config:
    """The Config of a run's config.toml."""
    return build(read_toml(path))
