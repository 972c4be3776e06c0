"""The contract that every interpolant keeps.

All functions of t are elementwise, keep the shape and the dtype (half precision is widened to float32) and
are exact at the ends. Where a formula has a pole the value is an infinity of the right sign, and the method
says so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor


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


def wide(t: Tensor) -> Tensor:
    """Widen to float32 at least; anything but floating-point numbers raises `ValueError`."""
    if not t.is_floating_point():
        raise ValueError(f"times and log-SNR must be floating-point tensors, not {t.dtype}")
    return t.to(torch.promote_types(t.dtype, torch.float32))


def _check_pair(first: Tensor, second: Tensor) -> None:
    if first.shape != second.shape:
        raise ValueError(f"shapes differ: {tuple(first.shape)} and {tuple(second.shape)}")
