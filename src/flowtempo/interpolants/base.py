"""The contract that every interpolant keeps.

All functions of t are elementwise, keep the shape and the dtype (half precision is widened to float32) and
are exact at the ends. Where a formula has a pole the value is an infinity of the right sign, and the method
says so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import Field, fields, is_dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from flowtempo.forms import number


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
    """A pair of schedules alpha (never falling) and sigma (never rising) on t in [0, 1], and derivatives.

    A new one implements the methods with a leading underscore. They are given t and `rest` = 1 - t, each with
    all its digits, so that nothing is lost near either end, also where another path has moved the time.
    `str()` is the text form, which `interpolant` reads back.
    """

    name: ClassVar[str]

    def __str__(self) -> str:
        """The name, and the constants up to the last that is not the default."""
        own: tuple[Field[Any], ...] = fields(self) if is_dataclass(self) else ()
        values = [getattr(self, item.name) for item in own]
        while values and values[-1] == own[len(values) - 1].default:
            values.pop()
        shown = [str(value) if isinstance(value, Interpolant) else number(value) for value in values]
        return f"{self.name}({', '.join(shown)})" if shown else self.name

    def alpha(self, t: Tensor) -> Tensor:
        """Scale of the data."""
        return self._alpha(*_both(t))

    def sigma(self, t: Tensor) -> Tensor:
        """Scale of the noise."""
        return self._sigma(*_both(t))

    def d_alpha(self, t: Tensor) -> Tensor:
        """Derivative of alpha by t."""
        return self._d_alpha(*_both(t))

    def d_sigma(self, t: Tensor) -> Tensor:
        """Derivative of sigma by t."""
        return self._d_sigma(*_both(t))

    def wronskian(self, t: Tensor) -> Tensor:
        """alpha' sigma - alpha sigma', positive inside (0, 1) wherever the path moves."""
        return self._wronskian(*_both(t))

    def log_snr(self, t: Tensor) -> Tensor:
        """2 log(alpha / sigma): -inf where alpha = 0 and +inf where sigma = 0."""
        return self._log_snr(*_both(t))

    def d_log_snr(self, t: Tensor) -> Tensor:
        """Derivative of log_snr by t, 2 W / (alpha sigma): +inf where alpha or sigma is 0."""
        return self._d_log_snr(*_both(t))

    @abstractmethod
    def time(self, log_snr: Tensor) -> Tensor:
        """Inverse of `log_snr`.

        A log-SNR below that of t = 0 gives some t <= 0, and one above that of t = 1 some t >= 1.
        """

    def velocity_to_data(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Coefficients (p, q) of x1 = p u + q x_t: (sigma / W, -sigma' / W)."""
        return self._velocity_to_data(*_both(t))

    def velocity_to_noise(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Coefficients (p, q) of x0 = p u + q x_t: (-alpha / W, alpha' / W)."""
        return self._velocity_to_noise(*_both(t))

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

    @abstractmethod
    def _alpha(self, t: Tensor, rest: Tensor) -> Tensor: ...

    @abstractmethod
    def _sigma(self, t: Tensor, rest: Tensor) -> Tensor: ...

    @abstractmethod
    def _d_alpha(self, t: Tensor, rest: Tensor) -> Tensor: ...

    @abstractmethod
    def _d_sigma(self, t: Tensor, rest: Tensor) -> Tensor: ...

    @abstractmethod
    def _wronskian(self, t: Tensor, rest: Tensor) -> Tensor: ...

    def _log_snr(self, t: Tensor, rest: Tensor) -> Tensor:
        return 2 * (self._alpha(t, rest).log() - self._sigma(t, rest).log())

    def _d_log_snr(self, t: Tensor, rest: Tensor) -> Tensor:
        return 2 * self._wronskian(t, rest) / (self._alpha(t, rest) * self._sigma(t, rest))

    def _velocity_to_data(self, t: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        wronskian = self._wronskian(t, rest)
        return self._sigma(t, rest) / wronskian, -self._d_sigma(t, rest) / wronskian

    def _velocity_to_noise(self, t: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        wronskian = self._wronskian(t, rest)
        return -self._alpha(t, rest) / wronskian, self._d_alpha(t, rest) / wronskian


class Preserving(Interpolant):
    """A path with alpha^2 + sigma^2 = 1, from alpha, sigma and alpha'.

    Where sigma = 0 and alpha' > 0 sigma has a vertical tangent, so that sigma', the Wronskian and the
    velocity have a pole (-inf, +inf, infinite); the way back from a velocity is finite.
    """

    def _d_sigma(self, t: Tensor, rest: Tensor) -> Tensor:
        return -self._alpha(t, rest) * self._d_alpha(t, rest) / self._sigma(t, rest)

    def _wronskian(self, t: Tensor, rest: Tensor) -> Tensor:
        return self._d_alpha(t, rest) / self._sigma(t, rest)

    def _velocity_to_data(self, t: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        return self._sigma(t, rest) ** 2 / self._d_alpha(t, rest), self._alpha(t, rest)


def wide(t: Tensor) -> Tensor:
    """Widen to float32 at least; anything but floating-point numbers raises `ValueError`."""
    if not t.is_floating_point():
        raise ValueError(f"times and log-SNR must be floating-point tensors, not {t.dtype}")
    return t.to(torch.promote_types(t.dtype, torch.float32))


def _both(t: Tensor) -> tuple[Tensor, Tensor]:
    t = wide(t)
    return t, 1 - t


def _check_pair(first: Tensor, second: Tensor) -> None:
    if first.shape != second.shape:
        raise ValueError(f"shapes differ: {tuple(first.shape)} and {tuple(second.shape)}")
