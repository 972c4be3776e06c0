"""Paths of diffusion models."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from flowtempo.errors import UserError
from flowtempo.interpolants.base import Interpolant, wide


@final
@dataclass(frozen=True)
class VariancePreserving(Interpolant):
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

    def _log_alpha(self, t: Tensor) -> Tensor:
        s = 1 - wide(t)
        return -s * (s * ((self.beta_max - self.beta_min) / 4) + self.beta_min / 2)

    def _beta(self, t: Tensor) -> Tensor:
        return self.beta_min + (1 - wide(t)) * (self.beta_max - self.beta_min)

    def alpha(self, t: Tensor) -> Tensor:
        """Return exp(L)."""
        return self._log_alpha(t).exp()

    def sigma(self, t: Tensor) -> Tensor:
        """Return sqrt(1 - exp(2 L))."""
        return (-torch.expm1(2 * self._log_alpha(t))).sqrt()

    def d_alpha(self, t: Tensor) -> Tensor:
        """Return alpha beta / 2."""
        return self.alpha(t) * self._beta(t) / 2

    def d_sigma(self, t: Tensor) -> Tensor:
        """Return -alpha alpha' / sigma: -inf at t = 1."""
        return -self.alpha(t) * self.d_alpha(t) / self.sigma(t)

    def wronskian(self, t: Tensor) -> Tensor:
        """Return alpha beta / (2 sigma): +inf at t = 1."""
        return self.d_alpha(t) / self.sigma(t)

    def log_snr(self, t: Tensor) -> Tensor:
        """2 L - log(1 - exp(2 L)): finite at t = 0 and +inf at t = 1."""
        twice = 2 * self._log_alpha(t)
        return twice - (-torch.expm1(twice)).log()

    def d_log_snr(self, t: Tensor) -> Tensor:
        """Return beta / sigma^2: +inf at t = 1."""
        return self._beta(t) / -torch.expm1(2 * self._log_alpha(t))

    def time(self, log_snr: Tensor) -> Tensor:
        """Inverse of `log_snr`; a log-SNR below that of t = 0 gives t < 0, which the path does not reach."""
        # -2 L = q with q = -log sigmoid(log_snr), i.e. a s^2 + b s = q. The root is written without a
        # difference, and divided by q, so that it holds for q = inf too.
        q = -torch.nn.functional.logsigmoid(wide(log_snr))
        q = q.clamp_min(torch.finfo(q.dtype).tiny)
        b_q = self.beta_min / q
        return 1 - 2 / (b_q + (b_q * b_q + 2 * (self.beta_max - self.beta_min) / q).sqrt())

    def velocity_to_data(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Coefficients (p, q) of x1 = p u + q x_t: (sigma^2 / alpha', alpha), finite at t = 1."""
        return -torch.expm1(2 * self._log_alpha(t)) / self.d_alpha(t), self.alpha(t)

    def velocity_to_noise(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Coefficients (p, q) of x0 = p u + q x_t: (-2 sigma / beta, sigma), finite at t = 1."""
        sigma = self.sigma(t)
        return -2 * sigma / self._beta(t), sigma
