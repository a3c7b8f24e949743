"""How large a model will be, told from its config before anything is allocated."""

import torch

from regard.config import CustomConfig, ModelConfig, Objective, RNNConfig, TransformerConfig
from regard.errors import UserError
from regard.models.parts import is_own
from regard.nn.devices import free_memory

WEIGHT = 4  # bytes of a parameter: models are made in float32
CPU = torch.device("cpu")


def check_size(
    config: ModelConfig,
    source_size: int,
    target_size: int,
    *,
    objective: Objective = "translate",
    copies: int = 1,
    device: torch.device = CPU,
) -> None:
    """Refuse a model that does not fit into the memory of a device.

    objective: what it is to learn. copies: how many numbers are kept for each parameter, such as
    its gradient.
    """
    count = count_parameters(config, source_size, target_size, objective)
    needed = count * copies * WEIGHT
    room = free_memory(device)
    if needed <= room:
        return
    purpose = "" if copies == 1 else " to train"
    raise UserError(
        f"the model would have {count:,} parameters and need {_gigabytes(needed)}{purpose}, but "
        f"{device} has {_gigabytes(room)} free: lower model.width or the number of layers"
    )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"


def count_parameters(
    config: ModelConfig,
    source_size: int,
    target_size: int,
    objective: Objective = "translate",
) -> int:
    """The parameters of the model that `build_model` makes; those of the user's own parts are 0.

    Whether it has such: `has_own_parts`.
    """
    if isinstance(config, CustomConfig):
        return 0
    if isinstance(config, RNNConfig):
        if objective == "causal":
            return _rnn_decoder(config, target_size)
        return _rnn(config, source_size, target_size)
    return _transformer(config, source_size, target_size, objective)


def has_own_parts(config: ModelConfig) -> bool:
    """Whether parts are the user's own, so that nobody knows how many parameters they have."""
    if isinstance(config, CustomConfig) or is_own(config.score):
        return True
    return isinstance(config, TransformerConfig) and (
        is_own(config.position) or is_own(config.block)
    )


def _transformer(
    config: TransformerConfig, source_size: int, target_size: int, objective: Objective
) -> int:
    width = config.width
    has_encoder = objective != "causal"
    has_decoder = objective != "masked"
    segment_layers = config.segment_layers if config.levels > 1 and has_encoder else 0
    encoder_layers = config.encoder_layers if has_encoder else 0
    decoder_layers = config.decoder_layers if has_decoder else 0
    layers = encoder_layers + segment_layers + decoder_layers
    attentions = layers + (decoder_layers if has_encoder else 0)
    norm = {"layer": 2 * width, "rms": width, "none": 0}[config.norm]
    head = width // config.heads

    score = config.heads * _score(config.score, head, head, head)
    attention = 4 * width * (width + config.bias) + score + norm
    feed = 0
    if config.feedforward:
        gates = 2 if config.activation in ("geglu", "swiglu") else 1
        feed = gates * config.ffn * (width + 1) + width * (config.ffn + 1) + norm
    stacks = has_encoder + has_decoder + (segment_layers > 0)
    last_norms = stacks * norm if config.ends_with_norm else 0

    positions = 0
    if config.position == "learned":
        positions = stacks * config.max_positions * width
    if config.position == "relative":
        positions = layers * 2 * (2 * config.relative_clip + 1) * head

    mixtures = 0
    if config.pattern == "linformer":
        mixtures = encoder_layers * config.features * config.max_positions

    tables = source_size * width
    if has_encoder and has_decoder:
        tables = _tables(config.tie, width, source_size, target_size)
    output = _output(config.tie, width, target_size) + config.output_bias * target_size
    projection = width * width if segment_layers else 0
    blocks = attentions * attention + layers * feed + mixtures + projection
    return blocks + last_norms + positions + tables + output


def _cells(config: RNNConfig, inputs: int, size: int, layers: int, directions: int = 1) -> int:
    """The parameters of recurrent cells of this size, in layers and directions."""
    gates = {"rnn": 1, "linear": 1, "gru": 3, "lstm": 4}[config.cell]
    first = gates * size * (inputs + size + 2)
    later = gates * size * (directions * size + size + 2)
    return directions * (first + (layers - 1) * later)


def _rnn_decoder(config: RNNConfig, size: int) -> int:
    """A decoder alone, without attention."""
    cells = _cells(config, config.embedding, config.width, config.decoder_layers)
    output = _output(config.tie, config.width, size) + size
    return cells + size * config.embedding + output


def _rnn(config: RNNConfig, source_size: int, target_size: int) -> int:
    width = config.width
    states = 2 if config.cell == "lstm" else 1
    directions = 2 if config.bidirectional else 1
    inputs = config.embedding + (width if config.attention == "before" else 0)
    layers = config.encoder_layers
    encoder = _cells(config, config.embedding, width // directions, layers, directions)
    decoder = _cells(config, inputs, width, config.decoder_layers)
    bridge = 0
    if config.bridge == "top":
        bridge = states * config.decoder_layers * width * (width + 1)
    attention = 0
    read = width  # by the output layer
    if config.attention != "none":
        attention = _score(config.score, width, width, config.score_width or width)
        if config.readout == "tanh":
            attention += width * (2 * width + 1)
        if config.readout == "context":
            read = 2 * width

    tables = _tables(config.tie, config.embedding, source_size, target_size)
    output = _output(config.tie, read, target_size) + target_size
    return encoder + decoder + bridge + attention + tables + output


def _score(name: str, query: int, key: int, width: int) -> int:
    """The parameters of the score of one head."""
    if name == "multiplicative":
        return query * key
    if name == "additive":
        return (query + key) * width + width
    return 0


def _tables(tie: str, width: int, source_size: int, target_size: int) -> int:
    """The parameters of the embeddings."""
    return (source_size if tie in ("inputs", "all") else source_size + target_size) * width


def _output(tie: str, width: int, target_size: int) -> int:
    """The parameters of the output layer, unless they are those of the target embeddings."""
    return target_size * width if tie in ("none", "inputs") else 0
