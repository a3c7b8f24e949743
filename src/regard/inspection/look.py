"""Where a model looks while it writes an answer."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.data.batches import collate
from regard.errors import UserError
from regard.models import MaskedEncoder, Seq2Seq
from regard.models.ensemble import Decoders
from regard.nn import Record, watch
from regard.records.attention import AttentionRecord, Weights, block_of
from regard.text.positions import positions_in
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import BOS, EOS, SPECIALS


@torch.inference_mode()
def look(
    model: Seq2Seq,
    tokenizers: tuple[Tokenizer, Tokenizer],
    text: str,
    answer: Sequence[int],
    suppress: Tensor,
    candidates: int = 5,
) -> AttentionRecord:
    """The attention with which a model writes `answer` (ids) for `text`.

    tokenizers: of the source and of the target. suppress (V,): ids that are never written, on the
    model's device. candidates: how many of the likeliest tokens of each step are recorded too.
    """
    if isinstance(model.decoder, Decoders):
        raise UserError(
            "an ensemble has no attention or coverage of its own: load one of its runs alone"
        )

    source, target = tokenizers
    pieces = source.pieces(text)
    positions = positions_in(source, text)
    text = source.normalise(text)
    source_ids = [*(piece.id for piece in pieces), EOS]
    row = (source_ids, [BOS, *answer, EOS])
    batch = collate([(*row, positions) if positions else row]).to(suppress.device)
    with watch(model) as record:
        logits = model.predict(batch)[0].float()  # (T, V)

    blocks, norms = _by_block(record)
    probabilities = logits.masked_fill(suppress, -torch.inf).softmax(-1)  # (T, V)
    likely = probabilities.topk(min(candidates, target.size))  # (T, C)
    names = [target.token_texts(ids) for ids in likely.indices.tolist()]
    written = target.decode(answer)

    return AttentionRecord(
        source=[*(piece.text for piece in pieces), SPECIALS[EOS]],
        target=target.token_texts([*answer, EOS]),
        blocks=blocks,
        norms=norms,
        text_in=text,
        text_out=written,
        source_spans=[*((piece.start, piece.end) for piece in pieces), (len(text), len(text))],
        target_spans=[*target.spans(answer), (len(written), len(written))],
        candidates=[list(zip(*row)) for row in zip(names, likely.values.tolist())],
        has_rollout=not record.mixtures,
    )


@torch.inference_mode()
def look_at_text(model: MaskedEncoder, tokenizer: Tokenizer, ids: Sequence[int]) -> AttentionRecord:
    """The attention of an encoder alone, for a text of these ids."""
    device = next(model.parameters()).device
    batch = collate([([*ids, EOS], [BOS, EOS])]).to(device)
    with watch(model) as record:
        model(batch.source, batch.source_lengths)
    blocks, norms = _by_block(record)
    text = tokenizer.decode(ids)
    return AttentionRecord(
        source=tokenizer.token_texts([*ids, EOS]),
        target=[],
        blocks=blocks,
        norms=norms,
        text_in=text,
        source_spans=[*tokenizer.spans(ids), (len(text), len(text))],
        has_rollout=not record.mixtures,
    )


def _by_block(record: Record) -> tuple[dict[str, Weights], dict[str, Weights]]:
    """The weights (L, H, T, S) of each block, and the lengths (L, H, S) of what is looked at."""
    weights: dict[str, list[Tensor]] = {"cross": [], "encoder": [], "decoder": []}
    norms: dict[str, list[Tensor]] = {"cross": [], "encoder": [], "decoder": []}
    for name, calls in record.weights.items():
        block = block_of(name)
        # An attention that was called once per step left a piece per step.
        of_layer = torch.cat(calls, dim=2)[0]  # (H, T, S)
        norms_of_layer = record.norms[name][0]  # (H, S)
        if name in record.mixtures:
            continue  # they belong to no tokens
        weights[block].append(of_layer)
        norms[block].append(norms_of_layer)
    return _stacked(weights), _stacked(norms)


def _stacked(layers: dict[str, list[Tensor]]) -> dict[str, Weights]:
    """One array of all layers of each block that has any."""
    return {
        block: torch.stack(tensors).float().cpu().numpy()
        for block, tensors in layers.items()
        if tensors
    }
