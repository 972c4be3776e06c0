"""Weightings that depend on how fast a path moves, or that were stated on one path."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from flowtempo.errors import UserError
from flowtempo.forms import number
from flowtempo.interpolants import Interpolant
from flowtempo.objectives.weightings.base import Weighting, softplus
from flowtempo.predictions import Prediction


@final
@dataclass(frozen=True)
class SitVelocity(Weighting):
    """(W / alpha)^2 on the noise loss: the velocity loss as it is (Ma et al., arXiv 2401.08740).

    SiT's code passes over it with velocity prediction, where it is 1.
    """

    name: ClassVar[str] = "sit_velocity"
    stated_on: ClassVar[Prediction] = "velocity"

    def _log_weight(self, interpolant: Interpolant, t: Tensor) -> Tensor:
        return torch.zeros_like(t)


@final
@dataclass(frozen=True)
class SitLikelihood(Weighting):
    """W / (alpha sigma) on the noise loss, which bounds the likelihood (Ma et al., arXiv 2401.08740).

    SiT's code passes over it with velocity prediction; here it is converted.
    """

    name: ClassVar[str] = "sit_likelihood"
    stated_on: ClassVar[Prediction] = "noise"

    def _log_weight(self, interpolant: Interpolant, t: Tensor) -> Tensor:
        return (interpolant.d_log_snr(t) / 2).log()


@final
@dataclass(frozen=True)
class Speed(Weighting):
    """SpeeD's change-aware weight on the noise loss: larger where sigma^2 changes fast, 1 in the noise.

    At step i < boundary of T (0 has the least noise) it is k + (1 - 2 k) g, with k = 1 - strength and g the
    difference of 1 / (1 + SNR) from step to step, scaled so that it runs from 0 to 1; from the boundary on it
    is 1 (Wang et al., arXiv 2405.17403, and their code). Between steps it is interpolated linearly, and the
    boundary lies in the middle between the two.

    Attributes:
        strength: lambda of the paper, 0.5 to 1: weights run from 1 - strength to strength.
        boundary: Step at which the noisy part begins.
        steps: T.

    Raises:
        UserError: If a number is out of range.
    """

    name: ClassVar[str] = "speed"
    stated_on: ClassVar[Prediction] = "noise"

    strength: float = 0.6
    boundary: float = 700
    steps: float = 1000

    def __post_init__(self) -> None:
        if not 0.5 <= self.strength <= 1:
            raise UserError(f"speed: strength = {self.strength} must be 0.5 to 1")
        if not 2 <= self.steps <= 1_000_000 or self.steps != int(self.steps):
            raise UserError(f"speed: steps = {number(self.steps)} must be a whole number, 2 to 1000000")
        if not 0 < self.boundary <= self.steps or self.boundary != int(self.boundary):
            raise UserError(
                f"speed: boundary = {number(self.boundary)} must be a whole number, 1 to"
                f" {number(self.steps)}, the steps"
            )

    def _log_weight(self, interpolant: Interpolant, t: Tensor) -> Tensor:
        change = _changes(interpolant, int(self.steps)).to(t.device)
        place = ((1 - t) * self.steps - 1).clamp(0, self.steps - 1)
        low = place.floor().long().clamp_max(int(self.steps) - 2)
        share = place - low
        least = 1 - self.strength
        weight = least + (1 - 2 * least) * ((1 - share) * change[low] + share * change[low + 1])
        return torch.where(place > self.boundary - 0.5, 1.0, weight).log()


@final
@dataclass(frozen=True)
class SigmaSqrt(Weighting):
    """1 / tau^2 on the velocity loss of the linear path, tau its noise level (diffusers' `sigma_sqrt`).

    Despite the name it is no root. Infinite at the data: end the times at t < 1.
    """

    name: ClassVar[str] = "sigma_sqrt"

    def _log_weight(self, interpolant: Interpolant, t: Tensor) -> Tensor:
        # The linear path's velocity error is the data error / tau^2.
        return -4 * _log_noise_level(interpolant.log_snr(t))


@final
@dataclass(frozen=True)
class CosMap(Weighting):
    """2 / (pi (1 - 2 tau + 2 tau^2)) on the velocity loss of the linear path (diffusers' `cosmap`).

    Under uniform times it has the expectation of drawing from the density `cosmap` (Esser et al., arXiv
    2403.03206, equation 21).
    """

    name: ClassVar[str] = "cosmap"

    def _log_weight(self, interpolant: Interpolant, t: Tensor) -> Tensor:
        log_tau = _log_noise_level(interpolant.log_snr(t))
        tau = log_tau.exp()
        return (2 / (math.pi * ((1 - tau) ** 2 + tau**2))).log() - 2 * log_tau


def _log_noise_level(log_snr: Tensor) -> Tensor:
    """log tau, where the linear path has this log-SNR: tau = 1 / (1 + sqrt(SNR))."""
    return -softplus(log_snr / 2)


@functools.lru_cache(maxsize=8)
def _changes(interpolant: Interpolant, steps: int) -> Tensor:
    """Differences of 1 / (1 + SNR) from step to step, scaled to [0, 1], (steps,) float64."""
    t = torch.arange(steps - 1, -1, -1, dtype=torch.float64) / steps
    noise = torch.sigmoid(-interpolant.log_snr(t))
    change = torch.gradient(noise)[0]
    return (change - change.min()) / (change.max() - change.min())
