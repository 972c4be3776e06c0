"""Interpolants x_t = alpha(t) x1 + sigma(t) x0 between noise x0 (t = 0) and data x1 (t = 1).

Schedules follow Ma et al., "SiT" (arXiv 2401.08740), section 2. All functions of t are elementwise, keep the
shape and the dtype (half precision is widened to float32) and are exact at the ends. Where a formula has a
pole the value is an infinity of the right sign, and the method says so.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from flowtempo.errors import UserError

__all__ = [
    "INTERPOLANTS",
    "Interpolant",
    "Linear",
    "Trigonometric",
    "VariancePreserving",
    "interpolant",
    "per_sample",
]


def per_sample(coefficient: Tensor, x: Tensor) -> Tensor:
    """Shape a coefficient per sample so that it multiplies a batch.

    Args:
        coefficient: (B,) float.
        x: (B, ...) float.

    Returns:
        (B, 1, ..., 1) in the dtype of `x`, float32 at least.

    Raises:
        ValueError: If the coefficient is not one number for each sample of `x`.
    """
    if x.ndim == 0 or coefficient.shape != x.shape[:1]:
        raise ValueError(
            f"expected one value per sample of a batch of shape {tuple(x.shape)},"
            f" but got shape {tuple(coefficient.shape)}"
        )
    dtype = torch.promote_types(x.dtype, torch.float32)
    return coefficient.to(dtype).reshape(-1, *[1] * (x.ndim - 1))


class Interpolant(ABC):
    """A pair of schedules alpha (rising) and sigma (falling) on t in [0, 1], with their derivatives."""

    name: ClassVar[str]

    @abstractmethod
    def alpha(self, t: Tensor) -> Tensor:
        """Scale of the data."""

    @abstractmethod
    def sigma(self, t: Tensor) -> Tensor:
        """Scale of the noise."""

    @abstractmethod
    def d_alpha(self, t: Tensor) -> Tensor:
        """Derivative of alpha by t."""

    @abstractmethod
    def d_sigma(self, t: Tensor) -> Tensor:
        """Derivative of sigma by t."""

    @abstractmethod
    def wronskian(self, t: Tensor) -> Tensor:
        """alpha' sigma - alpha sigma', positive inside (0, 1)."""

    @abstractmethod
    def log_snr(self, t: Tensor) -> Tensor:
        """2 log(alpha / sigma): -inf where alpha = 0 and +inf where sigma = 0."""

    @abstractmethod
    def time(self, log_snr: Tensor) -> Tensor:
        """Inverse of `log_snr`."""

    def d_log_snr(self, t: Tensor) -> Tensor:
        """Derivative of log_snr by t, 2 W / (alpha sigma): +inf where alpha or sigma is 0."""
        return 2 * self.wronskian(t) / (self.alpha(t) * self.sigma(t))

    def mix(self, x1: Tensor, x0: Tensor, t: Tensor) -> Tensor:
        """Return x_t = alpha x1 + sigma x0.

        Args:
            x1: Data, (B, ...).
            x0: Noise, the shape of `x1`.
            t: Times, (B,).

        Returns:
            (B, ...) in the dtype of the batch, float32 at least.

        Raises:
            ValueError: If the shapes do not fit.
        """
        _check_pair(x1, x0)
        return per_sample(self.alpha(t), x1) * x1 + per_sample(self.sigma(t), x0) * x0

    def velocity(self, x1: Tensor, x0: Tensor, t: Tensor) -> Tensor:
        """Return u = alpha' x1 + sigma' x0; arguments, result and errors as in `mix`."""
        _check_pair(x1, x0)
        return per_sample(self.d_alpha(t), x1) * x1 + per_sample(self.d_sigma(t), x0) * x0

    def velocity_to_data(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Coefficients (p, q) of x1 = p u + q x_t: (sigma / W, -sigma' / W)."""
        wronskian = self.wronskian(t)
        return self.sigma(t) / wronskian, -self.d_sigma(t) / wronskian

    def velocity_to_noise(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Coefficients (p, q) of x0 = p u + q x_t: (-alpha / W, alpha' / W)."""
        wronskian = self.wronskian(t)
        return -self.alpha(t) / wronskian, self.d_alpha(t) / wronskian


@final
@dataclass(frozen=True)
class Linear(Interpolant):
    """alpha = t, sigma = 1 - t (rectified flow, conditional optimal transport)."""

    name: ClassVar[str] = "linear"

    def alpha(self, t: Tensor) -> Tensor:
        """Return t."""
        return _wide(t)

    def sigma(self, t: Tensor) -> Tensor:
        """Return 1 - t."""
        return 1 - _wide(t)

    def d_alpha(self, t: Tensor) -> Tensor:
        """Return 1."""
        return torch.ones_like(_wide(t))

    def d_sigma(self, t: Tensor) -> Tensor:
        """Return -1."""
        return -torch.ones_like(_wide(t))

    def wronskian(self, t: Tensor) -> Tensor:
        """Return 1."""
        return torch.ones_like(_wide(t))

    def log_snr(self, t: Tensor) -> Tensor:
        """2 log(t / (1 - t)): -inf at t = 0 and +inf at t = 1."""
        t = _wide(t)
        return 2 * (t.log() - (-t).log1p())

    def time(self, log_snr: Tensor) -> Tensor:
        """Return sigmoid(log_snr / 2)."""
        return torch.sigmoid(_wide(log_snr) / 2)


@final
@dataclass(frozen=True)
class Trigonometric(Interpolant):
    """alpha = sin(pi t / 2), sigma = cos(pi t / 2) (SiT's GVP); alpha^2 + sigma^2 = 1."""

    name: ClassVar[str] = "trigonometric"

    def alpha(self, t: Tensor) -> Tensor:
        """Return sin(pi t / 2)."""
        return torch.sin(math.pi / 2 * _wide(t))

    def sigma(self, t: Tensor) -> Tensor:
        """Return cos(pi t / 2)."""
        # 1 - t is exact near t = 1, where the cosine of a rounded multiple of pi is not small.
        return torch.sin(math.pi / 2 * (1 - _wide(t)))

    def d_alpha(self, t: Tensor) -> Tensor:
        """Return (pi / 2) sigma."""
        return math.pi / 2 * self.sigma(t)

    def d_sigma(self, t: Tensor) -> Tensor:
        """Return -(pi / 2) alpha."""
        return -math.pi / 2 * self.alpha(t)

    def wronskian(self, t: Tensor) -> Tensor:
        """Return pi / 2."""
        return torch.full_like(_wide(t), math.pi / 2)

    def log_snr(self, t: Tensor) -> Tensor:
        """2 log tan(pi t / 2): -inf at t = 0 and +inf at t = 1."""
        return 2 * (self.alpha(t).log() - self.sigma(t).log())

    def time(self, log_snr: Tensor) -> Tensor:
        """Return (2 / pi) atan(exp(log_snr / 2))."""
        # Rounding at +inf must not pass 1.
        return (torch.atan(torch.exp(_wide(log_snr) / 2)) * (2 / math.pi)).clamp(max=1)


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
        s = 1 - _wide(t)
        return -s * (s * ((self.beta_max - self.beta_min) / 4) + self.beta_min / 2)

    def _beta(self, t: Tensor) -> Tensor:
        return self.beta_min + (1 - _wide(t)) * (self.beta_max - self.beta_min)

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
        q = -torch.nn.functional.logsigmoid(_wide(log_snr))
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


INTERPOLANTS: dict[str, type[Interpolant]] = {
    kind.name: kind for kind in (Linear, Trigonometric, VariancePreserving)
}


def interpolant(name: str) -> Interpolant:
    """Return the interpolant called `name`, with its default constants.

    Raises:
        UserError: If the name is not in `INTERPOLANTS`.
    """
    if name not in INTERPOLANTS:
        raise UserError(f"unknown interpolant {name!r}: use one of {', '.join(INTERPOLANTS)}")
    return INTERPOLANTS[name]()


def _wide(t: Tensor) -> Tensor:
    if not t.is_floating_point():
        raise ValueError(f"times and log-SNR must be floating-point tensors, not {t.dtype}")
    return t.to(torch.promote_types(t.dtype, torch.float32))


def _check_pair(first: Tensor, second: Tensor) -> None:
    if first.shape != second.shape:
        raise ValueError(f"shapes differ: {tuple(first.shape)} and {tuple(second.shape)}")
