"""The schedules of Chen, "On the importance of noise scheduling" (arXiv 2301.10972), with its input scale."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from flowtempo.errors import UserError
from flowtempo.interpolants.base import Interpolant, wide

_LEAST_GAMMA = 1e-9


class Chen(Interpolant):
    """x_t = scale sqrt(gamma) x1 + sqrt(1 - gamma) x0 with gamma(t) rising from 1e-9 to 1.

    Below 1e-9 gamma is cut, as in the paper's code (google-research/pix2seq): very near t = 0 alpha and sigma
    stand still, log_snr is flat, the velocity is 0 and nothing can be read out of it (the way back gives
    infinities or nan there). Networks are meant to see x_t divided by its standard deviation, which is
    sqrt(1 + (scale^2 - 1) gamma) for data of unit variance.
    """

    scale: float

    def gamma(self, t: Tensor) -> Tensor:
        """The share of the data's variance in x_t at scale 1, from 1e-9 to 1."""
        t = wide(t)
        return self._gamma(t, 1 - t)

    @abstractmethod
    def _shares(self, t: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        """gamma before it is cut, and 1 - gamma, each with all its digits."""

    @abstractmethod
    def _d_gamma(self, t: Tensor, rest: Tensor) -> Tensor:
        """Derivative by t of gamma before it is cut."""

    @abstractmethod
    def _time(self, gamma: Tensor, noise: Tensor) -> Tensor:
        """The time at which gamma before it is cut has this value; `noise` is 1 - gamma."""

    def _gamma(self, t: Tensor, rest: Tensor) -> Tensor:
        return self._shares(t, rest)[0].clamp_min(_LEAST_GAMMA)

    def _alpha(self, t: Tensor, rest: Tensor) -> Tensor:
        return self.scale * self._gamma(t, rest).sqrt()

    def _sigma(self, t: Tensor, rest: Tensor) -> Tensor:
        return self._shares(t, rest)[1].clamp_max(1 - _LEAST_GAMMA).sqrt()

    def _moving(self, t: Tensor, rest: Tensor) -> Tensor:
        return self._shares(t, rest)[0] > _LEAST_GAMMA

    def _d_alpha(self, t: Tensor, rest: Tensor) -> Tensor:
        rising = self.scale * self._d_gamma(t, rest) / (2 * self._gamma(t, rest).sqrt())
        return torch.where(self._moving(t, rest), rising, 0.0)

    def _d_sigma(self, t: Tensor, rest: Tensor) -> Tensor:
        # The sign of the zero makes what is divided by it infinite in the right direction.
        return torch.where(self._moving(t, rest), self._falling(t, rest), -0.0)

    def _falling(self, t: Tensor, rest: Tensor) -> Tensor:
        """sigma' where gamma is not cut."""
        return -self._d_gamma(t, rest) / (2 * self._shares(t, rest)[1].sqrt())

    def _wronskian(self, t: Tensor, rest: Tensor) -> Tensor:
        return -self.scale * self._d_sigma(t, rest) / self._gamma(t, rest).sqrt()

    def _log_snr(self, t: Tensor, rest: Tensor) -> Tensor:
        gamma, noise = self._shares(t, rest)
        gamma, noise = gamma.clamp_min(_LEAST_GAMMA), noise.clamp_max(1 - _LEAST_GAMMA)
        return gamma.log() - noise.log() + 2 * math.log(self.scale)

    def _d_log_snr(self, t: Tensor, rest: Tensor) -> Tensor:
        return -2 * self._d_sigma(t, rest) / (self._gamma(t, rest) * self._sigma(t, rest))

    def _velocity_to_data(self, t: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        share = self._gamma(t, rest).sqrt() / self.scale
        return -share * self._sigma(t, rest) / self._d_sigma(t, rest), share

    def _velocity_to_noise(self, t: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        return self._gamma(t, rest) / self._d_sigma(t, rest), self._sigma(t, rest)

    def time(self, log_snr: Tensor) -> Tensor:
        """Inverse of `log_snr`; one below what the path reaches gives the time before gamma was cut."""
        value = wide(log_snr) - 2 * math.log(self.scale)
        return self._time(torch.sigmoid(value), torch.sigmoid(-value))


@final
@dataclass(frozen=True)
class ChenCosine(Chen):
    """Chen's cosine schedule with an input scale: gamma from a power of a cosine.

    gamma = (y(u) - y(1)) / (y(0) - y(1)) with y(u) = cos(pi (start + (end - start) u) / 2)^(2 tau) and
    u = 1 - t (arXiv 2301.10972, algorithm 1). (0, 1, 1) at scale 1 is the trigonometric path. The function in
    its code ends at 0.5 by default, which its configurations always override. For start > 0 sigma has a
    vertical tangent at t = 1, so that sigma', the Wronskian and the velocity have a pole there (-inf, +inf,
    infinite).

    Attributes:
        start: Where on the quarter wave the data end lies, from 0.
        end: Where the noise end lies, above `start`, to 1.
        tau: Half the power, above 0.
        scale: Factor b on the data, above 0.

    Raises:
        UserError: If a constant is out of range.
    """

    name: ClassVar[str] = "chen_cosine"

    start: float = 0.0
    end: float = 1.0
    tau: float = 1.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end <= 1:
            raise UserError(
                f"{self.name}: start = {self.start} and end = {self.end}: use 0 <= start < end <= 1"
            )
        _check(self.name, tau=self.tau, scale=self.scale)

    @property
    def _span(self) -> float:
        return math.pi / 2 * (self.end - self.start)

    def _power(self, angle: float) -> float:
        """cos(angle)^(2 tau) of an angle given from the noise end, where the cosine may be 0."""
        return float(math.sin(angle) ** (2 * self.tau))

    def _edges(self) -> tuple[float, float]:
        """The angles of the noise and of the data end, counted from the zero of the cosine."""
        return math.pi / 2 * (1 - self.end), math.pi / 2 * (1 - self.start)

    def _shares(self, t: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        low, high = self._edges()
        whole = self._power(high) - self._power(low)
        angle = low + t * self._span
        turned = math.pi / 2 * self.start + rest * self._span
        # y(u) from y(0) and y(1) from y(u): the ratio of two cosines less 1, as a product of sines.
        far = -2 * torch.sin((turned + math.pi / 2 * self.start) / 2) * torch.sin(rest * self._span / 2)
        noise = self._power(high) * -torch.expm1(
            2 * self.tau * torch.log1p((far / math.sin(high)).clamp_min(-1))
        )
        sine = torch.sin(angle)
        data = sine ** (2 * self.tau)
        if low > 0:
            near = -2 * torch.cos((angle + low) / 2) * torch.sin(t * self._span / 2)
            data = data * -torch.expm1(2 * self.tau * torch.log1p(near / sine))
        return data / whole, noise / whole

    def _d_gamma(self, t: Tensor, rest: Tensor) -> Tensor:
        low, high = self._edges()
        whole = self._power(high) - self._power(low)
        sine = torch.sin(low + t * self._span)
        cosine = torch.sin(math.pi / 2 * self.start + rest * self._span)
        return 2 * self.tau * self._span / whole * sine ** (2 * self.tau - 1) * cosine

    def _falling(self, t: Tensor, rest: Tensor) -> Tensor:
        falling = super()._falling(t, rest)
        if self.start > 0:
            return falling
        # At the crest of the cosine gamma' and sigma vanish together.
        low, high = self._edges()
        limit = -self._span * math.sqrt(self.tau / (self._power(high) - self._power(low)))
        return torch.where(rest > 0, falling, limit)

    def _time(self, gamma: Tensor, noise: Tensor) -> Tensor:
        low, high = self._edges()
        y_low, y_high = self._power(low), self._power(high)
        whole = y_high - y_low
        # log y from the nearer of 0 and 1.
        missing = -math.expm1(2 * self.tau * math.log(math.sin(high))) + noise * whole
        log_y = torch.where(missing < 0.5, torch.log1p(-missing), (y_low + gamma * whole).log())
        sine, cosine = (log_y / (2 * self.tau)).exp(), (-torch.expm1(log_y / self.tau)).sqrt()
        # Rounding must not keep it from the end.
        return torch.where(noise > 0, (torch.atan2(sine, cosine) - low) / self._span, 1.0)


@final
@dataclass(frozen=True)
class ChenSigmoid(Chen):
    """Chen's sigmoid schedule with an input scale: gamma from a falling sigmoid.

    gamma = (v(1) - v(u)) / (v(1) - v(0)) with v(u) = sigmoid((start + (end - start) u) / tau) and u = 1 - t
    (arXiv 2301.10972, algorithm 1). sigma has a vertical tangent at t = 1, so that sigma', the Wronskian and
    the velocity have a pole there (-inf, +inf, infinite); end at t < 1.

    Attributes:
        start: Where on the sigmoid the data end lies.
        end: Where the noise end lies, above `start`.
        tau: Temperature, above 0.
        scale: Factor b on the data, above 0.

    Raises:
        UserError: If a constant is out of range.
    """

    name: ClassVar[str] = "chen_sigmoid"

    start: float = -3.0
    end: float = 3.0
    tau: float = 1.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not -math.inf < self.start < self.end < math.inf:
            raise UserError(
                f"{self.name}: start = {self.start} and end = {self.end}: use finite numbers with start < end"
            )
        _check(self.name, tau=self.tau, scale=self.scale)

    @property
    def _span(self) -> float:
        return (self.end - self.start) / self.tau

    def _whole(self) -> float:
        """v(1) - v(0)."""
        low, high = self.start / self.tau, self.end / self.tau
        return -math.expm1(low - high) * _sigmoid(high) * _sigmoid(-low)

    def _shares(self, t: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        low, high = self.start / self.tau, self.end / self.tau
        x = low + rest * self._span
        # sigmoid(a) - sigmoid(b) = sigmoid(a) sigmoid(-b) (1 - exp(b - a)).
        data = torch.sigmoid(-x) * -torch.expm1(-t * self._span) * _sigmoid(high)
        noise = torch.sigmoid(x) * -torch.expm1(-rest * self._span) * _sigmoid(-low)
        return data / self._whole(), noise / self._whole()

    def _d_gamma(self, t: Tensor, rest: Tensor) -> Tensor:
        x = self.start / self.tau + rest * self._span
        return torch.sigmoid(x) * torch.sigmoid(-x) * self._span / self._whole()

    def _time(self, gamma: Tensor, noise: Tensor) -> Tensor:
        low, high = self.start / self.tau, self.end / self.tau
        # v(u) and 1 - v(u), both as sums.
        v = _sigmoid(low) + noise * self._whole()
        other = _sigmoid(-high) + gamma * self._whole()
        return 1 - (v.log() - other.log() - low) / self._span


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))


def _check(name: str, **constants: float) -> None:
    for key, value in constants.items():
        if not 0 < value < math.inf:
            raise UserError(f"{name}: {key} = {value} must be a finite number above 0")
