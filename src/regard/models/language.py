"""Language models from the parts of the encoder-decoder: a decoder alone, or an encoder alone."""

from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batches import Batch
from regard.models.predictor import Predictor
from regard.models.seq2seq import Decoder, Encoder, Memory, Seq2Seq
from regard.models.transformer import TransformerEncoder
from regard.nn import Layout
from regard.text.vocabulary import PAD


class NoEncoder(Encoder):
    """In the place of an encoder where there is nothing to read: a decoder alone writes."""

    causal = True

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(
        self,
        source: Tensor,
        lengths: Tensor,
        *,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        layout: Layout | None = None,
    ) -> Memory:
        nothing = torch.zeros(len(source), 0, self.width, device=source.device)  # (B, 0, D)
        return Memory(nothing, lengths, layout=layout)

    def extend(self, source: Tensor, before: Any = None) -> tuple[Memory, Any]:
        return self(source, torch.full_like(source[:, 0], source.shape[1])), None


class CausalModel(Seq2Seq):
    """A decoder alone, which attends to no source (a causal language model).

    It is an encoder-decoder whose encoder reads nothing: what decodes, scores or examines the one
    works for the other.
    """

    def __init__(self, decoder: Decoder, width: int) -> None:
        super().__init__(NoEncoder(width), decoder)

    def start(self, source: Tensor, lengths: Tensor, **reading: Tensor) -> Any:
        """The state after prompts: tokens (B, S) of these lengths (B,), with <bos> first.

        Where a length is 0, not even <bos> has been read.
        """
        return self.decoder.read(source, lengths, self.encoder(source, lengths))


class MaskedEncoder(Predictor):
    """An encoder alone, which predicts the tokens behind <mask> (Devlin et al. 2019).

    A batch has the text with some tokens masked as its source, and as its target the tokens that
    were there; <pad> where nothing is asked.
    """

    def __init__(self, encoder: TransformerEncoder, width: int, size: int, *, bias: bool) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(width, size, bias=bias)
        nn.init.normal_(self.head.weight, std=width**-0.5)
        if bias:
            nn.init.zeros_(self.head.bias)

    @property
    def out(self) -> nn.Linear:
        return self.head

    def forward(self, source: Tensor, lengths: Tensor, **reading: Tensor) -> Tensor:
        """Tokens (B, S) of these lengths (B,) -> logits (B, S, V) of the token at each place."""
        return self.output(self.encoder(source, lengths, **reading).states)

    def predict(self, batch: Batch) -> Tensor:
        return self(batch.source, batch.source_lengths)

    def hidden(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The encoder's states (N, D) at the places that were asked for, and their tokens (N,)."""
        layout = batch.layouts[0] if batch.layouts else None
        if layout is None:
            layout = Layout.of(batch.source_lengths, batch.source.shape[1], worth=0.8)
        states = self.encoder(batch.source, batch.source_lengths, layout=layout).states  # (M, D)
        targets = layout.pack(batch.target_out)  # (M,)
        asked = (targets != PAD).nonzero().squeeze(1)  # (N,)
        return states.index_select(0, asked), targets.index_select(0, asked)
