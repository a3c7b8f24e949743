"""The second level of a hierarchical encoder: layers that read segments instead of tokens."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.config import TransformerConfig
from regard.nn import Block, Layout, Mask, Position
from regard.nn.layers import make_norm


class SegmentLevel(nn.Module):
    """Blocks over the segments of a text, whose states are added to those of their tokens.

    The first level has read each segment of C tokens alone. Here a segment is the mean of its
    tokens (as in HIBERT, Zhang et al. 2019, but for the mean), and these N = S / C vectors attend
    to each other in full. A projection of what comes out is added to every token of the segment:

        token 0 1 2 3 | 4 5 6 7 | 8 9      + what is known of its segment
        mean     ↓    |    ↓    |  ↓            ↑         ↑         ↑
        segment  0 ←——— 1 ———→  2     ——→  output 0, output 1, output 2

    So a decoder looks at both levels at once: with a score that is a product, that of a token is
    the score of its own state plus that of its segment.
    """

    def __init__(self, config: TransformerConfig, blocks: list[Block], position: Position) -> None:
        """position: that of the segments, counted from 0."""
        super().__init__()
        self.size = config.window
        self.position = position
        self.blocks = nn.ModuleList(blocks)
        self.norm = make_norm(config.norm if config.ends_with_norm else "none", config.width)
        self.output = nn.Linear(config.width, config.width, bias=False)
        for block in blocks:
            block.attention.weighs_tokens = False

    def forward(self, x: Tensor, lengths: Tensor, layout: Layout) -> Tensor:
        """Packed rows (R, D) of texts with these lengths (B,) -> the same shape."""
        size = min(self.size, layout.length)  # of one short segment, no more than there is
        means = _means(layout.pad(x), lengths, size)  # (B, N, D)
        batch, count, _ = means.shape
        segments = (lengths + size - 1) // size  # (B,)
        upper = Layout.of(segments, count)
        positions = torch.arange(count, device=x.device).expand(batch, -1)  # (B, N)
        mask = Mask(key_lengths=None if upper.full else segments, filled=True)

        rows = self.position.embed(upper.pack(means), upper.pack(positions))  # (M, D)
        for block in self.blocks:
            rows, _ = block(rows, mask, positions, upper)
        known = self.output(upper.pad(self.norm(rows)))  # (B, N, D)

        of_tokens = known[:, :, None].expand(-1, -1, size, -1).flatten(1, 2)  # (B, N · C, D)
        return x + layout.pack(of_tokens[:, : layout.length])


def _means(states: Tensor, lengths: Tensor, size: int) -> Tensor:
    """The mean of the real tokens of each segment of this size: (B, S, D) -> (B, N, D)."""
    length = states.shape[1]
    missing = -length % size
    places = torch.arange(length + missing, device=states.device)
    real = (places < lengths[:, None]).unflatten(1, (-1, size))[..., None]  # (B, N, C, 1)

    segments = F.pad(states, (0, 0, 0, missing)).unflatten(1, (-1, size))  # (B, N, C, D)
    total = segments.masked_fill(~real, 0.0).sum(2)  # (B, N, D)
    return total / real.sum(2).clamp(min=1)
