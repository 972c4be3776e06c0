"""The error of the best linear denoiser, cross-fitted: an upper bound of the posterior variance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flowtempo.variance.estimate import Estimate, average, by_fold, least, make_profile, pointwise
from flowtempo.variance.points import Points, check_log_snr, prepare
from flowtempo.variance.profile import VarianceProfile

SHRINKAGES = (1.0, 0.1, 0.01)
"""Fractions of the Ledoit-Wolf shrinkage, the whole first."""

# Largest matrix whose eigenvectors are taken. Beyond it a fold's directions come from this many points.
_LARGEST_RANK = 4096
# Most float64 numbers in a fold that is fitted through its Gram matrix: 1 GiB.
_LARGEST_FOLD = 1 << 27
_CHUNK_NUMBERS = 1 << 24


def spectral(
    x: Tensor, log_snr: Tensor | None = None, *, seed: int = 0, data: dict[str, Any] | None = None
) -> VarianceProfile:
    """Estimate the error of the best linear denoiser, cross-fitted: an upper bound of the MMSE.

    See `spectral_errors`. Each half of the data is denoised by the fit of the other half; the amount of
    shrinkage is chosen at each log-SNR, cross-fitted as well.

    Args:
        x: Data, (M, ...), M >= 8.
        log_snr: Grid, (L,), strictly increasing; 65 points from -14 to 14 by default.
        seed: Seed of the halves.
        data: Description of the data to keep in the profile.

    Returns:
        The profile, bound "upper". Standard errors are over the evaluated points, given the two fits, which
        is what a comparison with the MMSE needs.

    Raises:
        UserError: If an argument has a wrong shape or value, or the data is not finite or does not vary.
    """
    grid = check_log_snr(log_snr)
    points = prepare(x, seed=seed)
    result = average(points, least([by_fold(points, estimate) for estimate in spectral_errors(points, grid)]))
    return make_profile(points, result, grid, "spectral", "upper", {"queries": points.count}, data)


def spectral_errors(points: Points, log_snr: Tensor) -> list[Estimate]:
    """Error, at every point, of a linear denoiser fitted to the fold that the point is not in.

    With the fitting fold's mean mu, directions v_k and values l_k of its shrunk covariance, the denoiser
    x1 = mu + sum_k v_k r^2 l_k / (1 + r^2 l_k) <v_k, z - mu> has, at a point x and averaged over the noise,
    the squared error sum_k (<v_k, x - mu>^2 + r^2 l_k^2) / (1 + r^2 l_k)^2. It knows nothing of x, so its
    mean over the other fold is, whatever the fit, at least the MMSE in expectation (points that are copies
    of one another stay within a fold). The plug-in mean of l / (1 + r^2 l) has no such side: it lies
    below the MMSE when points are few against dimensions.

    Args:
        points: The points.
        log_snr: (L,) float64.

    Returns:
        One estimate for each of `SHRINKAGES`, with all points as queries. Their errors are those of the
        evaluation, given the fits.
    """
    square = log_snr.exp()
    value = torch.empty(len(SHRINKAGES), points.count, len(log_snr), dtype=torch.float64)
    for half in (0, 1):
        fit = _fit(points, points.fold(1 - half))
        value[:, points.fold(half)] = fit.errors(points.x[points.fold(half)], square)
    return [pointwise(points, each, torch.arange(points.count)) for each in value]


@dataclass(frozen=True)
class _Fit:
    """A Gaussian fitted to points.

    Attributes:
        mean: (d,).
        directions: Orthonormal, (d, k).
        values: Variances along them for each of `SHRINKAGES`, (S, k).
        rest: Variance along all other directions, (S,).
    """

    mean: Tensor
    directions: Tensor
    values: Tensor
    rest: Tensor

    def errors(self, x: Tensor, square: Tensor) -> Tensor:
        """Squared error per dimension for each shrinkage, point and r^2, (S, n, L) float64."""
        dim, rank = self.directions.shape
        gain = 1 / (1 + square * self.values[..., None]).square()  # (S, k, L)
        rest_gain = 1 / (1 + square * self.rest[:, None]).square()  # (S, L)
        noise = square * (
            (self.values.square()[..., None] * gain).sum(1)
            + (dim - rank) * self.rest.square()[:, None] * rest_gain
        )
        out = torch.empty(len(self.values), len(x), len(square), dtype=torch.float64)
        step = max(1, _CHUNK_NUMBERS // dim)
        for first in range(0, len(x), step):
            part = x[first : first + step].double() - self.mean
            along = (part @ self.directions).square()
            value = along @ gain + noise[:, None]
            if rank < dim:
                beside = (part.square().sum(1) - along.sum(1)).clamp(min=0)
                value += beside[:, None] * rest_gain[:, None]
            out[:, first : first + step] = value
        return out / dim


def _fit(points: Points, fold: slice) -> _Fit:
    """Fit a fold: eigenvectors of its covariance, and eigenvalues shrunk towards their mean.

    The shrinkage is Ledoit & Wolf's ("A well-conditioned estimator for large-dimensional covariance
    matrices", Journal of Multivariate Analysis 88, 2004), and fractions of it: the whole serves flat spectra,
    but lifts values that are far below the mean, on which the error at high log-SNR depends.
    """
    x, dim = points.x[fold], points.dim
    if min(len(x), dim) > _LARGEST_RANK or len(x) < dim:
        x = x[: min(_LARGEST_RANK, max(2, _LARGEST_FOLD // dim))]
    count = len(x)
    step = max(1, _CHUNK_NUMBERS // dim)
    mean = torch.stack([part.double().sum(0) for part in torch.split(x, step)]).sum(0) / count
    fourth = 0.0
    if dim <= count:
        scatter = torch.zeros(dim, dim, dtype=torch.float64)
        for part in torch.split(x, step):
            y = part.double() - mean
            scatter += y.T @ y
            fourth += float(y.square().sum(1).square().sum())
        values, directions = torch.linalg.eigh(scatter / count)
        values = values.clamp(min=0)
    else:
        y = x.double() - mean
        fourth = float(y.square().sum(1).square().sum())
        values, left = torch.linalg.eigh(y @ y.T / count)
        real = values > 1e-10 * values[-1]  # the mean takes one direction away
        values, left = values[real], left[:, real]
        directions = y.T @ left / (count * values).sqrt()
    level = values.sum() / dim
    spread = float(values.square().sum() - dim * level.square())
    error = fourth / count**2 - float(values.square().sum()) / count
    shrinkage = min(1.0, max(0.0, error) / spread) if spread > 0 else 1.0
    shares = shrinkage * torch.tensor(SHRINKAGES, dtype=torch.float64)
    return _Fit(mean, directions, torch.lerp(values, level, shares[:, None]), shares * level)
