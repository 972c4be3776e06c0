"""Densities in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from flowtempo.densities.base import Density
from flowtempo.errors import UserError
from flowtempo.forms import number


@final
@dataclass(frozen=True)
class Uniform(Density):
    """The uniform density on [0, 1]."""

    def _pdf(self, t: Tensor) -> Tensor:
        return torch.ones_like(t)

    def _cdf(self, t: Tensor) -> Tensor:
        return t

    def _quantile(self, u: Tensor) -> Tensor:
        return u

    def _mass(self, lo: float, hi: float) -> float:
        return hi - lo

    def __str__(self) -> str:
        return "uniform"


@final
@dataclass(frozen=True)
class LogitNormal(Density):
    """t = sigmoid(mean + std z), z ~ N(0, 1) (Esser et al., arXiv 2403.03206, equation 19).

    Here t = 1 is data: a negative mean draws towards noise. SD3 and diffusers count the other way, so their
    mean has the other sign.

    Attributes:
        mean: Mean of logit t, finite.
        std: Standard deviation of logit t, above 0.

    Raises:
        UserError: If a parameter is out of range.
    """

    mean: float
    std: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.mean):
            raise UserError(f"logit_normal: mean = {self.mean} must be finite")
        if not 0 < self.std < math.inf:
            raise UserError(f"logit_normal: std = {self.std} must be finite and above 0")

    def _z(self, t: Tensor) -> Tensor:
        return (t.log() - (-t).log1p() - self.mean) / self.std

    def _pdf(self, t: Tensor) -> Tensor:
        log_pdf = (
            -0.5 * self._z(t) ** 2 - t.log() - (-t).log1p() - math.log(self.std * math.sqrt(2 * math.pi))
        )
        # At the ends this is inf - inf; the square wins, the density goes to 0.
        return torch.where((t > 0) & (t < 1), log_pdf, -torch.inf).exp()

    def _cdf(self, t: Tensor) -> Tensor:
        return _normal_cdf(self._z(t))

    def _quantile(self, u: Tensor) -> Tensor:
        return torch.sigmoid(self.mean + self.std * torch.special.ndtri(u))

    def _mass(self, lo: float, hi: float) -> float:
        z = self._z(torch.tensor([lo, hi], dtype=torch.float64))
        # In the upper tail the complements keep the digits that a difference near 1 would lose.
        z = -z.flip(0) if z[0] > 0 else z
        ends = _normal_cdf(z)
        return float(ends[1] - ends[0])

    def __str__(self) -> str:
        return f"logit_normal({number(self.mean)}, {number(self.std)})"


def _normal_cdf(z: Tensor) -> Tensor:
    # torch.special.ndtr is (1 + erf) / 2, which is 0 below -8.3; this keeps the digits of the lower tail.
    return torch.erfc(z * -math.sqrt(0.5)) / 2
