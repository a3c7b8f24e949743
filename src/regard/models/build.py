"""Build a model from a config and the sizes of two vocabularies."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from regard.config import ModelConfig, RNNConfig, TransformerConfig
from regard.errors import UserError
from regard.models.rnn import RNNDecoder, RNNEncoder
from regard.models.seq2seq import Seq2Seq
from regard.models.transformer import BlockParts, TransformerDecoder, TransformerEncoder
from regard.nn import POSITIONS, SCORES, Embedding
from regard.nn.names import look_up


def build_model(
    config: ModelConfig,
    source_size: int,
    target_size: int,
    parts: Mapping[str, type[nn.Module]] | None = None,
) -> Seq2Seq:
    """The model that a config describes, with new weights.

    parts: the user's own classes for `score` or `position`, where the config says custom:Name.
    """
    if config.tie == "all" and source_size != target_size:
        raise UserError(
            "model.tie=all needs one vocabulary for both sides: set text.share=true or "
            "model.tie=target"
        )
    builders: dict[str, Any] = {"transformer": _transformer, "rnn": _rnn}
    return builders[config.kind](config, source_size, target_size, parts or {})


def _part(kind: str, name: str, known: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    """The class of this name, or the one that was given for custom:Name."""
    if not name.startswith("custom:"):
        return look_up(kind, name, known)
    if kind not in given:
        raise UserError(
            f"model.{kind}={name} is your own class: pass parts={{'{kind}': {name[7:]}}}"
        )
    return given[kind]


def _transformer(
    config: TransformerConfig, source_size: int, target_size: int, given: Mapping[str, Any]
) -> Seq2Seq:
    parts = BlockParts(
        score=_part("score", config.score, SCORES, given),
        position=_part("position", config.position, POSITIONS, given),
    )
    source = Embedding(source_size, config.width)
    target = source if config.tie == "all" else Embedding(target_size, config.width)
    encoder = TransformerEncoder(config, parts, source)
    decoder = TransformerDecoder(config, parts, target, target_size)
    return Seq2Seq(encoder, decoder)


def _rnn(
    config: RNNConfig, source_size: int, target_size: int, given: Mapping[str, Any]
) -> Seq2Seq:
    source = Embedding(source_size, config.embedding, scaled=False)
    target = (
        source if config.tie == "all" else Embedding(target_size, config.embedding, scaled=False)
    )
    score = _part("score", config.score, SCORES, given)
    encoder = RNNEncoder(config, source)
    decoder = RNNDecoder(config, score, target, target_size)
    return Seq2Seq(encoder, decoder)
