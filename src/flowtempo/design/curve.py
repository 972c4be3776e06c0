"""What a density is made from, over t: the variance of the training target, or of measured gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from flowtempo.errors import UserError
from flowtempo.interpolants import Interpolant
from flowtempo.predictions import Prediction, scaled_error_factor
from flowtempo.variance import VarianceProfile
from flowtempo.variance.profile import POSTERIOR

_UNIFORM_POINTS = 2049
# Towards an end the distance to it falls by 3% from point to point, from 0.05 on.
_END_POINTS = 600
_NEAREST_END, _FARTHEST_END = 1e-9, 0.05


@dataclass(frozen=True, eq=False)
class Curve:
    """A profile over t.

    Attributes:
        t: (T,) float64.
        mean: (T,) float64; inf where the interpolant has a pole.
        stderr: (T,) float64, standard error of `mean`.
    """

    t: Tensor
    mean: Tensor
    stderr: Tensor


def variance_curve(
    profile: VarianceProfile,
    interpolant: Interpolant,
    prediction: Prediction = "velocity",
    t: Tensor | None = None,
) -> Curve:
    """Target variance under an interpolant and prediction type.

    V = f G with the posterior variance G and the factor f of `predictions.error_factor` (for velocity
    V = (W / sigma)^2 G: authors' reply to the reviews of VR-Sampling, from Shaul et al., arXiv 2306.06626,
    equation 21). Between the profile's points, and beyond them, it is not G that is interpolated but its
    ratio h to the posterior variance s^2 / (1 + s^2 SNR) of a Gaussian with the data's total variance s^2
    (`VarianceProfile.ratio`). Then V = f sigma^2 s^2 h / (sigma^2 + s^2 alpha^2) has no 0 times inf: values
    at t = 0 and t = 1 are limits, and the curve is exact for isotropic Gaussian data.

    Args:
        profile: Posterior variance over log-SNR.
        interpolant: The path.
        prediction: The network's target.
        t: Times, (T,), in [0, 1]; `time_grid()` by default.

    Returns:
        tr Cov(target | x_t) / d on average over x_t.

    Raises:
        UserError: If the prediction is unknown, or the profile is no posterior variance.
    """
    if profile.quantity not in POSTERIOR:
        raise UserError(f"a target variance is made from a posterior variance, not from a {profile.quantity}")
    t = time_grid() if t is None else t.double()
    variance = profile.scale
    ratio, stderr = profile.ratio(interpolant.log_snr(t))
    factor = scaled_error_factor(prediction, interpolant, t)
    factor = factor * variance / (interpolant.sigma(t) ** 2 + variance * interpolant.alpha(t) ** 2)
    return Curve(t, factor * ratio, factor * stderr)


def curve_over_t(
    profile: VarianceProfile,
    interpolant: Interpolant,
    prediction: Prediction = "velocity",
    t: Tensor | None = None,
) -> Curve:
    """Any profile over t: a posterior variance as `variance_curve`, a model's quantity as it was measured.

    Args:
        profile: The profile; a model's belongs to the interpolant and the prediction that it was measured on.
        interpolant: The path.
        prediction: The network's target.
        t: Times, (T,), in [0, 1]; `time_grid()` by default.

    Raises:
        UserError: If the prediction is unknown.
    """
    if profile.quantity in POSTERIOR:
        return variance_curve(profile, interpolant, prediction, t)
    t = time_grid() if t is None else t.double()
    return Curve(t, *profile.at(interpolant.log_snr(t)))


def time_grid(low: float = 0.0, high: float = 1.0) -> Tensor:
    """Times from `low` to `high`: evenly spaced, and ever closer towards 0 and 1 where curves may have poles.

    Returns:
        (T,) float64, strictly increasing.
    """
    even = torch.linspace(0, 1, _UNIFORM_POINTS, dtype=torch.float64)
    exponents = math.log(_NEAREST_END), math.log(_FARTHEST_END)
    near = torch.linspace(exponents[0], exponents[1], _END_POINTS, dtype=torch.float64).exp()
    grid = torch.cat([even, near, 1 - near, torch.tensor([low, high], dtype=torch.float64)])
    grid = grid[(grid >= low) & (grid <= high)].sort().values
    return grid[torch.cat([torch.tensor([True]), grid.diff() > 0])]
