"""How a model knows the order of tokens.

Positions are given as a tensor (B, T), never as one number, so that other orders are possible.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import UserError


class Position(nn.Module):
    """Base class of position encodings; used as it is, it encodes no positions.

    Subclasses override the hooks they need. `in_attention`: whether the hooks act inside each
    self-attention (one object per layer) or on the embeddings (one object in all). `fused`: whether
    a fused kernel can compute attention with it.
    """

    in_attention = False
    fused = True

    def __init__(
        self, width: int, heads: int = 1, *, max_positions: int = 1024, clip: int = 16
    ) -> None:
        super().__init__()
        self.width = width
        self.heads = heads
        self.max_positions = max_positions
        self.clip = clip
        self.scale: float | None = None
        """Factor of q·k in the score, set by the attention this belongs to.

        None: the score is not a dot product.
        """

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Embeddings (…, D) at positions (…) -> the same shape."""
        return x

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Queries or keys (B, H, T, D/H) at positions (B, T) -> the same shape."""
        return x

    def key_term(self, query: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
        """Term added to the scores: (B, H, T, S). None: nothing is added."""
        return None

    def value_term(self, weights: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
        """Term added to the output: (B, H, T, D/H). None: nothing is added."""
        return None


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Sinusoidal position encodings (Vaswani et al. 2017, 3.5): positions (…) -> (…, width).

    P[i, 2j] = sin(i / 10000^(2j/d)) and P[i, 2j+1] = cos(i / 10000^(2j/d)). The width may be odd.
    """
    pairs = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32)  # 2j
    frequencies = torch.exp(pairs * (-math.log(10000.0) / width))
    angles = positions[..., None].float() * frequencies  # (…, width / 2)
    waves = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)
    return waves[..., :width]


class Sinusoidal(Position):
    """Fixed waves added to the embeddings (Vaswani et al. 2017, 3.5)."""

    def __init__(
        self, width: int, heads: int = 1, *, max_positions: int = 1024, clip: int = 16
    ) -> None:
        super().__init__(width, heads, max_positions=max_positions, clip=clip)
        # Not a buffer: processes would send it to each other.
        self.table = sinusoids(torch.arange(0), width)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self._waves(positions).to(x.dtype)

    def _waves(self, positions: Tensor) -> Tensor:
        """The sinusoids at positions (…): (…, D).

        On a CPU they come from a table, for sines are slow there. On a GPU they are computed: to
        know how long the table must be, we would have to wait for it.
        """
        if positions.device.type != "cpu" or not positions.numel():
            return sinusoids(positions, self.width)

        last = int(positions.max())
        if int(positions.min()) < 0 or last > 10**5:
            return sinusoids(positions, self.width)

        # Threads share this object. Each reads the table it has seen or made, whatever another
        # thread puts there meanwhile.
        table = self.table
        if last >= len(table):
            table = sinusoids(torch.arange(2 * last + 1), self.width)
            self.table = table
        return F.embedding(positions, table)


class Learned(Position):
    """A learned vector for each position (Gehring et al. 2017)."""

    def __init__(
        self, width: int, heads: int = 1, *, max_positions: int = 1024, clip: int = 16
    ) -> None:
        super().__init__(width, heads, max_positions=max_positions, clip=clip)
        self.table = nn.Parameter(torch.randn(max_positions, width) / math.sqrt(width))

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        # A GPU would have to be waited for; training knows its longest pair.
        looked = positions.device.type == "cpu" or not self.training
        if looked and positions.numel():
            last = int(positions.max())
            if last >= self.max_positions:
                raise UserError(
                    f"position {last} is beyond the learned positions: raise model.max_positions "
                    f"(now {self.max_positions})"
                )
        return x + F.embedding(positions, self.table)


class Relative(Position):
    """Vectors a_ij by clipped distance, for keys and values (Shaw et al. 2018, eq. 3 and 4).

    The score of a query is that of k + a_ij, so q·a has the scale of q·k: 1/√d for `scaled_dot` as
    in the paper, 1 for `dot` and `multiplicative`. Beside a score that is no product (`additive`)
    it is 1/√d: variance 1 whatever the width.
    """

    in_attention = True
    fused = False

    def __init__(
        self, width: int, heads: int = 1, *, max_positions: int = 1024, clip: int = 16
    ) -> None:
        super().__init__(width, heads, max_positions=max_positions, clip=clip)
        size = width // heads
        self.keys = nn.Parameter(torch.randn(2 * clip + 1, size) / math.sqrt(size))
        self.values = nn.Parameter(torch.randn(2 * clip + 1, size) / math.sqrt(size))

    def _distance(self, q_pos: Tensor, k_pos: Tensor, heads: int) -> Tensor:
        """The row of `keys` and `values` for each query and key: (B or 1, H, T, S)."""
        distance = k_pos[:, None, None, :] - q_pos[:, None, :, None]  # (B or 1, 1, T, S)
        row = distance.clamp(-self.clip, self.clip) + self.clip  # 0 … 2·clip
        return row.expand(-1, heads, -1, -1)

    def key_term(self, query: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        # q·a for each of the 2·clip+1 distances, then picked: no (T, S, D) tensor.
        divisor = math.sqrt(query.shape[-1])
        if self.scale is not None:
            divisor = 1.0 / self.scale
        by_distance = query @ self.keys.T.to(query.dtype) / divisor  # (B, H, T, 2·clip+1)
        index = self._distance(q_pos, k_pos, query.shape[1]).expand(query.shape[0], -1, -1, -1)
        return by_distance.gather(-1, index)  # (B, H, T, S)

    def value_term(self, weights: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        index = self._distance(q_pos, k_pos, weights.shape[1]).expand(weights.shape[0], -1, -1, -1)
        zeros = weights.new_zeros(*weights.shape[:-1], 2 * self.clip + 1)
        by_distance = zeros.scatter_add(-1, index, weights)  # (B, H, T, 2·clip+1)
        return by_distance @ self.values.to(weights.dtype)


class Rotary(Position):
    """Rotate pairs of features by an angle that grows with the position (Su et al. 2021).

    Queries and keys are rotated; for dot scores only.
    """

    in_attention = True

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        size = x.shape[-1]
        kind = torch.promote_types(x.dtype, torch.float32)
        pairs = torch.arange(0, size, 2, device=x.device, dtype=kind)
        frequencies = torch.exp(pairs * (-math.log(10000.0) / size))
        angles = positions[:, None, :, None].to(kind) * frequencies  # (B, 1, T, D/2H)
        sin = angles.sin().to(x.dtype)
        cos = angles.cos().to(x.dtype)

        even = x[..., 0::2]  # (B, H, T, D/2H)
        odd = x[..., 1::2]
        rotated = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
        return rotated.flatten(-2)  # (B, H, T, D/H)


class ALiBi(Position):
    """A penalty of −m|i−j| on the scores, m = 2^(−8h/H) for head h (Press et al. 2022).

    The encoder has the same, in both directions.
    """

    in_attention = True

    def key_term(self, query: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        head = torch.arange(1, self.heads + 1, device=query.device, dtype=torch.float32)
        slopes = torch.exp2(-8.0 * head / self.heads)[None, :, None, None]  # (1, H, 1, 1)
        distance = (k_pos[:, None, None, :] - q_pos[:, None, :, None]).abs()  # (B, 1, T, S)
        return (-slopes * distance).to(query.dtype)


POSITIONS: dict[str, type[Position]] = {
    "none": Position,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "relative": Relative,
    "rotary": Rotary,
    "alibi": ALiBi,
}
