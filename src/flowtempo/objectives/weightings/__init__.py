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

from collections.abc import Callable

from flowtempo.forms import Forms
from flowtempo.objectives.weightings.base import Weighting
from flowtempo.objectives.weightings.paths import CosMap, SigmaSqrt, SitLikelihood, SitVelocity, Speed
from flowtempo.objectives.weightings.snr import (
    P2,
    Debiased,
    Edm,
    MinSnr,
    Snr,
    SnrPlusOne,
    SoftMinSnr,
    TruncatedSnr,
)

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
