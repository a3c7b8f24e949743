"""Build a model from a config and the sizes of two vocabularies."""

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, overload

from regard.config import CustomConfig, ModelConfig, Objective, RNNConfig, TransformerConfig
from regard.errors import UserError
from regard.models.language import CausalModel, MaskedEncoder
from regard.models.long_texts import make_encoder_pattern, make_pattern
from regard.models.parts import Parts, check_parts, find_part, is_own
from regard.models.predictor import Predictor
from regard.models.rnn import RNNDecoder, RNNEncoder
from regard.models.seq2seq import Seq2Seq
from regard.models.size import check_size
from regard.models.transformer import BlockParts, TransformerDecoder, TransformerEncoder
from regard.nn import POSITIONS, SCORES, Attention, Block, Embedding
from regard.nn.names import look_up


@overload
def build_model(
    config: ModelConfig,
    source_size: int,
    target_size: int,
    parts: Parts = None,
    objective: Literal["translate", "causal", "denoise"] = "translate",
) -> Seq2Seq: ...


@overload
def build_model(
    config: ModelConfig,
    source_size: int,
    target_size: int,
    parts: Parts = None,
    objective: Objective = "translate",
) -> Predictor: ...


def build_model(
    config: ModelConfig,
    source_size: int,
    target_size: int,
    parts: Parts = None,
    objective: Objective = "translate",
) -> Predictor:
    """The model that a config describes, with new weights.

    parts: the user's own classes, where the config says custom:Name. objective: what it is to learn
    (`train.objective`): `causal` is a decoder alone, `masked` an encoder alone.
    """
    if isinstance(config, CustomConfig):
        return _custom(config, source_size, target_size, parts)
    if config.tie in ("inputs", "all") and source_size != target_size:
        instead = "target" if config.tie == "all" else "none"
        raise UserError(
            f"model.tie={config.tie} needs one vocabulary for both sides: set text.share=true or "
            f"model.tie={instead}"
        )
    check_size(config, source_size, target_size, objective=objective)
    builders: dict[str, Any] = {"transformer": _transformer, "rnn": _rnn}
    return builders[config.kind](config, source_size, target_size, parts, objective)


def _part(kind: str, name: str, known: Mapping[str, Any], parts: Parts) -> Any:
    """The class of this name, or the one that was given for custom:Name."""
    return find_part(kind, name, parts) if is_own(name) else look_up(kind, name, known)


def _custom(config: CustomConfig, source_size: int, target_size: int, parts: Parts) -> Seq2Seq:
    """A model of the user's own."""
    make_model = find_part("model", config.kind, parts)
    try:
        inspect.signature(make_model).bind(source_size, target_size, **config.options)
    except TypeError as error:
        raise UserError(
            f"{config.kind} is called with (source_size, target_size, **model.options): {error}"
        ) from None
    return make_model(source_size, target_size, **config.options)


def _transformer(
    config: TransformerConfig,
    source_size: int,
    target_size: int,
    parts: Parts,
    objective: Objective,
) -> Predictor:
    kinds = ("score", "position", "block", "encoder_mask", "decoder_mask", "cross_mask")
    check_parts({kind: getattr(config, kind) for kind in kinds}, parts)
    chosen = BlockParts(
        score=_part("score", config.score, SCORES, parts),
        position=_part("position", config.position, POSITIONS, parts),
        block=_part("block", config.block, {"standard": Block}, parts),
        encoder_mask=_part("encoder_mask", config.encoder_mask, {"none": None}, parts),
        decoder_mask=_part("decoder_mask", config.decoder_mask, {"none": None}, parts),
        cross_mask=_part("cross_mask", config.cross_mask, {"none": None}, parts),
        encoder_pattern=make_encoder_pattern(config),
        decoder_pattern=make_pattern(config, config.decoder_pattern, causal=True),
    )
    embed = partial(Embedding, width=config.width, scaled=config.scale_embeddings)
    if not config.scale_embeddings and config.tie in ("none", "inputs"):
        # As large as scaled ones are. If they were the output layer, too, its logits would be huge.
        embed = partial(embed, std=1.0)
    source = embed(source_size)
    model: Predictor
    if objective == "masked":
        encoder = TransformerEncoder(config, chosen, source)
        model = MaskedEncoder(encoder, config.width, source_size, bias=config.output_bias)
        if config.tie in ("target", "all"):
            model.head.weight = source.weight
    elif objective == "causal":
        decoder = TransformerDecoder(config, chosen, source, target_size, crossing=False)
        model = CausalModel(decoder, config.width)
    else:
        target = source
        if config.tie not in ("inputs", "all"):
            target = embed(target_size)
        encoder = TransformerEncoder(config, chosen, source)
        decoder = TransformerDecoder(config, chosen, target, target_size)
        model = Seq2Seq(encoder, decoder)
    if config.qkv_init == "joint":
        for module in model.modules():
            if isinstance(module, Attention):
                module.draw_jointly()
    return model


def _rnn(
    config: RNNConfig,
    source_size: int,
    target_size: int,
    parts: Parts,
    objective: Objective,
) -> Seq2Seq:
    source = Embedding(source_size, config.embedding, scaled=False)
    check_parts({kind: getattr(config, kind) for kind in ("score", "cross_mask")}, parts)
    score = _part("score", config.score, SCORES, parts)
    cross_mask = _part("cross_mask", config.cross_mask, {"none": None}, parts)
    if objective == "causal":
        writer = RNNDecoder(config, score, source, target_size, crossing=False)
        return CausalModel(writer, config.width)
    target = source
    if config.tie not in ("inputs", "all"):
        target = Embedding(target_size, config.embedding, scaled=False)
    encoder = RNNEncoder(config, source)
    decoder = RNNDecoder(config, score, target, target_size, cross_mask)
    return Seq2Seq(encoder, decoder)
