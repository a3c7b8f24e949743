"""Is this step healthy? Judged on the device it runs on, so that nobody waits for the answer."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regard.nn.devices import float_for_sums

# Steps that are remembered. Half as many must have been seen before one can be called far out.
WINDOW = 128

# Spikes left out in about the last thousand steps. Beyond, they are no longer spikes but the way
# this training goes, and clipping deals with them. What is not finite is always left out.
SPIKES = 10


class Guard:
    """Refuses a step whose loss or gradient norm is not finite, or is a spike.

    A spike: its logarithm lies `sigmas` standard deviations above those of the last steps. With
    sigmas = 0 there are none.
    """

    def __init__(self, sigmas: float, device: torch.device) -> None:
        self.sigmas = sigmas
        dtype = float_for_sums(device)
        self.seen = torch.zeros(WINDOW, 2, device=device, dtype=dtype)
        self.count = torch.zeros((), device=device, dtype=torch.int64)
        self.spikes = torch.zeros((), device=device, dtype=dtype)

    def refuses(self, loss: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
        """Whether to leave out this step (1.0 or 0.0), and whether because it is not finite."""
        values = torch.stack((loss.detach(), norm)).to(self.seen.dtype)  # (2,)
        is_finite = values.isfinite().all()
        is_bad = ~is_finite
        # Losses and norms vary by factors: late in training threefold is usual.
        logs = values.clamp(min=1e-12).log()  # (2,)
        if self.sigmas:
            limit = self._limit()  # (2,)
            is_spike = (logs > limit).any() & is_finite & (self.spikes < SPIKES)
            self.spikes.mul_(0.999).add_(is_spike)
            is_bad = is_bad | is_spike
            # What is far out is remembered as far out as the limit; where all go there, the limit
            # follows them.
            logs = torch.minimum(logs, limit)

        place = (self.count % WINDOW).expand(1)
        kept = torch.where(is_finite, logs, self.seen.index_select(0, place))  # (1, 2)
        self.seen.index_copy_(0, place, kept)
        self.count += is_finite
        return is_bad.float(), (~is_finite).float()

    def _limit(self) -> Tensor:
        """The logarithms (2,) of loss and norm above which a step is a spike."""
        filled = self.count.clamp(max=WINDOW)
        mean = self.seen.sum(0) / filled.clamp(min=1)  # (2,)
        # Rows not yet written are zeros, which add mean² each to the sum of squares: taken out.
        squares = (self.seen - mean).square().sum(0)
        squares = (squares - (WINDOW - filled) * mean.square()).clamp(min=0)  # (2,)
        # A loss that hardly moves is no reason for alarm at the first small step up.
        sigma = (squares / filled.clamp(min=1)).sqrt().clamp(min=0.05)  # (2,)
        return torch.where(self.count >= WINDOW // 2, mean + self.sigmas * sigma, torch.inf)

    def reset(self) -> None:
        """Forget every step."""
        self.seen.zero_()
        self.count.zero_()
        self.spikes.zero_()

    def to_json(self) -> dict[str, Any]:
        return {"seen": self.seen.tolist(), "count": int(self.count), "spikes": float(self.spikes)}

    def from_json(self, values: Mapping[str, Any]) -> None:
        self.seen.copy_(torch.tensor(values["seen"], dtype=torch.float64))
        self.count.fill_(values["count"])
        self.spikes.fill_(values["spikes"])
