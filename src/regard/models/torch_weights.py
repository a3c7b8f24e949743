"""Carry the weights of `torch.nn` layers over into ours, which then compute the same."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.models.seq2seq import Seq2Seq
from regard.models.transformer import TransformerDecoder, TransformerEncoder
from regard.nn import Attention, Block, DecoderBlock, EncoderBlock, Recurrent


def copy_weights(theirs: nn.Module, ours: nn.Module) -> None:
    """Copy the weights of a layer of torch's into ours; both must have the same sizes.

    | theirs                                | ours                               |
    |---------------------------------------|------------------------------------|
    | `nn.MultiheadAttention`               | `Attention`                        |
    | `nn.TransformerEncoderLayer`          | `EncoderBlock`                     |
    | `nn.TransformerDecoderLayer`          | `DecoderBlock`                     |
    | `nn.Transformer`                      | a model with model.kind=transformer |
    | `nn.RNN`, `nn.GRU`, `nn.LSTM`         | `Recurrent`                        |
    | `nn.Embedding`, `nn.Linear`, `nn.LayerNorm` | the parts of the same name   |

    An `nn.Transformer` has no embeddings and no output layer: copy those by themselves, to
    `model.encoder.embedding`, `model.decoder.embedding` and `model.decoder.out`. It ends with a
    norm in any case: set model.final_norm=yes.

    >>> theirs = nn.MultiheadAttention(64, 4, batch_first=True)
    >>> ours = Attention(64, heads=4)
    >>> copy_weights(theirs, ours)
    >>> x = torch.randn(2, 5, 64)
    >>> torch.allclose(ours(x, x, x), theirs(x, x, x)[0], atol=1e-5)
    True
    """
    pairs = list(_leaves(theirs, ours))
    for their_weight, our_weight in pairs:
        if their_weight.shape != our_weight.shape:
            raise UserError(
                f"{type(theirs).__name__} has a weight of shape {tuple(their_weight.shape)} where "
                f"{type(ours).__name__} has {tuple(our_weight.shape)}: their sizes must be equal"
            )
    with torch.no_grad():
        for their_weight, our_weight in pairs:
            our_weight.copy_(their_weight)


Weights = Iterable[tuple[Tensor, Tensor]]
"""Weights of theirs, each with the one of ours that it belongs to."""


def _leaves(theirs: nn.Module, ours: nn.Module) -> Weights:
    """The weights of two modules, side by side."""
    match theirs, ours:
        case nn.MultiheadAttention(), Attention():
            yield from _attention(theirs, ours)
        case nn.TransformerEncoderLayer(), EncoderBlock() | Block():
            yield from _encoder_block(theirs, ours)
        case nn.TransformerDecoderLayer(), DecoderBlock() | Block():
            yield from _decoder_block(theirs, ours)
        case nn.TransformerEncoder(), TransformerEncoder():
            yield from _stack(theirs, ours)
        case nn.TransformerDecoder(), TransformerDecoder():
            yield from _stack(theirs, ours)
        case nn.Transformer(), Seq2Seq():
            yield from _leaves(theirs.encoder, ours.encoder)
            yield from _leaves(theirs.decoder, ours.decoder)
        case nn.RNNBase(), Recurrent():
            yield from _same_names(theirs, ours.torch)
        case _:
            yield from _same_names(theirs, ours)


def _same_names(theirs: nn.Module, ours: nn.Module) -> Weights:
    """The weights of modules that call them by the same names."""
    their_weights = dict(theirs.named_parameters())
    our_weights = dict(ours.named_parameters())
    if their_weights.keys() != our_weights.keys():
        missing = sorted(their_weights.keys() ^ our_weights.keys())
        raise UserError(
            f"the weights of {type(theirs).__name__} do not fit {type(ours).__name__}: only one of "
            f"them has {', '.join(missing[:3])}"
        )
    for name, weight in their_weights.items():
        yield weight, our_weights[name]


def _attention(theirs: nn.MultiheadAttention, ours: Attention) -> Weights:
    if theirs.num_heads != ours.heads:
        raise UserError(f"{theirs.num_heads} heads there, {ours.heads} here: they must be equal")
    if theirs.bias_k is not None or theirs.add_zero_attn:
        raise UserError("add_bias_kv and add_zero_attn have no counterpart here")

    our_layers = _projections(ours)
    their_matrices: tuple[Tensor, ...] = (
        theirs.q_proj_weight,
        theirs.k_proj_weight,
        theirs.v_proj_weight,
    )
    if theirs.in_proj_weight is not None:
        their_matrices = theirs.in_proj_weight.chunk(3)
    for matrix, (weight, _) in zip(their_matrices, our_layers, strict=True):
        yield matrix, weight

    if (theirs.in_proj_bias is None) != (our_layers[0][1] is None):
        raise UserError("only one of the two attentions has biases: set bias alike for both")
    if theirs.in_proj_bias is not None:
        for vector, (_, bias) in zip(theirs.in_proj_bias.chunk(3), our_layers, strict=True):
            assert bias is not None
            yield vector, bias
    yield from _same_names(theirs.out_proj, ours.output)


def _projections(ours: Attention) -> list[tuple[Tensor, Tensor | None]]:
    """Weight and bias of queries, keys and values, some of which may lie in one layer."""
    layers: dict[str, int] = {"qkv": 3, "query": 1, "keyvalue": 2, "key": 1, "value": 1}
    found: list[tuple[Tensor, Tensor | None]] = []
    for name, parts in layers.items():
        layer = getattr(ours, name, None)
        if layer is None:
            continue
        biases = (None,) * parts if layer.bias is None else layer.bias.chunk(parts)
        found += zip(layer.weight.chunk(parts), biases, strict=True)
    return found


def _encoder_block(theirs: nn.TransformerEncoderLayer, ours: EncoderBlock | Block) -> Weights:
    yield from _leaves(theirs.self_attn, ours.attention)
    yield from _same_names(theirs.norm1, ours.attention_residual.norm)
    yield from _same_names(theirs.linear1, ours.feed.inner)
    yield from _same_names(theirs.linear2, ours.feed.outer)
    yield from _same_names(theirs.norm2, ours.feed_residual.norm)


def _decoder_block(theirs: nn.TransformerDecoderLayer, ours: DecoderBlock | Block) -> Weights:
    yield from _leaves(theirs.self_attn, ours.attention)
    yield from _same_names(theirs.norm1, ours.attention_residual.norm)
    yield from _leaves(theirs.multihead_attn, ours.cross)
    yield from _same_names(theirs.norm2, ours.cross_residual.norm)
    yield from _same_names(theirs.linear1, ours.feed.inner)
    yield from _same_names(theirs.linear2, ours.feed.outer)
    yield from _same_names(theirs.norm3, ours.feed_residual.norm)


def _stack(
    theirs: nn.TransformerEncoder | nn.TransformerDecoder,
    ours: TransformerEncoder | TransformerDecoder,
) -> Weights:
    """All blocks, and the norm after the last one."""
    if getattr(ours, "level", None) is not None:
        raise UserError("a model of two levels is none of torch's: set model.levels=1")
    if len(theirs.layers) != len(ours.blocks):
        raise UserError(
            f"{len(theirs.layers)} layers there, {len(ours.blocks)} here: they must be equal"
        )
    for layer, block in zip(theirs.layers, ours.blocks, strict=True):
        yield from _leaves(layer, block)
    if theirs.norm is None:
        return
    if not list(ours.norm.parameters()):
        raise UserError("the last layer there is followed by a norm: set model.final_norm=yes")
    yield from _same_names(theirs.norm, ours.norm)
