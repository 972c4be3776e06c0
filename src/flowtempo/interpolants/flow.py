"""Flow-matching paths, which reach pure noise at t = 0 and the data at t = 1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from flowtempo.interpolants.base import Interpolant, wide


@final
@dataclass(frozen=True)
class Linear(Interpolant):
    """alpha = t, sigma = 1 - t (rectified flow, conditional optimal transport)."""

    name: ClassVar[str] = "linear"

    def alpha(self, t: Tensor) -> Tensor:
        """Return t."""
        return wide(t)

    def sigma(self, t: Tensor) -> Tensor:
        """Return 1 - t."""
        return 1 - wide(t)

    def d_alpha(self, t: Tensor) -> Tensor:
        """Return 1."""
        return torch.ones_like(wide(t))

    def d_sigma(self, t: Tensor) -> Tensor:
        """Return -1."""
        return -torch.ones_like(wide(t))

    def wronskian(self, t: Tensor) -> Tensor:
        """Return 1."""
        return torch.ones_like(wide(t))

    def log_snr(self, t: Tensor) -> Tensor:
        """2 log(t / (1 - t)): -inf at t = 0 and +inf at t = 1."""
        t = wide(t)
        return 2 * (t.log() - (-t).log1p())

    def time(self, log_snr: Tensor) -> Tensor:
        """Return sigmoid(log_snr / 2)."""
        return torch.sigmoid(wide(log_snr) / 2)


@final
@dataclass(frozen=True)
class Trigonometric(Interpolant):
    """alpha = sin(pi t / 2), sigma = cos(pi t / 2) (SiT's GVP); alpha^2 + sigma^2 = 1."""

    name: ClassVar[str] = "trigonometric"

    def alpha(self, t: Tensor) -> Tensor:
        """Return sin(pi t / 2)."""
        return torch.sin(math.pi / 2 * wide(t))

    def sigma(self, t: Tensor) -> Tensor:
        """Return cos(pi t / 2)."""
        # 1 - t is exact near t = 1, where the cosine of a rounded multiple of pi is not small.
        return torch.sin(math.pi / 2 * (1 - wide(t)))

    def d_alpha(self, t: Tensor) -> Tensor:
        """Return (pi / 2) sigma."""
        return math.pi / 2 * self.sigma(t)

    def d_sigma(self, t: Tensor) -> Tensor:
        """Return -(pi / 2) alpha."""
        return -math.pi / 2 * self.alpha(t)

    def wronskian(self, t: Tensor) -> Tensor:
        """Return pi / 2."""
        return torch.full_like(wide(t), math.pi / 2)

    def log_snr(self, t: Tensor) -> Tensor:
        """2 log tan(pi t / 2): -inf at t = 0 and +inf at t = 1."""
        return 2 * (self.alpha(t).log() - self.sigma(t).log())

    def time(self, log_snr: Tensor) -> Tensor:
        """Return (2 / pi) atan(exp(log_snr / 2))."""
        # Rounding at +inf must not pass 1.
        return (torch.atan(torch.exp(wide(log_snr) / 2)) * (2 / math.pi)).clamp(max=1)
