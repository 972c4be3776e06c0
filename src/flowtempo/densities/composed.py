"""Densities made from another one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from flowtempo.densities.base import Density
from flowtempo.densities.inverse import invert
from flowtempo.errors import UserError
from flowtempo.forms import number

# A part this small leaves the quantile of a truncation with fewer than ten digits.
_LEAST_MASS = 1e-6


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
        return _between(self, self.base.quantile(u), u, u)

    def _mass(self, lo: float, hi: float) -> float:
        return (1 - self.floor) * self.base.mass(lo, hi) + self.floor * (hi - lo)

    def edges(self) -> list[float]:
        """Times in (0, 1) where the pdf is not smooth, in order."""
        return self.base.edges()

    def __str__(self) -> str:
        return f"mixture({self.base}, {number(self.floor)})"


@final
@dataclass(frozen=True)
class Blend(Density):
    """(1 - share) first + share second.

    Attributes:
        first: A density.
        second: Another one; for a uniform floor write `mixture`.
        share: Share of the second, above 0 and below 1.

    Raises:
        UserError: If the share is out of range, or the two are the same.
    """

    first: Density
    second: Density
    share: float

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise UserError(f"blend: share = {self.share} must be above 0 and below 1")
        if self.first == self.second:
            raise UserError(f"blend: both are {self.first}, so that the share has no effect: write it alone")
        object.__setattr__(self, "low", min(self.first.low, self.second.low))
        object.__setattr__(self, "high", max(self.first.high, self.second.high))

    def _pdf(self, t: Tensor) -> Tensor:
        return (1 - self.share) * self.first.pdf(t) + self.share * self.second.pdf(t)

    def _cdf(self, t: Tensor) -> Tensor:
        return (1 - self.share) * self.first.cdf(t) + self.share * self.second.cdf(t)

    def _quantile(self, u: Tensor) -> Tensor:
        return _between(self, self.first.quantile(u), self.second.quantile(u), u)

    def _mass(self, lo: float, hi: float) -> float:
        return (1 - self.share) * self.first.mass(lo, hi) + self.share * self.second.mass(lo, hi)

    def gaps(self) -> list[tuple[float, float]]:
        """Intervals of [0, 1] with zero density, in order: those that both leave out."""
        both = [
            (max(lo, low), min(hi, high)) for lo, hi in self.first.gaps() for low, high in self.second.gaps()
        ]
        return sorted((lo, hi) for lo, hi in both if lo < hi)

    def edges(self) -> list[float]:
        """Times in (0, 1) where the pdf is not smooth, in order."""
        return sorted({*self.first.edges(), *self.second.edges()})

    def __str__(self) -> str:
        return f"blend({self.first}, {self.second}, {number(self.share)})"


@final
@dataclass(frozen=True)
class Truncated(Density):
    """The density of `base` given low <= t <= high, drawn by the inverse CDF, without rejection.

    The ends are in the final time: of a shifted base, after the shift.

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

    def edges(self) -> list[float]:
        """Times in (0, 1) where the pdf is not smooth, in order."""
        return sorted({*super().edges(), *(t for t in self.base.edges() if self.low < t < self.high)})

    def __str__(self) -> str:
        return f"truncated({self.base}, {number(self.low)}, {number(self.high)})"


def _between(density: Density, one: Tensor, other: Tensor, u: Tensor) -> Tensor:
    """Quantile of a weighted sum of two densities, which lies between the quantiles of the two."""
    return invert(density.cdf, density.pdf, u, torch.minimum(one, other), torch.maximum(one, other))
