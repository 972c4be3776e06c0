"""The cosine schedules of simple diffusion, between two log-SNRs and shifted to an image's size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from flowtempo.errors import UserError
from flowtempo.interpolants.base import Interpolant, wide

_NEWTON_STEPS = 8


class _BySnr(Interpolant):
    """A variance-preserving path that is given by its log-SNR l and l', both finite on [0, 1]."""

    def _alpha(self, t: Tensor, rest: Tensor) -> Tensor:
        return (torch.nn.functional.logsigmoid(self._log_snr(t, rest)) / 2).exp()

    def _sigma(self, t: Tensor, rest: Tensor) -> Tensor:
        return (torch.nn.functional.logsigmoid(-self._log_snr(t, rest)) / 2).exp()

    def _d_alpha(self, t: Tensor, rest: Tensor) -> Tensor:
        return self._sigma(t, rest) * self._wronskian(t, rest)

    def _d_sigma(self, t: Tensor, rest: Tensor) -> Tensor:
        return -self._alpha(t, rest) * self._wronskian(t, rest)

    def _wronskian(self, t: Tensor, rest: Tensor) -> Tensor:
        return self._d_log_snr(t, rest) * self._alpha(t, rest) * self._sigma(t, rest) / 2


@final
@dataclass(frozen=True)
class ShiftedCosine(_BySnr):
    """Cosine path whose noise is that of a smaller image: log_snr is moved by 2 log(noise_size / image_size).

    log_snr = 2 log tan(a + t (b - a)) + c with c that shift, and a and b such that it goes from `low` at
    t = 0 to `high` at t = 1 whatever the shift; alpha^2 + sigma^2 = 1 (Hoogeboom et al., "simple diffusion",
    arXiv 2301.11093, section 3.1; the ends as in k-diffusion). The paper moves the ends too: give `low` and
    `high` plus the shift. Equal sizes give the cosine path itself.

    Attributes:
        noise_size: Side of the images whose noise is wanted, such as 64.
        image_size: Side of the images.
        low: log_snr at t = 0.
        high: log_snr at t = 1.

    Raises:
        UserError: If a size is not above 0, or the bounds are not finite or out of order.
    """

    name: ClassVar[str] = "shifted_cosine"

    noise_size: float
    image_size: float
    low: float = -15.0
    high: float = 15.0

    def __post_init__(self) -> None:
        _check(self.name, self.low, self.high, noise_size=self.noise_size, image_size=self.image_size)

    @property
    def _shift(self) -> float:
        return 2 * math.log(self.noise_size / self.image_size)

    def _angles(self) -> tuple[float, float]:
        """Angle from the noise end at t = 0, and angle from the data end at t = 1."""
        return (
            math.atan(math.exp((self.low - self._shift) / 2)),
            math.atan(math.exp((self._shift - self.high) / 2)),
        )

    def _sines(self, t: Tensor, rest: Tensor) -> tuple[Tensor, Tensor, float]:
        """Sine and cosine of the angle, each with all its digits, and the angle's range."""
        first, last = self._angles()
        span = math.pi / 2 - first - last
        return torch.sin(first + t * span), torch.sin(last + rest * span), span

    def _log_snr(self, t: Tensor, rest: Tensor) -> Tensor:
        sine, cosine, _ = self._sines(t, rest)
        return 2 * (sine.log() - cosine.log()) + self._shift

    def _d_log_snr(self, t: Tensor, rest: Tensor) -> Tensor:
        sine, cosine, span = self._sines(t, rest)
        return 2 * span / (sine * cosine)

    def time(self, log_snr: Tensor) -> Tensor:
        """Inverse of `log_snr`; beyond `low` and `high` it goes on to t < 0 and t > 1."""
        first, last = self._angles()
        angle = torch.atan(((wide(log_snr) - self._shift) / 2).exp())
        return (angle - first) / (math.pi / 2 - first - last)


@final
@dataclass(frozen=True)
class InterpolatedCosine(_BySnr):
    """Cosine path that is shifted by one size at the noise end and by another at the data end.

    log_snr = (1 - t) l(t; noise_size_low) + t l(t; noise_size_high) with l that of `shifted_cosine`
    (Hoogeboom et al., "simple diffusion", arXiv 2301.11093, section 3.1; the ends as in k-diffusion).

    Attributes:
        noise_size_low: Side that sets the noise at the noise end, such as 32.
        noise_size_high: Side that sets it at the data end, at least `noise_size_low`, such as 256.
        image_size: Side of the images.
        low: log_snr at t = 0.
        high: log_snr at t = 1.

    Raises:
        UserError: If a size is not above 0, or a pair is out of order.
    """

    name: ClassVar[str] = "interpolated_cosine"

    noise_size_low: float
    noise_size_high: float
    image_size: float
    low: float = -15.0
    high: float = 15.0

    def __post_init__(self) -> None:
        sizes = {key: getattr(self, key) for key in ("noise_size_low", "noise_size_high", "image_size")}
        _check(self.name, self.low, self.high, **sizes)
        # In the other order log_snr may fall.
        if self.noise_size_low > self.noise_size_high:
            raise UserError(
                f"{self.name}: noise_size_low = {self.noise_size_low} is above noise_size_high ="
                f" {self.noise_size_high}: exchange them"
            )

    def _parts(self) -> tuple[ShiftedCosine, ShiftedCosine]:
        return (
            ShiftedCosine(self.noise_size_low, self.image_size, self.low, self.high),
            ShiftedCosine(self.noise_size_high, self.image_size, self.low, self.high),
        )

    def _log_snr(self, t: Tensor, rest: Tensor) -> Tensor:
        at_noise, at_data = self._parts()
        return rest * at_noise._log_snr(t, rest) + t * at_data._log_snr(t, rest)

    def _d_log_snr(self, t: Tensor, rest: Tensor) -> Tensor:
        at_noise, at_data = self._parts()
        turn = at_data._log_snr(t, rest) - at_noise._log_snr(t, rest)
        return rest * at_noise._d_log_snr(t, rest) + t * at_data._d_log_snr(t, rest) + turn

    def time(self, log_snr: Tensor) -> Tensor:
        """Inverse of `log_snr` by Newton's method in float64; beyond the bounds it goes on straight."""
        wanted = wide(log_snr)
        value = wanted.double().clamp(self.low, self.high)
        at_noise, at_data = self._parts()
        # log_snr lies between those of the two parts, and so does the time between theirs.
        above, below = at_noise.time(value).clamp(0, 1), at_data.time(value).clamp(0, 1)
        t = (above + below) / 2
        for _ in range(_NEWTON_STEPS):
            miss = self._log_snr(t, 1 - t) - value
            below, above = torch.where(miss < 0, t, below), torch.where(miss < 0, above, t)
            newton = t - miss / self._d_log_snr(t, 1 - t)
            t = torch.where((below <= newton) & (newton <= above), newton, (below + above) / 2)
        beyond = (wanted.double() - value) / self._d_log_snr(t, 1 - t)
        return (t + beyond).to(wanted.dtype)


def _check(name: str, low: float, high: float, **sizes: float) -> None:
    for key, size in sizes.items():
        if not 0 < size < math.inf:
            raise UserError(f"{name}: {key} = {size} must be a finite number above 0")
    if not -math.inf < low < high < math.inf:
        raise UserError(f"{name}: low = {low} and high = {high}: use finite log-SNRs with low < high")
