"""The variance of the training target over t: an interpolant's factor times the posterior variance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flowtempo.errors import UserError
from flowtempo.interpolants import Interpolant
from flowtempo.predictions import Prediction, scaled_error_factor
from flowtempo.variance import VarianceProfile

_UNIFORM_POINTS = 2049
_END_POINTS = 64
_NEAREST_END = 1e-9


@dataclass(frozen=True, eq=False)
class Curve:
    """The target variance per dimension, tr Cov(target | x_t) / d on average over x_t.

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
    ratio h to the posterior variance s^2 / (1 + s^2 SNR) of a Gaussian with the data's total variance s^2.
    h is flat where G falls over many orders of magnitude and tends to a constant at both ends, so the curve
    is exact for isotropic Gaussian data, and its values at t = 0 and t = 1 are limits and not 0 times inf.

    Args:
        profile: Posterior variance over log-SNR.
        interpolant: The path.
        prediction: The network's target.
        t: Times, (T,), in [0, 1]; `time_grid()` by default.

    Raises:
        UserError: If the prediction is unknown, or the profile starts at zero.
    """
    t = time_grid() if t is None else t.double()
    variance = profile.mean[0]
    if not float(variance) > 0:
        raise UserError(
            f"the posterior variance is zero at log-SNR {float(profile.log_snr[0]):g}, the profile's lowest: "
            "there is no variance to turn into a curve"
        )
    ratio, ratio_stderr = profile.mean / _gaussian(profile.log_snr, variance), profile.stderr
    ratio_stderr = ratio_stderr / _gaussian(profile.log_snr, variance)
    log_snr = interpolant.log_snr(t)
    factor = scaled_error_factor(prediction, interpolant, t)
    factor = factor * variance / (interpolant.sigma(t) ** 2 + variance * interpolant.alpha(t) ** 2)
    mean = factor * interpolate(log_snr, profile.log_snr, ratio)
    return Curve(t, mean, factor * interpolate(log_snr, profile.log_snr, ratio_stderr))


def time_grid(low: float = 0.0, high: float = 1.0) -> Tensor:
    """Times from `low` to `high`: evenly spaced, and ever closer towards 0 and 1 where curves may have poles.

    Returns:
        (T,) float64, strictly increasing.
    """
    even = torch.linspace(0, 1, _UNIFORM_POINTS, dtype=torch.float64)
    first = float(even[1])
    near = torch.logspace(
        torch.tensor(_NEAREST_END).log10().item(),
        torch.tensor(first).log10().item(),
        _END_POINTS,
        dtype=torch.float64,
    )[:-1]
    grid = torch.cat([even, near, 1 - near, torch.tensor([low, high], dtype=torch.float64)])
    grid = grid[(grid >= low) & (grid <= high)].sort().values
    return grid[torch.cat([torch.tensor([True]), grid.diff() > 0])]


def interpolate(x: Tensor, grid: Tensor, values: Tensor) -> Tensor:
    """Piecewise-linear interpolation, constant beyond the ends; infinite x is allowed."""
    if len(grid) == 1:
        return values.expand(x.shape)
    x = x.clamp(float(grid[0]), float(grid[-1]))
    cell = (torch.searchsorted(grid, x.contiguous(), right=True) - 1).clamp(0, len(grid) - 2)
    share = (x - grid[cell]) / (grid[cell + 1] - grid[cell])
    return torch.lerp(values[cell], values[cell + 1], share)


def _gaussian(log_snr: Tensor, variance: Tensor) -> Tensor:
    return variance / (1 + variance * log_snr.exp())
