"""The beta density, with the incomplete beta function and its inverse."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from flowtempo.densities.base import Density
from flowtempo.densities.inverse import invert, with_slope
from flowtempo.errors import UserError
from flowtempo.forms import number

_LEAST, _MOST = 0.1, 500.0
_MOST_TERMS = 400
_TINY, _EPS = 1e-300, torch.finfo(torch.float64).eps
# sigmoid(-700) is about the smallest time that a float64 holds with all its digits.
_FAR = 700.0


@final
@dataclass(frozen=True)
class Beta(Density):
    """The beta density, proportional to t^(a - 1) (1 - t)^(b - 1).

    Its CDF is the incomplete beta function, by its continued fraction (DLMF 8.17.22) to 1e-12; t = 1 is data,
    so a > b draws towards the data.

    Attributes:
        a: Exponent at the noise end, 0.1 to 500.
        b: Exponent at the data end, 0.1 to 500. Below 0.3 more than 1e-5 of the mass lies nearer to 1 than
            any float64.

    Raises:
        UserError: If a parameter is out of range.
    """

    a: float
    b: float

    def __post_init__(self) -> None:
        for name, value in (("a", self.a), ("b", self.b)):
            if not _LEAST <= value <= _MOST:
                raise UserError(f"beta: {name} = {value} must be between {_LEAST} and {number(_MOST)}")

    def _pdf(self, t: Tensor) -> Tensor:
        # xlogy is 0 where the exponent is.
        exponents = torch.tensor([self.a - 1, self.b - 1], dtype=torch.float64, device=t.device)
        left, right = exponents[0].xlogy(t), exponents[1].xlogy(1 - t)
        return (left + right - _log_beta(self.a, self.b)).exp()

    def _cdf(self, t: Tensor) -> Tensor:
        fixed = t.detach()
        return with_slope(_tails(self.a, self.b, fixed, 1 - fixed)[0], self._pdf(fixed), t)

    def _quantile(self, u: Tensor) -> Tensor:
        # In y = logit t, and from the end with less mass: the log of that tail is close to a line in y, so
        # that few steps find it however small it is.
        upper = u > 0.5
        level = -torch.where(upper, 1 - u, u).clamp(min=_TINY).log()
        ends = torch.full_like(u, _FAR)

        def tail(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            # y >= 0 goes out along the tail on either side.
            y = torch.where(upper, -y, y)
            t, rest = torch.sigmoid(-y), torch.sigmoid(y)
            lower, above = _tails(self.a, self.b, t, rest)
            return torch.where(upper, above, lower).clamp(min=_TINY), t, rest

        def log_tail(y: Tensor) -> Tensor:
            return -tail(y)[0].log()

        def slope(y: Tensor) -> Tensor:
            mass, t, rest = tail(y)
            return (self.a * t.log() + self.b * rest.log() - _log_beta(self.a, self.b)).exp() / mass

        # The tail is the exponential of terms up to a + b in size, and rounds like them.
        y = invert(log_tail, slope, level, -ends, ends, (64 + self.a + self.b) * _EPS)
        return torch.sigmoid(torch.where(upper, y, -y))

    def __str__(self) -> str:
        return f"beta({number(self.a)}, {number(self.b)})"


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _tails(a: float, b: float, t: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
    """Mass below and above t, each with its digits where it is the smaller; `rest` is 1 - t."""
    near = t <= (a + 1) / (a + b + 2)
    # As tensors: two numbers would be rounded to float32.
    first, second = t.new_tensor(a), t.new_tensor(b)
    alpha, beta = torch.where(near, first, second), torch.where(near, second, first)
    x, other = torch.where(near, t, rest), torch.where(near, rest, t)
    factor = (alpha.xlogy(x) + beta.xlogy(other) - _log_beta(a, b)).exp() / alpha
    small = (factor * _continued_fraction(alpha, beta, x)).clamp(0, 1)
    return torch.where(near, small, 1 - small), torch.where(near, 1 - small, small)


def _continued_fraction(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """DLMF 8.17.22 by Lentz's method; terms are added to an element until it no longer changes."""
    c = torch.ones_like(x)
    d = 1 / (1 - (a + b) * x / (a + 1))
    total, changing = d, torch.ones_like(x, dtype=torch.bool)
    for m in range(1, _MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d, c = 1 / (1 + even * d), 1 + even / c
        factor = d * c
        d, c = 1 / (1 + odd * d), 1 + odd / c
        factor = factor * d * c
        total = torch.where(changing, total * factor, total)
        changing = changing & ((factor - 1).abs() > _EPS)
        if x.device.type == "cpu" and not bool(changing.any()):
            break
    return total
