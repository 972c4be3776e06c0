"""Weightings that are functions of the signal-to-noise ratio."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from flowtempo.interpolants import Interpolant
from flowtempo.objectives.weightings.base import Weighting, check_positive, softplus
from flowtempo.predictions import Prediction


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
        return softplus(interpolant.log_snr(t))


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
        check_positive(self.name, gamma=self.gamma)

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
        check_positive(self.name, gamma=self.gamma)

    def _log_weight(self, interpolant: Interpolant, t: Tensor) -> Tensor:
        log_gamma = math.log(self.gamma)
        return log_gamma - softplus(log_gamma - interpolant.log_snr(t))


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
        check_positive(self.name, sigma_data=self.sigma_data)

    def _log_weight(self, interpolant: Interpolant, t: Tensor) -> Tensor:
        inverse = -2 * math.log(self.sigma_data)
        return inverse + softplus(interpolant.log_snr(t) - inverse)


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
        check_positive(self.name, k=self.k, gamma=self.gamma)

    def _log_weight(self, interpolant: Interpolant, t: Tensor) -> Tensor:
        log_k = math.log(self.k)
        return -self.gamma * (log_k + softplus(interpolant.log_snr(t) - log_k))


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
        check_positive(self.name, cap=self.cap)

    def _log_weight(self, interpolant: Interpolant, t: Tensor) -> Tensor:
        return -interpolant.log_snr(t).clamp_max(math.log(self.cap)) / 2
