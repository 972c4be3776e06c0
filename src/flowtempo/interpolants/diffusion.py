"""Continuous paths of diffusion models: variance preserving and variance exploding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from flowtempo.errors import UserError
from flowtempo.interpolants.base import Interpolant, Preserving, wide


@final
@dataclass(frozen=True)
class VariancePreserving(Preserving):
    """The VP diffusion path with linear beta(s) = beta_min + s (beta_max - beta_min), s = 1 - t.

    alpha = exp(L) with L = -s^2 (beta_max - beta_min) / 4 - s beta_min / 2, and sigma = sqrt(1 - alpha^2)
    (Song et al., arXiv 2011.13456, equation 33). alpha(0) is small and not zero: the lowest log-SNR in
    [0, 1] is finite (-10.05 by default). sigma has a vertical tangent at t = 1, so that sigma', the
    Wronskian and the velocity have a pole there (-inf, +inf, infinite); end at t < 1.

    Attributes:
        beta_min: beta at the data end, above 0.
        beta_max: beta at the noise end, at least `beta_min`.

    Raises:
        UserError: If the bounds are not finite or out of order.
    """

    name: ClassVar[str] = "variance_preserving"

    beta_min: float = 0.1
    beta_max: float = 20.0

    def __post_init__(self) -> None:
        if not 0 < self.beta_min <= self.beta_max < math.inf:
            raise UserError(
                f"beta_min = {self.beta_min} and beta_max = {self.beta_max}:"
                " use finite numbers with 0 < beta_min <= beta_max"
            )

    def _log_alpha(self, rest: Tensor) -> Tensor:
        return -rest * (rest * ((self.beta_max - self.beta_min) / 4) + self.beta_min / 2)

    def _beta(self, rest: Tensor) -> Tensor:
        return self.beta_min + rest * (self.beta_max - self.beta_min)

    def _alpha(self, t: Tensor, rest: Tensor) -> Tensor:
        return self._log_alpha(rest).exp()

    def _sigma(self, t: Tensor, rest: Tensor) -> Tensor:
        return (-torch.expm1(2 * self._log_alpha(rest))).sqrt()

    def _d_alpha(self, t: Tensor, rest: Tensor) -> Tensor:
        return self._alpha(t, rest) * self._beta(rest) / 2

    def _log_snr(self, t: Tensor, rest: Tensor) -> Tensor:
        twice = 2 * self._log_alpha(rest)
        return twice - (-torch.expm1(twice)).log()

    def _d_log_snr(self, t: Tensor, rest: Tensor) -> Tensor:
        return self._beta(rest) / -torch.expm1(2 * self._log_alpha(rest))

    def time(self, log_snr: Tensor) -> Tensor:
        """Inverse of `log_snr`; one below that of t = 0 gives t < 0, which the path does not reach."""
        # -2 L = q with q = -log sigmoid(log_snr), i.e. a s^2 + b s = q. The root is written without a
        # difference, and divided by q, so that it holds for q = inf too.
        q = -torch.nn.functional.logsigmoid(wide(log_snr))
        q = q.clamp_min(torch.finfo(q.dtype).tiny)
        b_q = self.beta_min / q
        return 1 - 2 / (b_q + (b_q * b_q + 2 * (self.beta_max - self.beta_min) / q).sqrt())

    def _velocity_to_noise(self, t: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        # alpha / alpha' without alpha, which may underflow.
        sigma = self._sigma(t, rest)
        return -2 * sigma / self._beta(rest), sigma


@final
@dataclass(frozen=True)
class VarianceExploding(Interpolant):
    """The VE path of EDM: alpha = 1, sigma geometric from sigma_max at t = 0 to sigma_min at t = 1.

    x_t = x1 + sigma x0 with log_snr = -2 log sigma linear in t, from -2 log sigma_max to -2 log sigma_min; it
    reaches neither pure noise nor the data (Song et al., arXiv 2011.13456, equation 31; the defaults are the
    sampling range of Karras et al., arXiv 2206.00364, table 1).

    Attributes:
        sigma_min: Noise at the data end, above 0.
        sigma_max: Noise at the noise end, above `sigma_min`.

    Raises:
        UserError: If the bounds are not finite or out of order.
    """

    name: ClassVar[str] = "variance_exploding"

    sigma_min: float = 0.002
    sigma_max: float = 80.0

    def __post_init__(self) -> None:
        if not 0 < self.sigma_min < self.sigma_max < math.inf:
            raise UserError(
                f"sigma_min = {self.sigma_min} and sigma_max = {self.sigma_max}:"
                " use finite numbers with 0 < sigma_min < sigma_max"
            )

    @property
    def _span(self) -> float:
        """log(sigma_max / sigma_min)."""
        return math.log(self.sigma_max) - math.log(self.sigma_min)

    def _log_sigma(self, t: Tensor, rest: Tensor) -> Tensor:
        return rest * math.log(self.sigma_max) + t * math.log(self.sigma_min)

    def _alpha(self, t: Tensor, rest: Tensor) -> Tensor:
        return torch.ones_like(t)

    def _sigma(self, t: Tensor, rest: Tensor) -> Tensor:
        return self._log_sigma(t, rest).exp()

    def _d_alpha(self, t: Tensor, rest: Tensor) -> Tensor:
        return torch.zeros_like(t)

    def _d_sigma(self, t: Tensor, rest: Tensor) -> Tensor:
        return -self._span * self._sigma(t, rest)

    def _wronskian(self, t: Tensor, rest: Tensor) -> Tensor:
        return self._span * self._sigma(t, rest)

    def _log_snr(self, t: Tensor, rest: Tensor) -> Tensor:
        return -2 * self._log_sigma(t, rest)

    def _d_log_snr(self, t: Tensor, rest: Tensor) -> Tensor:
        return torch.full_like(t, 2 * self._span)

    def time(self, log_snr: Tensor) -> Tensor:
        """Return (log sigma_max + log_snr / 2) / log(sigma_max / sigma_min)."""
        return (wide(log_snr) / 2 + math.log(self.sigma_max)) / self._span
