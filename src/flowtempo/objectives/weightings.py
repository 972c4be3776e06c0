"""Weights of the loss over the noise axis, each on the loss that its paper states, for every prediction.

A weight w on the squared error of one prediction is the weight w f / g on that of another, where f and g are
their `predictions.error_factor`. In terms of SNR = (alpha / sigma)^2 and of the factors above:

| weighting | stated on | weight there |
|---|---|---|
| `snr` | data | SNR: the noise loss as it is |
| `snr_plus_one` | data | SNR + 1: the v loss as it is, where alpha^2 + sigma^2 = 1 |
| `truncated_snr` | data | max(SNR, 1) |
| `min_snr(gamma)` | data | min(SNR, gamma) |
| `soft_min_snr(gamma)` | data | SNR gamma / (SNR + gamma) |
| `edm(sigma_data)` | data | (s^2 + sigma_data^2) / (s sigma_data)^2 with s^2 = 1 / SNR |
| `p2(k, gamma)` | noise | 1 / (k + SNR)^gamma |
| `debiased(cap)` | noise | 1 / sqrt(min(SNR, cap)) |
| `sit_velocity` | noise | (W / alpha)^2: the velocity loss as it is |
| `sit_likelihood` | noise | W / (alpha sigma), half the derivative of log-SNR |
| `speed(strength, boundary, steps)` | noise | by the change of sigma^2 at the noisy end |
| `sigma_sqrt` | velocity of the linear path | 1 / tau^2 with tau = 1 / (1 + sqrt(SNR)) |
| `cosmap` | velocity of the linear path | 2 / (pi (1 - 2 tau + 2 tau^2)) |

Without a weighting the loss of the prediction counts as it is.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from flowtempo.errors import UserError
from flowtempo.forms import Forms, number
from flowtempo.interpolants import Interpolant
from flowtempo.predictions import Prediction, log_error_factor

__all__ = [
    "FORMS",
    "P2",
    "WEIGHTINGS",
    "CosMap",
    "Debiased",
    "Edm",
    "MinSnr",
    "SigmaSqrt",
    "SitLikelihood",
    "SitVelocity",
    "Snr",
    "SnrPlusOne",
    "SoftMinSnr",
    "Speed",
    "TruncatedSnr",
    "Weighting",
    "weighting",
]

# Times are kept this far inside (0, 1): weights there are the limits at the ends to all digits where these
# are finite, and their logarithms stay so where they are not.
_FIRST, _LAST = 1e-150, 1 - 2**-53


class Weighting(ABC):
    """A weight of the loss as a function of time on a path.

    Weights at t = 0 and t = 1 are the limits where these are finite, and otherwise those of a time nearby.
    Where the log-SNR of a path stands still (the clipped ends of Chen's) no weight on the velocity loss is
    right.
    """

    name: ClassVar[str]
    stated_on: ClassVar[Prediction] = "data"
    """The prediction whose squared error `_log_weight` multiplies."""

    def weight(self, prediction: Prediction, interpolant: Interpolant, t: Tensor) -> Tensor:
        """The weight on the loss that `Objective` computes for a prediction.

        Args:
            prediction: What the network predicts. The score's loss is |sigma score + x0|^2, the noise's.
            interpolant: The path.
            t: Times, any shape.

        Returns:
            The shape of `t`, float64, not negative.

        Raises:
            UserError: If the prediction is unknown.
        """
        t = t.double().clamp(_FIRST, _LAST)
        weight = self._log_weight(interpolant, t)
        loss: Prediction = "noise" if prediction == "score" else prediction
        if loss != self.stated_on:
            weight = weight + log_error_factor(self.stated_on, interpolant, t)
            weight = weight - log_error_factor(loss, interpolant, t)
        return weight.exp()

    def on_data(self, interpolant: Interpolant, t: Tensor) -> Tensor:
        """The equivalent weight on the squared error of the data prediction; as `weight` otherwise."""
        return self.weight("data", interpolant, t)

    @abstractmethod
    def _log_weight(self, interpolant: Interpolant, t: Tensor) -> Tensor:
        """Logarithm of the weight as stated, float64; t is inside (0, 1)."""

    def __str__(self) -> str:
        fields = [number(value) for value in vars(self).values()]
        return f"{self.name}({', '.join(fields)})" if fields else self.name


@final
@dataclass(frozen=True)
class Snr(Weighting):
    """SNR on the data loss: the noise loss as it is (Ho et al., arXiv 2006.11239)."""

    name: ClassVar[str] = "snr"

    def _log_weight(self, interpolant: Interpolant, t: Tensor) -> Tensor:
        return interpolant.log_snr(t)


@final
@dataclass(frozen=True)
class SnrPlusOne(Weighting):
    """SNR + 1 on the data loss: the v loss as it is (Salimans and Ho, arXiv 2202.00512, section 4)."""

    name: ClassVar[str] = "snr_plus_one"

    def _log_weight(self, interpolant: Interpolant, t: Tensor) -> Tensor:
        return _softplus(interpolant.log_snr(t))


@final
@dataclass(frozen=True)
class TruncatedSnr(Weighting):
    """max(SNR, 1) on the data loss (Salimans and Ho, arXiv 2202.00512, section 4)."""

    name: ClassVar[str] = "truncated_snr"

    def _log_weight(self, interpolant: Interpolant, t: Tensor) -> Tensor:
        return interpolant.log_snr(t).clamp_min(0)


@final
@dataclass(frozen=True)
class MinSnr(Weighting):
    """min(SNR, gamma) on the data loss (Hang et al., arXiv 2303.09556).

    Attributes:
        gamma: The cap, above 0.

    Raises:
        UserError: If `gamma` is not a finite number above 0.
    """

    name: ClassVar[str] = "min_snr"

    gamma: float = 5.0

    def __post_init__(self) -> None:
        _check_positive(self.name, gamma=self.gamma)

    def _log_weight(self, interpolant: Interpolant, t: Tensor) -> Tensor:
        return interpolant.log_snr(t).clamp_max(math.log(self.gamma))


@final
@dataclass(frozen=True)
class SoftMinSnr(Weighting):
    """SNR gamma / (SNR + gamma) on the data loss (Crowson et al., arXiv 2401.11605).

    Attributes:
        gamma: The value that it rises to, above 0; k-diffusion's is 1 / sigma_data^2 = 4.

    Raises:
        UserError: If `gamma` is not a finite number above 0.
    """

    name: ClassVar[str] = "soft_min_snr"

    gamma: float = 5.0

    def __post_init__(self) -> None:
        _check_positive(self.name, gamma=self.gamma)

    def _log_weight(self, interpolant: Interpolant, t: Tensor) -> Tensor:
        log_gamma = math.log(self.gamma)
        return log_gamma - _softplus(log_gamma - interpolant.log_snr(t))


@final
@dataclass(frozen=True)
class Edm(Weighting):
    """1 / sigma_data^2 + SNR on the data loss: unit weight on EDM's preconditioned network.

    That is (s^2 + sigma_data^2) / (s sigma_data)^2 at the noise level s = sigma / alpha (Karras et al., arXiv
    2206.00364, table 1).

    Attributes:
        sigma_data: Standard deviation of the data, above 0.

    Raises:
        UserError: If `sigma_data` is not a finite number above 0.
    """

    name: ClassVar[str] = "edm"

    sigma_data: float = 0.5

    def __post_init__(self) -> None:
        _check_positive(self.name, sigma_data=self.sigma_data)

    def _log_weight(self, interpolant: Interpolant, t: Tensor) -> Tensor:
        inverse = -2 * math.log(self.sigma_data)
        return inverse + _softplus(interpolant.log_snr(t) - inverse)


@final
@dataclass(frozen=True)
class P2(Weighting):
    """1 / (k + SNR)^gamma on the noise loss (Choi et al., arXiv 2204.00227).

    Attributes:
        k: Added to SNR, above 0.
        gamma: Exponent, above 0: 0.5 or 1 in the paper.

    Raises:
        UserError: If one is not a finite number above 0.
    """

    name: ClassVar[str] = "p2"
    stated_on: ClassVar[Prediction] = "noise"

    k: float = 1.0
    gamma: float = 1.0

    def __post_init__(self) -> None:
        _check_positive(self.name, k=self.k, gamma=self.gamma)

    def _log_weight(self, interpolant: Interpolant, t: Tensor) -> Tensor:
        log_k = math.log(self.k)
        return -self.gamma * (log_k + _softplus(interpolant.log_snr(t) - log_k))


@final
@dataclass(frozen=True)
class Debiased(Weighting):
    """1 / sqrt(SNR) on the noise loss, SNR capped (Yu et al., arXiv 2310.08442; cap as in sd-scripts).

    Infinite at pure noise.

    Attributes:
        cap: SNR counts as at most this, above 0.

    Raises:
        UserError: If `cap` is not a finite number above 0.
    """

    name: ClassVar[str] = "debiased"
    stated_on: ClassVar[Prediction] = "noise"

    cap: float = 1000.0

    def __post_init__(self) -> None:
        _check_positive(self.name, cap=self.cap)

    def _log_weight(self, interpolant: Interpolant, t: Tensor) -> Tensor:
        return -interpolant.log_snr(t).clamp_max(math.log(self.cap)) / 2


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


WEIGHTINGS: dict[str, Callable[..., Weighting]] = {
    kind.name: kind
    for kind in (
        Snr,
        SnrPlusOne,
        TruncatedSnr,
        MinSnr,
        SoftMinSnr,
        Edm,
        P2,
        Debiased,
        SitVelocity,
        SitLikelihood,
        Speed,
        SigmaSqrt,
        CosMap,
    )
}
"""Names that `weighting` knows and what they build."""

FORMS: Forms[Weighting] = Forms("weighting", WEIGHTINGS, "'min_snr(5)' or 'cosmap'")


def weighting(text: str) -> Weighting:
    """Read a weighting from its text form; `weighting(str(w)) == w`.

    Raises:
        UserError: If the text has another form, a name is unknown, or an argument is wrong.
    """
    return FORMS.parse(text)


def _softplus(x: Tensor) -> Tensor:
    """log(1 + e^x) to all digits; torch's own stops at x = 20."""
    return -logsigmoid(-x)


def _log_noise_level(log_snr: Tensor) -> Tensor:
    """log tau, where the linear path has this log-SNR: tau = 1 / (1 + sqrt(SNR))."""
    return -_softplus(log_snr / 2)


@functools.lru_cache(maxsize=8)
def _changes(interpolant: Interpolant, steps: int) -> Tensor:
    """Differences of 1 / (1 + SNR) from step to step, scaled to [0, 1], (steps,) float64."""
    t = torch.arange(steps - 1, -1, -1, dtype=torch.float64) / steps
    noise = torch.sigmoid(-interpolant.log_snr(t))
    change = torch.gradient(noise)[0]
    return (change - change.min()) / (change.max() - change.min())


def _check_positive(name: str, **values: float) -> None:
    for key, value in values.items():
        if not 0 < value < math.inf:
            raise UserError(f"{name}: {key} = {value} must be a finite number above 0")
