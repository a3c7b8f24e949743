"""What a Transformer has in place of full attention, for long texts, by its settings."""

from regard.config import TransformerConfig
from regard.nn import (
    LSH,
    Approximation,
    BigBird,
    Chunked,
    Linformer,
    Pattern,
    Performer,
    Routing,
    Window,
)


def make_encoder_pattern(config: TransformerConfig) -> Pattern | None:
    """The pattern of the encoder; of the first of two levels, whose segments are read apart."""
    if config.levels > 1:
        return Chunked(config.window)
    return make_pattern(config, config.pattern, causal=config.causal)


def make_pattern(config: TransformerConfig, name: str, *, causal: bool) -> Pattern | None:
    """The exact pattern of this name; None if it is not one: every token may see all."""
    if name == "window":
        return Window(config.window, config.global_tokens)
    if name == "chunked":
        return Chunked(config.window, config.neighbors)
    if name == "bigbird":
        return BigBird(config.window, config.random_blocks, config.global_tokens, causal)
    return None


def make_approximation(config: TransformerConfig, name: str) -> Approximation | None:
    """A new approximation of this name, for one layer; None if it is not one."""
    heads = config.heads
    width = config.width // heads
    if name == "linformer":
        return Linformer(heads, width, max_positions=config.max_positions, mixtures=config.features)
    if name == "performer":
        return Performer(heads, width, features=config.features)
    if name == "lsh":
        return LSH(heads, width, chunk=config.window, rounds=config.rounds)
    if name == "routing":
        return Routing(heads, width, clusters=config.clusters)
    return None
