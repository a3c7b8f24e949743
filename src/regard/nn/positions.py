"""How a model knows order. A position is given as a tensor (B, T), never as one number, so that
other orders are possible.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import UserError


class Position(nn.Module):
    """No position at all: the base is itself one of the six. A subclass overrides the hooks it
    needs.

    `in_attention` says whether its hooks act inside each self-attention (one object per layer) or
    on the embeddings (one in all); `fused` whether a fused kernel can compute attention with it.
    """

    in_attention = False
    fused = True

    def __init__(
        self, width: int, heads: int = 1, *, max_positions: int = 1024, clip: int = 16
    ) -> None:
        super().__init__()
        self.width, self.heads, self.max_positions, self.clip = width, heads, max_positions, clip
        self.scale: float | None = None
        """What the score multiplies q·k by, set by the attention that this acts in. None: the score
        is no product.
        """

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Change embeddings (…, D) at positions (…)."""
        return x

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Change queries or keys (B, H, T, D/H) at positions (B, T)."""
        return x

    def key_term(self, query: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
        """Add this to the scores (B, H, T, S)."""
        return None

    def value_term(self, weights: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
        """Add this to the output (B, H, T, D/H)."""
        return None


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """P[i, 2j] = sin(i / 10000^(2j/d)), P[i, 2j+1] = cos(the same) (Vaswani et al. 2017, 3.5); any
    length, odd widths too.
    """
    pairs = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32)
    angles = positions[..., None].float() * torch.exp(pairs * (-math.log(10000.0) / width))
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[..., :width]


class Sinusoidal(Position):
    """Fixed waves added to the embeddings (Vaswani et al. 2017, 3.5)."""

    def __init__(
        self, width: int, heads: int = 1, *, max_positions: int = 1024, clip: int = 16
    ) -> None:
        super().__init__(width, heads, max_positions=max_positions, clip=clip)
        self.table = sinusoids(
            torch.arange(0), width
        )  # no buffer: processes would send it to each other

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self._waves(positions).to(x.dtype)

    def _waves(self, positions: Tensor) -> Tensor:
        """From a table, on a CPU, where sines are slow; a GPU would have to be asked how long it
        must be.
        """
        if positions.device.type != "cpu" or not positions.numel():
            return sinusoids(positions, self.width)

        last = int(positions.max())
        if int(positions.min()) < 0 or last > 10**5:
            return sinusoids(positions, self.width)

        # Threads share this object. Each reads the table it has seen or made, whatever another puts
        # there meanwhile.
        table = self.table
        if last >= len(table):
            table = sinusoids(torch.arange(2 * last + 1), self.width)
            self.table = table
        return F.embedding(positions, table)


class Learned(Position):
    """A learned vector per place (Gehring et al. 2017)."""

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
                    f"position {last} is past the learned table: raise model.max_positions (now "
                    f"{self.max_positions})"
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
        distance = (k_pos[:, None, None, :] - q_pos[:, None, :, None]).clamp(
            -self.clip, self.clip
        ) + self.clip
        return distance.expand(-1, heads, -1, -1)

    def key_term(self, query: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        # q·a for each of the 2·clip+1 distances, then picked: no (T, S, D) tensor.
        divisor = math.sqrt(query.shape[-1]) if self.scale is None else 1.0 / self.scale
        by_distance = query @ self.keys.T.to(query.dtype) / divisor  # (B, H, T, 2·clip+1)
        index = self._distance(q_pos, k_pos, query.shape[1]).expand(query.shape[0], -1, -1, -1)
        return by_distance.gather(-1, index)

    def value_term(self, weights: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        index = self._distance(q_pos, k_pos, weights.shape[1]).expand(weights.shape[0], -1, -1, -1)
        by_distance = weights.new_zeros(*weights.shape[:-1], 2 * self.clip + 1).scatter_add(
            -1, index, weights
        )
        return by_distance @ self.values.to(weights.dtype)


class Rotary(Position):
    """Rotate pairs of query and key features by an angle that grows with the position (Su et al.
    2021). Dot scores only.
    """

    in_attention = True

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        size = x.shape[-1]
        kind = torch.promote_types(x.dtype, torch.float32)
        pairs = torch.arange(0, size, 2, device=x.device, dtype=kind)
        angles = positions[:, None, :, None].to(kind) * torch.exp(
            pairs * (-math.log(10000.0) / size)
        )
        sin, cos = angles.sin().to(x.dtype), angles.cos().to(x.dtype)
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class ALiBi(Position):
    """A penalty of −m|i−j|, m = 2^(−8h/H) for head h (Press et al. 2022); the same in the
    encoder.
    """

    in_attention = True

    def key_term(self, query: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        head = torch.arange(1, self.heads + 1, device=query.device, dtype=torch.float32)
        slopes = torch.exp2(-8.0 * head / self.heads)[None, :, None, None]
        distance = (k_pos[:, None, None, :] - q_pos[:, None, :, None]).abs()
        return (-slopes * distance).to(query.dtype)


POSITIONS: dict[str, type[Position]] = {
    "none": Position,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "relative": Relative,
    "rotary": Rotary,
    "alibi": ALiBi,
}
