"""The contract that every density keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class Density(ABC):
    """A probability density of t on [0, 1] that is drawn by its inverse CDF.

    Everything is computed in float64, whatever the dtype of the argument. `str(density)` is the text form
    that `parse` reads back (a table that was never saved has none and prints a digest).

    Attributes:
        low: Lower end of the support.
        high: Upper end of the support.
    """

    low: float = 0.0
    high: float = 1.0

    def pdf(self, t: Tensor) -> Tensor:
        """Density at t, any shape, float64; 0 outside the support."""
        t = t.double()
        return torch.where((t < self.low) | (t > self.high), 0.0, self._pdf(t.clamp(self.low, self.high)))

    def cdf(self, t: Tensor) -> Tensor:
        """Probability below t, any shape, float64."""
        t = t.double()
        inside = self._cdf(t.clamp(self.low, self.high)).clamp(0, 1)
        return torch.where(t >= self.high, 1.0, inside)

    def quantile(self, u: Tensor) -> Tensor:
        """Smallest t in the support with cdf(t) >= u, any shape, float64; NaN for u outside [0, 1]."""
        u = u.double()
        t = self._quantile(u.clamp(0, 1)).clamp(self.low, self.high)
        # Exact at the ends, whatever the rounding of the inverse.
        t = torch.where(u == 0, self.low, torch.where(u == 1, self.high, t))
        return torch.where((u >= 0) & (u <= 1), t, torch.nan)

    def mass(self, lo: float, hi: float) -> float:
        """Probability of lo <= t <= hi.

        Raises:
            ValueError: If lo > hi or one is NaN.
        """
        if not lo <= hi:
            raise ValueError(f"mass needs lo <= hi, not {lo} and {hi}")
        lo, hi = max(lo, self.low), min(hi, self.high)
        return self._mass(lo, hi) if lo < hi else 0.0

    def draw(self, u: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Map uniforms to times that are never exactly 0 or 1.

        Args:
            u: Uniforms in [0, 1], any shape.
            dtype: float32 or wider: half precision would round many times to 1.

        Returns:
            `quantile(u)` in `dtype`, clamped to the open interval (0, 1) of that dtype.

        Raises:
            ValueError: If the dtype is narrower than float32.
        """
        if torch.promote_types(dtype, torch.float32) != dtype:
            raise ValueError(f"times are float32 or wider, not {dtype}")
        return open_interval(self.quantile(u).to(dtype))

    def gaps(self) -> list[tuple[float, float]]:
        """Intervals of [0, 1] with zero density, in order."""
        outside = [(0.0, self.low), (self.high, 1.0)]
        return [(lo, hi) for lo, hi in outside if lo < hi]

    def edges(self) -> list[float]:
        """Times in (0, 1) where the pdf is not smooth, in order."""
        return [t for t in (self.low, self.high) if 0 < t < 1]

    @abstractmethod
    def __str__(self) -> str: ...

    # Called with t in the support and u in [0, 1], float64.

    @abstractmethod
    def _pdf(self, t: Tensor) -> Tensor: ...

    @abstractmethod
    def _cdf(self, t: Tensor) -> Tensor: ...

    @abstractmethod
    def _quantile(self, u: Tensor) -> Tensor: ...

    def _mass(self, lo: float, hi: float) -> float:
        ends = self.cdf(torch.tensor([lo, hi], dtype=torch.float64))
        return float(ends[1] - ends[0])


def open_interval(t: Tensor) -> Tensor:
    """Clamp to the least and greatest normal numbers of the dtype inside (0, 1)."""
    info = torch.finfo(t.dtype)
    return t.clamp(info.tiny, 1 - info.eps / 2)
