"""A density times a factor for each of some parts of its probability."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from flowtempo.densities import Density


@final
class Reweighted(Density):
    """A density times a factor for each of B parts of equal probability.

    Args:
        base: The density.
        shares: (B,) probability of each part, above 0; any scale.
        told: Text form, which cannot be parsed.

    Raises:
        ValueError: If a share is not above 0, or there is none.
    """

    def __init__(self, base: Density, shares: Tensor, told: str) -> None:
        shares = shares.double()
        if shares.ndim != 1 or not len(shares) or not bool(((shares > 0) & shares.isfinite()).all()):
            raise ValueError("shares must be finite numbers above 0")
        self.base = base
        self.low, self.high = base.low, base.high
        self.shares = shares / shares.sum()
        self._told = told
        self._ends = torch.cat([torch.zeros(1, dtype=torch.float64), self.shares.cumsum(0)])
        self._ends[-1] = 1.0

    def factor(self, t: Tensor) -> Tensor:
        """Density over that of the base, float64."""
        return self._over(self._part(self.base.cdf(t)))

    def _over(self, part: Tensor) -> Tensor:
        return self.shares.to(part.device)[part] * len(self.shares)

    def _part(self, probability: Tensor) -> Tensor:
        return (probability * len(self.shares)).long().clamp(0, len(self.shares) - 1)

    def _pdf(self, t: Tensor) -> Tensor:
        return self.base.pdf(t) * self.factor(t)

    def _cdf(self, t: Tensor) -> Tensor:
        below = self.base.cdf(t)
        part = self._part(below)
        within = below * len(self.shares) - part
        return self._ends.to(t.device)[part] + within * self.shares.to(t.device)[part]

    def _quantile(self, u: Tensor) -> Tensor:
        ends = self._ends.to(u.device)
        part = (torch.searchsorted(ends, u.contiguous()) - 1).clamp(0, len(self.shares) - 1)
        within = (u - ends[part]) / self.shares.to(u.device)[part]
        return self.base.quantile(((part + within.clamp(0, 1)) / len(self.shares)).clamp(0, 1))

    def gaps(self) -> list[tuple[float, float]]:
        """Those of the base."""
        return self.base.gaps()

    def __str__(self) -> str:
        return self._told
