"""Densities made from another one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from flowtempo.densities.base import Density
from flowtempo.errors import UserError
from flowtempo.forms import number

# A part this small leaves the quantile of a truncation with fewer than ten digits.
_LEAST_MASS = 1e-6

_EPS = torch.finfo(torch.float64).eps


@final
@dataclass(frozen=True)
class Mixture(Density):
    """(1 - floor) base + floor uniform: no time is left out, and importance weights are at most 1 / floor.

    Attributes:
        base: The density that gets a floor.
        floor: Share of the uniform density, above 0 and below 1.

    Raises:
        UserError: If the share is out of range.
    """

    base: Density
    floor: float

    def __post_init__(self) -> None:
        if not 0 < self.floor < 1:
            raise UserError(f"mixture: floor = {self.floor} must be above 0 and below 1")

    def _pdf(self, t: Tensor) -> Tensor:
        return (1 - self.floor) * self.base.pdf(t) + self.floor

    def _cdf(self, t: Tensor) -> Tensor:
        return (1 - self.floor) * self.base.cdf(t) + self.floor * t

    def _quantile(self, u: Tensor) -> Tensor:
        # The CDF minus u is not positive at the lesser of u and the base's quantile, and not negative at
        # the greater, so the root lies between: Newton steps, and a bisection wherever one would leave the
        # bracket or does not halve the last. Settled means within the rounding of the CDF or of t.
        inverse = self.base.quantile(u)
        lo, hi = torch.minimum(u, inverse), torch.maximum(u, inverse)
        t = (lo + hi) / 2
        last = hi - lo
        for _ in range(100):
            excess = self._cdf(t) - u
            lo, hi = torch.where(excess < 0, t, lo), torch.where(excess < 0, hi, t)
            step = excess / self._pdf(t)
            settled = (excess.abs() <= 64 * _EPS * u) | (torch.minimum(step.abs(), hi - lo) <= _EPS * t)
            if bool(settled.all()):
                break
            newton = t - step
            good = (newton >= lo) & (newton <= hi) & (step.abs() < last / 2)
            moved = torch.where(settled, t, torch.where(good, newton, (lo + hi) / 2))
            last, t = (moved - t).abs(), moved
        return t

    def _mass(self, lo: float, hi: float) -> float:
        return (1 - self.floor) * self.base.mass(lo, hi) + self.floor * (hi - lo)

    def __str__(self) -> str:
        return f"mixture({self.base}, {number(self.floor)})"


@final
@dataclass(frozen=True)
class Truncated(Density):
    """The density of `base` given low <= t <= high, drawn by the inverse CDF, without rejection.

    Attributes:
        base: The density to cut.
        low: Lower end, 0 <= low < high.
        high: Upper end, at most 1.

    Raises:
        UserError: If the ends are out of order, or less than a millionth of `base` lies between them.
    """

    base: Density
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= 1:
            raise UserError(
                f"truncated: low = {self.low} and high = {self.high} must be 0 <= low < high <= 1"
            )
        inside = self.base.mass(self.low, self.high)
        if inside < _LEAST_MASS:
            raise UserError(
                f"truncated: only {inside:.3g} of {self.base} lies in"
                f" [{number(self.low)}, {number(self.high)}]"
            )

    def _below(self) -> float:
        return self.base.mass(0.0, self.low)

    def _inside(self) -> float:
        return self.base.mass(self.low, self.high)

    def _pdf(self, t: Tensor) -> Tensor:
        return self.base.pdf(t) / self._inside()

    def _cdf(self, t: Tensor) -> Tensor:
        return (self.base.cdf(t) - self._below()) / self._inside()

    def _quantile(self, u: Tensor) -> Tensor:
        return self.base.quantile((self._below() + u * self._inside()).clamp(0, 1))

    def _mass(self, lo: float, hi: float) -> float:
        return min(1.0, self.base.mass(lo, hi) / self._inside())

    def gaps(self) -> list[tuple[float, float]]:
        """Intervals of [0, 1] with zero density, in order."""
        inside = [(max(lo, self.low), min(hi, self.high)) for lo, hi in self.base.gaps()]
        return sorted(super().gaps() + [(lo, hi) for lo, hi in inside if lo < hi])

    def __str__(self) -> str:
        return f"truncated({self.base}, {number(self.low)}, {number(self.high)})"
