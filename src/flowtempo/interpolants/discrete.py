"""The schedules of DDPM, which know whole steps only, as paths on [0, 1].

Step i of T (0 has the least noise) stands at t = 1 - (i + 1) / T with alpha = sqrt(alpha_bar_i) and sigma =
sqrt(1 - alpha_bar_i); between the steps, and from the least noise to the data at t = 1, alpha is linear in t.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, final

import torch
from torch import Tensor

from flowtempo.errors import UserError
from flowtempo.forms import number
from flowtempo.interpolants.base import Preserving, wide

_MOST_STEPS = 1_000_000


@dataclass(frozen=True, eq=False)
class _Nodes:
    """alpha at t = 1 and at the steps, falling.

    Attributes:
        alpha: (T + 1,) float64, from 1.
        gap: (T + 1,) float64, 1 - alpha with all its digits.
        drop: (T,) float64, how much alpha falls from each to the next, with all its digits.
    """

    alpha: Tensor
    gap: Tensor
    drop: Tensor

    def to(self, device: torch.device) -> _Nodes:
        return _Nodes(self.alpha.to(device), self.gap.to(device), self.drop.to(device))


class Discrete(Preserving):
    """A path through the steps of a discrete schedule.

    alpha(1) = 1 and sigma(1) = 0; sigma has a vertical tangent at t = 1, so that sigma', the Wronskian and
    the velocity have a pole there (-inf, +inf, infinite); end at t < 1. alpha' jumps at the steps; at a step
    it is that of the side towards the noise. Everything is computed in float64 and given in the dtype of t: a
    float32 time near 1 stands beside its step by up to 3e-8, so take `node_times()` as they are, in float64.

    Attributes:
        steps: T, the number of steps.
    """

    steps: int

    def betas(self) -> Tensor:
        """The schedule's noise steps 1 - alpha_bar_i / alpha_bar_(i - 1), (T,) float64."""
        nodes = self._nodes(torch.device("cpu"))
        share = nodes.drop / nodes.alpha[:-1]
        return share * (2 - share)

    def alpha_bars(self) -> Tensor:
        """alpha^2 at the steps, (T,) float64."""
        return self._nodes(torch.device("cpu")).alpha[1:] ** 2

    def node_times(self) -> Tensor:
        """Times of the steps 0 to T - 1, (T,) float64, falling from 1 - 1 / T to 0."""
        steps = torch.arange(self.steps - 1, -1, -1, dtype=torch.float64)
        return steps / self.steps

    def nearest_node(self, t: Tensor) -> Tensor:
        """The step nearest to each time, the shape of `t`, int64; t = 1, the data itself, gives step 0."""
        step = ((1 - wide(t).double()) * self.steps).round().long() - 1
        return step.clamp(0, self.steps - 1)

    @abstractmethod
    def _nodes(self, device: torch.device) -> _Nodes:
        """The table on a device."""

    def _segment(self, rest: Tensor) -> Tensor:
        """Number of the segment, counted from the data."""
        position = rest.detach().double() * self.steps
        return position.floor().long().clamp(0, self.steps - 1)

    def _gap(self, rest: Tensor) -> Tensor:
        """1 - alpha in float64, from the clean end of the segment: it is 0 there in the first."""
        nodes, i = self._nodes(rest.device), self._segment(rest)
        return nodes.gap[i] + (rest.double() * self.steps - i) * nodes.drop[i]

    def _alpha(self, t: Tensor, rest: Tensor) -> Tensor:
        nodes, i, gap = self._nodes(t.device), self._segment(rest), self._gap(rest)
        # From the noisy end of the segment: alpha may be 0 there in the last.
        alpha = nodes.alpha[i + 1] + (t.double() * self.steps - (self.steps - 1 - i)) * nodes.drop[i]
        return torch.where(gap < 0.5, 1 - gap, alpha).to(t.dtype)

    def _sigma(self, t: Tensor, rest: Tensor) -> Tensor:
        gap = self._gap(rest)
        return (gap * (2 - gap)).sqrt().to(t.dtype)

    def _d_alpha(self, t: Tensor, rest: Tensor) -> Tensor:
        return (self.steps * self._nodes(t.device).drop[self._segment(rest)]).to(t.dtype)

    def time(self, log_snr: Tensor) -> Tensor:
        """Inverse of `log_snr`; one below that of t = 0 goes on along the last segment, to t < 0."""
        wanted = wide(log_snr)
        half_log = torch.nn.functional.logsigmoid(wanted.double()) / 2
        alpha, gap = half_log.exp(), -torch.expm1(half_log)
        nodes = self._nodes(wanted.device)
        i = (torch.searchsorted(nodes.gap, gap.contiguous(), right=True) - 1).clamp(0, self.steps - 1)
        from_data = 1 - (i + (gap - nodes.gap[i]) / nodes.drop[i]) / self.steps
        from_noise = (self.steps - 1 - i + (alpha - nodes.alpha[i + 1]) / nodes.drop[i]) / self.steps
        return torch.where(2 * i < self.steps, from_data, from_noise).to(wanted.dtype)


class _Ddpm(Discrete):
    """A schedule that is given by its betas."""

    def __post_init__(self) -> None:
        whole = float(self.steps).is_integer() and 2 <= self.steps <= _MOST_STEPS
        if not whole or not bool((_betas(self) < 1).all()):
            raise UserError(
                f"{self.name}: steps = {number(self.steps)} must be a whole number up to {_MOST_STEPS}, large"
                " enough that every beta is below 1: 1000 is usual"
            )
        object.__setattr__(self, "steps", int(self.steps))

    @abstractmethod
    def _make_betas(self) -> Tensor:
        """(steps,) float64."""

    def betas(self) -> Tensor:
        """The schedule's noise steps 1 - alpha_bar_i / alpha_bar_(i - 1), (T,) float64."""
        return _betas(self).clone()

    def _nodes(self, device: torch.device) -> _Nodes:
        return _table(self, device)


@final
@dataclass(frozen=True)
class DdpmLinear(_Ddpm):
    """DDPM's schedule: beta rises linearly from 0.1 / T to 20 / T over the T steps.

    At T = 1000 that is 1e-4 to 0.02 (Ho et al., arXiv 2006.11239, section 4); other T as in
    improved-diffusion. The lowest log-SNR, at t = 0, is -10.1.

    Attributes:
        steps: T.

    Raises:
        UserError: If `steps` is not a whole number above 20.
    """

    name: ClassVar[str] = "ddpm_linear"

    steps: int = 1000

    def _make_betas(self) -> Tensor:
        count = int(self.steps)
        return torch.linspace(1e-4, 0.02, count, dtype=torch.float64) * (1000 / count)


@final
@dataclass(frozen=True)
class DdpmScaledLinear(_Ddpm):
    """Stable Diffusion's schedule: the root of beta rises linearly, beta from 0.85 / T to 12 / T.

    At T = 1000 that is 0.00085 to 0.012 (Rombach et al., arXiv 2112.10752, and their code); other T keep the
    noise at the end as `ddpm_linear` does. The lowest log-SNR, at t = 0, is -5.4: pure noise is never seen.

    Attributes:
        steps: T.

    Raises:
        UserError: If `steps` is not a whole number above 12.
    """

    name: ClassVar[str] = "ddpm_scaled_linear"

    steps: int = 1000

    def _make_betas(self) -> Tensor:
        count = int(self.steps)
        return torch.linspace(0.00085**0.5, 0.012**0.5, count, dtype=torch.float64) ** 2 * (1000 / count)


@final
@dataclass(frozen=True)
class DdpmCosine(_Ddpm):
    """Improved DDPM's cosine schedule: alpha_bar follows cos^2(pi (u + 0.008) / 2.016), u = (i + 1) / T.

    beta is at most 0.999, which leaves alpha_bar at t = 0 small and not 0 (Nichol & Dhariwal, arXiv
    2102.09672, equation 17).

    Attributes:
        steps: T.

    Raises:
        UserError: If `steps` is not a whole number above 1.
    """

    name: ClassVar[str] = "ddpm_cosine"

    steps: int = 1000

    def _make_betas(self) -> Tensor:
        count = int(self.steps)
        step = torch.pi / 2.016 / count
        # Angles to the zero of the cosine before each step: 1 less the ratio of two squares, as a product.
        before = step * torch.arange(count, 0, -1, dtype=torch.float64)
        return (torch.sin(2 * before - step) * math.sin(step) / before.sin() ** 2).clamp(max=0.999)


@final
@dataclass(frozen=True)
class ZeroTerminalSnr(Discrete):
    """A discrete schedule rescaled so that its last step is pure noise: alpha = 0 at t = 0.

    alpha at the steps is shifted to end at 0 and scaled to keep its first value (Lin et al., arXiv
    2305.08891, algorithm 1). Noise prediction says nothing at the last step: predict velocity, v or data.

    Attributes:
        base: The schedule, one of the DDPM ones.

    Raises:
        UserError: If `base` is of another kind.
    """

    name: ClassVar[str] = "zero_terminal_snr"

    base: Discrete

    def __post_init__(self) -> None:
        if not isinstance(self.base, _Ddpm):
            raise UserError(
                f"zero_terminal_snr rescales a schedule of whole steps, not {self.base}: use ddpm_linear,"
                " ddpm_scaled_linear or ddpm_cosine"
            )

    @property
    def steps(self) -> int:  # type: ignore[override]
        """T, the number of steps."""
        return self.base.steps

    def _nodes(self, device: torch.device) -> _Nodes:
        return _rescaled(self.base, device)


@lru_cache(maxsize=32)
def _betas(schedule: _Ddpm) -> Tensor:
    return schedule._make_betas()


@lru_cache(maxsize=32)
def _table(schedule: _Ddpm, device: torch.device) -> _Nodes:
    if device.type != "cpu":
        return _table(schedule, torch.device("cpu")).to(device)
    log_ratio = torch.log1p(-_betas(schedule)) / 2
    log_alpha = torch.nn.functional.pad(log_ratio.cumsum(0), (1, 0))
    alpha = log_alpha.exp()
    return _Nodes(alpha, -torch.expm1(log_alpha), alpha[:-1] * -torch.expm1(log_ratio))


@lru_cache(maxsize=32)
def _rescaled(schedule: Discrete, device: torch.device) -> _Nodes:
    if device.type != "cpu":
        return _rescaled(schedule, torch.device("cpu")).to(device)
    nodes = schedule._nodes(device)
    stretch = nodes.alpha[1] / (nodes.alpha[1] - nodes.alpha[-1])
    drop = torch.cat([nodes.drop[:1], nodes.drop[1:] * stretch])
    # Sums of what has fallen and of what is left to fall, each where it is the smaller.
    gap = torch.nn.functional.pad(drop.cumsum(0), (1, 0))
    left = torch.nn.functional.pad(drop.flip(0).cumsum(0).flip(0), (0, 1))
    near = gap < 0.5
    return _Nodes(torch.where(near, 1 - gap, left), torch.where(near, gap, 1 - left), drop)
