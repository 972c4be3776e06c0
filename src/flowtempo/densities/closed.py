"""Densities in closed form."""

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

_GREATEST_MODE = 2 / (math.pi - 2)
# Rounding of the mode's map, beside its value.
_PRECISION = 8 * torch.finfo(torch.float64).eps


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

    Here t = 1 is data: a negative mean draws towards noise. Where the noise level 1 - t is drawn, as in SD3's
    paper, the mean has the other sign (`flowtempo export` says it for each trainer).

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
        return normal_cdf(self._z(t))

    def _quantile(self, u: Tensor) -> Tensor:
        return torch.sigmoid(self.mean + self.std * torch.special.ndtri(u))

    def _mass(self, lo: float, hi: float) -> float:
        z = self._z(torch.tensor([lo, hi], dtype=torch.float64))
        # In the upper tail the complements keep the digits that a difference near 1 would lose.
        z = -z.flip(0) if z[0] > 0 else z
        ends = normal_cdf(z)
        return float(ends[1] - ends[0])

    def __str__(self) -> str:
        return f"logit_normal({number(self.mean)}, {number(self.std)})"


@final
@dataclass(frozen=True)
class Mode(Density):
    """SD3's mode sampling: t = u + scale (u - sin^2(pi u / 2)) for a uniform u.

    The same draw in the noise level 1 - t is Esser et al., arXiv 2403.03206, equation 20, at 1 - u: a
    positive scale draws towards the middle, a negative one towards both ends. The map is the inverse CDF
    itself; the pdf is the inverse of its slope, infinite at t = 1/2 for the greatest scale and at both ends
    for the least.

    Attributes:
        scale: -1 to 2 / (pi - 2) = 1.7519; SD3 and diffusers use 1.29.

    Raises:
        UserError: If the scale is outside that range, where the map is not monotone.
    """

    scale: float

    def __post_init__(self) -> None:
        if not -1 <= self.scale <= _GREATEST_MODE:
            raise UserError(
                f"mode: scale = {self.scale} must be between -1 and 2 / (pi - 2) = 1.7519: beyond, the map"
                " from uniforms to times is not monotone"
            )

    def _slope(self, u: Tensor) -> Tensor:
        return (1 + self.scale * (1 - math.pi / 2 * torch.sin(math.pi * u))).clamp(min=0)

    def _level(self, t: Tensor) -> Tensor:
        # From the nearer end: the map is odd about (1/2, 1/2).
        near = torch.minimum(t, 1 - t)
        # Up to 1/2, u >= sin^2(pi u / 2): that bounds t by multiples of u.
        ends = near / (1 + max(self.scale, 0)), near / max(1 + min(self.scale, 0), 1e-300)
        u = invert(self._quantile, self._slope, near, ends[0], ends[1].clamp(max=0.5), _PRECISION)
        return torch.where(t <= 0.5, u, 1 - u)

    def _pdf(self, t: Tensor) -> Tensor:
        return 1 / self._slope(self._level(t))

    def _cdf(self, t: Tensor) -> Tensor:
        level = self._level(t.detach())
        return with_slope(level, 1 / self._slope(level), t)

    def _quantile(self, u: Tensor) -> Tensor:
        return (1 + self.scale) * u - self.scale * torch.sin(math.pi / 2 * u) ** 2

    def __str__(self) -> str:
        return f"mode({number(self.scale)})"


@final
@dataclass(frozen=True)
class CosMap(Density):
    """SD3's CosMap, 2 / (pi (1 - 2 t + 2 t^2)): drawn on the linear path, log-SNR is the cosine schedule's.

    Esser et al., arXiv 2403.03206, equation 21. It is the same in t and in the noise level 1 - t.
    """

    def _pdf(self, t: Tensor) -> Tensor:
        return 2 / (math.pi * (t**2 + (1 - t) ** 2))

    def _cdf(self, t: Tensor) -> Tensor:
        return torch.atan2(t, 1 - t) * (2 / math.pi)

    def _quantile(self, u: Tensor) -> Tensor:
        sine = torch.sin(math.pi / 2 * u)
        return sine / (sine + torch.sin(math.pi / 2 * (1 - u)))

    def __str__(self) -> str:
        return "cosmap"


def normal_cdf(z: Tensor) -> Tensor:
    """Mass of the standard normal below z."""
    # torch.special.ndtr is (1 + erf) / 2, which is 0 below -8.3; this keeps the digits of the lower tail.
    return torch.erfc(z * -math.sqrt(0.5)) / 2
