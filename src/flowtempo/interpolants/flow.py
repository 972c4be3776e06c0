"""Flow-matching paths, which reach pure noise at t = 0 and the data at t = 1."""

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
class Linear(Interpolant):
    """Straight path of rectified flow and conditional optimal transport: alpha = t, sigma = 1 - t.

    log_snr = 2 logit(t), from -inf to +inf (Lipman et al., arXiv 2210.02747; Liu et al., arXiv 2209.03003).
    """

    name: ClassVar[str] = "linear"

    def _alpha(self, t: Tensor, rest: Tensor) -> Tensor:
        return t

    def _sigma(self, t: Tensor, rest: Tensor) -> Tensor:
        return rest

    def _d_alpha(self, t: Tensor, rest: Tensor) -> Tensor:
        return torch.ones_like(t)

    def _d_sigma(self, t: Tensor, rest: Tensor) -> Tensor:
        return -torch.ones_like(t)

    def _wronskian(self, t: Tensor, rest: Tensor) -> Tensor:
        return torch.ones_like(t)

    def _log_snr(self, t: Tensor, rest: Tensor) -> Tensor:
        return 2 * (t.log() - rest.log())

    def time(self, log_snr: Tensor) -> Tensor:
        """Return sigmoid(log_snr / 2)."""
        return torch.sigmoid(wide(log_snr) / 2)


@final
@dataclass(frozen=True)
class Trigonometric(Interpolant):
    """Quarter circle (SiT's GVP): alpha = sin(pi t / 2), sigma = cos(pi t / 2).

    alpha^2 + sigma^2 = 1, and log_snr = 2 log tan(pi t / 2), from -inf to +inf (Ma et al., arXiv 2401.08740).
    """

    name: ClassVar[str] = "trigonometric"

    def _alpha(self, t: Tensor, rest: Tensor) -> Tensor:
        return torch.sin(math.pi / 2 * t)

    def _sigma(self, t: Tensor, rest: Tensor) -> Tensor:
        # Near t = 1 the cosine of a rounded multiple of pi would not be small.
        return torch.sin(math.pi / 2 * rest)

    def _d_alpha(self, t: Tensor, rest: Tensor) -> Tensor:
        return math.pi / 2 * self._sigma(t, rest)

    def _d_sigma(self, t: Tensor, rest: Tensor) -> Tensor:
        return -math.pi / 2 * self._alpha(t, rest)

    def _wronskian(self, t: Tensor, rest: Tensor) -> Tensor:
        return torch.full_like(t, math.pi / 2)

    def time(self, log_snr: Tensor) -> Tensor:
        """Return (2 / pi) atan(exp(log_snr / 2))."""
        # Rounding at +inf must not pass 1.
        return (torch.atan(torch.exp(wide(log_snr) / 2)) * (2 / math.pi)).clamp(max=1)


@final
@dataclass(frozen=True)
class LinearVP(Preserving):
    """Variance-preserving path with a linear data scale: alpha = t, sigma = sqrt(1 - t^2).

    log_snr goes from -inf to +inf. sigma has a vertical tangent at t = 1: sigma', the Wronskian and the
    velocity have a pole there (-inf, +inf, infinite); end at t < 1. It is "LinearVP" in facebookresearch's
    flow_matching.
    """

    name: ClassVar[str] = "linear_vp"

    def _alpha(self, t: Tensor, rest: Tensor) -> Tensor:
        return t

    def _sigma(self, t: Tensor, rest: Tensor) -> Tensor:
        return (rest * (1 + t)).sqrt()

    def _d_alpha(self, t: Tensor, rest: Tensor) -> Tensor:
        return torch.ones_like(t)

    def time(self, log_snr: Tensor) -> Tensor:
        """Return sqrt(sigmoid(log_snr))."""
        return (torch.nn.functional.logsigmoid(wide(log_snr)) / 2).exp()


@final
@dataclass(frozen=True)
class Polynomial(Interpolant):
    """Path that leaves the noise like a power of t: alpha = t^n, sigma = 1 - t^n.

    log_snr = 2 logit(t^n), from -inf to +inf. For n > 1 the velocity is 0 at t = 0 and says nothing about the
    data there; for n < 1 it is infinite there. It is "Polynomial" in facebookresearch's flow_matching.

    Attributes:
        n: The exponent, above 0; 1 is the linear path.

    Raises:
        UserError: If `n` is not a finite number above 0.
    """

    name: ClassVar[str] = "polynomial"

    n: float

    def __post_init__(self) -> None:
        if not 0 < self.n < math.inf:
            raise UserError(f"polynomial: n = {self.n} must be a finite number above 0")

    def _alpha(self, t: Tensor, rest: Tensor) -> Tensor:
        return t**self.n

    def _sigma(self, t: Tensor, rest: Tensor) -> Tensor:
        # 1 - t^n without a difference near t = 1; t = 0 gives expm1(-inf) = -1.
        log_t = torch.where(rest < 0.5, torch.log1p(-rest.clamp(max=0.5)), t.log())
        return -torch.expm1(self.n * log_t)

    def _d_alpha(self, t: Tensor, rest: Tensor) -> Tensor:
        return self.n * t ** (self.n - 1)

    def _d_sigma(self, t: Tensor, rest: Tensor) -> Tensor:
        return -self._d_alpha(t, rest)

    def _wronskian(self, t: Tensor, rest: Tensor) -> Tensor:
        return self._d_alpha(t, rest)

    def _log_snr(self, t: Tensor, rest: Tensor) -> Tensor:
        return 2 * (self.n * t.log() - self._sigma(t, rest).log())

    def _d_log_snr(self, t: Tensor, rest: Tensor) -> Tensor:
        return 2 * self.n / (t * self._sigma(t, rest))

    def time(self, log_snr: Tensor) -> Tensor:
        """Return sigmoid(log_snr / 2)^(1 / n)."""
        return (torch.nn.functional.logsigmoid(wide(log_snr) / 2) / self.n).exp()

    def _velocity_to_data(self, t: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        return self._sigma(t, rest) / self._d_alpha(t, rest), torch.ones_like(t)

    def _velocity_to_noise(self, t: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        return -t / self.n, torch.ones_like(t)
