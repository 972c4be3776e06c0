"""A density raised to a power."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np
import torch
from torch import Tensor

from flowtempo.densities.base import Density
from flowtempo.densities.closed import Uniform
from flowtempo.densities.inverse import invert, with_slope
from flowtempo.densities.pieces import Array, Mask, fit, geometric
from flowtempo.errors import UserError
from flowtempo.forms import number

_DEGREE = 15
_TOLERANCE = 1e-13


@final
@dataclass(frozen=True)
class Power(Density):
    """The density proportional to a power of another one's: above 1 sharper, below 1 flatter.

    It is integrated numerically, from polynomials of degree 15 that follow the power to 1e-13 of its maximum.

    Attributes:
        base: The density.
        exponent: Finite and not 0 or 1. A negative one needs a base without zeros.

    Raises:
        UserError: If the exponent is out of range, the base is uniform, or the power is not bounded: then it
            may have no integral.
    """

    base: Density
    exponent: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.exponent) or self.exponent in (0, 1):
            raise UserError(
                f"power: exponent = {self.exponent} must be finite and not 0 (write uniform) or 1 (no effect)"
            )
        if isinstance(self.base, Uniform):
            raise UserError("power: of the uniform density it is uniform: write uniform")
        if self.exponent < 0 and self.base.gaps():
            raise UserError(f"power: {self.base} is 0 in places, where a negative power has no integral")
        object.__setattr__(self, "low", self.base.low)
        object.__setattr__(self, "high", self.base.high)
        _integral(self)

    def gaps(self) -> list[tuple[float, float]]:
        """Intervals of [0, 1] with zero density, in order."""
        return self.base.gaps()

    def edges(self) -> list[float]:
        """Times in (0, 1) where the pdf is not smooth, in order."""
        return self.base.edges()

    def _pdf(self, t: Tensor) -> Tensor:
        integral = _integral(self)
        return (self.base.pdf(t) / integral.top) ** self.exponent / integral.total

    def _cell(self, t: Tensor) -> Tensor:
        edges = _integral(self).edges.to(t.device)
        return (torch.searchsorted(edges, t.contiguous(), right=True) - 1).clamp(0, len(edges) - 2)

    def _cdf(self, t: Tensor) -> Tensor:
        fixed = t.detach()
        integral, cell = _integral(self), self._cell(fixed)
        edges = integral.edges.to(t.device)
        left, right = edges[cell], edges[cell + 1]
        place = (2 * fixed - left - right) / (right - left)
        rows = integral.coefficients.to(t.device)[:, cell]
        value = rows[-1]
        for row in rows[:-1].flip(0):
            value = value * place + row
        # Exactly 0 at the lower end, whatever the rounding.
        value = torch.where(fixed <= self.low, 0.0, value)
        return with_slope(value, self._pdf(fixed), t)

    def _quantile(self, u: Tensor) -> Tensor:
        integral = _integral(self)
        edges, levels = integral.edges.to(u.device), integral.levels.to(u.device)
        cell = (torch.searchsorted(levels, u.contiguous()) - 1).clamp(0, len(edges) - 2)
        return invert(self._cdf, self._pdf, u, edges[cell], edges[cell + 1])

    def __str__(self) -> str:
        return f"power({self.base}, {number(self.exponent)})"


@dataclass(frozen=True)
class _Integral:
    """The power's integral.

    Attributes:
        top: The base's pdf where the power is greatest: it is taken of pdf / top, to stay within range.
        total: Integral of (pdf / top)^exponent.
        edges: (n + 1,) edges of the cells.
        levels: (n + 1,) CDF at the edges.
        coefficients: (degree + 2, n) of the CDF in powers of the place in the cell, from -1 to 1.
    """

    top: float
    total: float
    edges: Tensor
    levels: Tensor
    coefficients: Tensor


@lru_cache(maxsize=32)
def _integral(density: Power) -> _Integral:
    base, exponent = density.base, density.exponent
    edges = geometric(base.edges(), octaves=60)
    edges = edges[(edges >= base.low) & (edges <= base.high)]
    places = np.concatenate([edges, (edges[1:] + edges[:-1]) / 2])
    pdf = base.pdf(torch.from_numpy(places))
    top = float(pdf.max() if exponent > 0 else pdf.min())
    if not 0 < top < math.inf:
        at = float(places[int(pdf.argmax() if exponent > 0 else pdf.argmin())])
        raise UserError(
            f"{density}: it is not bounded at t = {at:.3g}, and may have no integral: give the base a floor,"
            " or cut it with truncated(...)"
        )

    def power(t: Array) -> Array:
        return ((base.pdf(torch.from_numpy(t)) / top) ** exponent).numpy()[None]

    def good(t: Array, fitted: Array, true: Array) -> Mask:
        close: Mask = np.abs(fitted - true)[0] <= _TOLERANCE * np.maximum(1, true[0])
        return close

    pieces = fit(power, edges, good, _DEGREE)
    half = np.diff(pieces.edges) / 2
    powers = np.arange(1, _DEGREE + 2)
    integral = pieces.coefficients[:, 0] * half / powers[:, None]
    # From the left edge, where the place is -1.
    start = -(integral * (-1.0) ** powers[:, None]).sum(0)
    masses = np.maximum(start + integral.sum(0), 0)
    levels = np.concatenate([[0.0], masses.cumsum()])
    total = float(levels[-1])
    coefficients = np.concatenate([(start + levels[:-1])[None], integral]) / total
    return _Integral(
        top,
        total,
        torch.from_numpy(pieces.edges),
        torch.from_numpy(levels / total),
        torch.from_numpy(coefficients),
    )
