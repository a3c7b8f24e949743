"""Is this step healthy? Judged on the device it runs on, so that nobody waits for the answer."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regard.nn.devices import float_for_sums

# steps that are remembered; half as many must have been seen before one can be called far out
WINDOW = 128
# Spikes left out in about the last thousand steps, beyond which they are no longer spikes but how
# this training is: clipping
# deals with them. What is not finite is always left out.
SPIKES = 10


class Guard:
    """A step is not taken if its loss or gradient norm is not finite, or is a spike: its logarithm
    lies `sigmas` above those of the last steps (0: there are no spikes).
    """

    def __init__(self, sigmas: float, device: torch.device) -> None:
        self.sigmas = sigmas
        kind = float_for_sums(device)
        self.seen = torch.zeros(WINDOW, 2, device=device, dtype=kind)
        self.count = torch.zeros((), device=device, dtype=torch.int64)
        self.spikes = torch.zeros((), device=device, dtype=kind)

    def refuses(self, loss: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
        """Whether to leave out this step (1.0 or 0.0), and whether because it is not finite."""
        now = torch.stack((loss.detach(), norm)).to(self.seen.dtype)
        finite = now.isfinite().all()
        now, bad = (
            now.clamp(min=1e-12).log(),
            ~finite,
        )  # losses and norms vary by factors: late in training threefold is usual
        if self.sigmas:
            filled = self.count.clamp(max=WINDOW)
            mean = self.seen.sum(0) / filled.clamp(min=1)
            # Rows not yet written are zeros: they add mean² each to the sum of squares, and are
            # taken out again.
            spread = ((self.seen - mean).square().sum(0) - (WINDOW - filled) * mean.square()).clamp(
                min=0
            )
            sigma = (
                (spread / filled.clamp(min=1)).sqrt().clamp(min=0.05)
            )  # a still row is no reason for alarm
            limit = torch.where(self.count >= WINDOW // 2, mean + self.sigmas * sigma, torch.inf)
            spike = (now > limit).any() & finite & (self.spikes < SPIKES)
            self.spikes.mul_(0.999).add_(spike)
            bad = bad | spike
            now = torch.minimum(
                now, limit
            )  # what is far out is remembered as far: where all move there, the limit moves too
        place = (self.count % WINDOW).expand(1)
        self.seen.index_copy_(0, place, torch.where(finite, now, self.seen.index_select(0, place)))
        self.count += finite
        return bad.float(), (~finite).float()

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
