"""EDM's density of the noise level sigma."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from flowtempo.densities.base import Density
from flowtempo.densities.closed import normal_cdf
from flowtempo.errors import UserError
from flowtempo.forms import number
from flowtempo.interpolants import Interpolant, Linear

_LINEAR = Linear()
# What is drawn of the normal, at least.
_LEAST_MASS = 1e-6


@final
@dataclass(frozen=True)
class EDM(Density):
    """ln sigma ~ N(mean, std^2) for EDM's noise level sigma, here sigma(t) / alpha(t).

    So log_snr ~ N(-2 mean, 4 std^2), whatever the path (Karras et al., arXiv 2206.00364, table 1: -1.2 and
    1.2). On the linear path that is `logit_normal(-mean, std)`. A path that does not reach every log-SNR is
    drawn as far as it goes: the normal is truncated.

    Attributes:
        mean: Mean of ln sigma, finite.
        std: Its standard deviation, above 0.
        interpolant: The path that maps log-SNR to t.

    Raises:
        UserError: If a parameter is out of range, or the path reaches less than a millionth of the normal.
    """

    mean: float
    std: float
    interpolant: Interpolant = _LINEAR

    def __post_init__(self) -> None:
        if not math.isfinite(self.mean):
            raise UserError(f"edm: mean = {self.mean} must be finite")
        if not 0 < self.std < math.inf:
            raise UserError(f"edm: std = {self.std} must be finite and above 0")
        inside = self._parts[1]
        if not inside >= _LEAST_MASS:
            raise UserError(
                f"edm: only {inside:.3g} of ln sigma ~ N({number(self.mean)}, {number(self.std)}^2) lies on"
                f" the path {self.interpolant}"
            )

    @cached_property
    def _parts(self) -> tuple[float, float, float]:
        """Mass of the normal below the path, on it, and above it."""
        z = self._z(torch.tensor([0.0, 1.0], dtype=torch.float64))
        (below, to_high), (from_low, above) = normal_cdf(z).tolist(), normal_cdf(-z).tolist()
        # In the upper tail the complements keep the digits.
        return below, from_low - above if z[0] > 0 else to_high - below, above

    def _z(self, t: Tensor) -> Tensor:
        return (self.interpolant.log_snr(t) / 2 + self.mean) / self.std

    def _pdf(self, t: Tensor) -> Tensor:
        z = self._z(t)
        slope = self.interpolant.d_log_snr(t)
        log_pdf = -0.5 * z**2 + slope.log() - math.log(2 * self.std * math.sqrt(2 * math.pi) * self._parts[1])
        # Where log-SNR is infinite so is its slope; the square wins, the density goes to 0.
        return torch.where(z.isfinite(), log_pdf, -torch.inf).exp()

    def _cdf(self, t: Tensor) -> Tensor:
        below, inside, _ = self._parts
        return (normal_cdf(self._z(t)) - below) / inside

    def _quantile(self, u: Tensor) -> Tensor:
        below, inside, above = self._parts
        lower = torch.special.ndtri((below + u * inside).clamp(0, 1))
        upper = -torch.special.ndtri((above + (1 - u) * inside).clamp(0, 1))
        z = torch.where(lower < 0, lower, upper)
        return self.interpolant.time(2 * (z * self.std - self.mean))

    def __str__(self) -> str:
        path = "" if self.interpolant == _LINEAR else f", {self.interpolant}"
        return f"edm({number(self.mean)}, {number(self.std)}{path})"
