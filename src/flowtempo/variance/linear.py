"""The error of linear denoisers, cross-fitted: an upper bound of the posterior variance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from flowtempo.variance.estimate import Estimate, average, by_fold, least, make_profile, pointwise
from flowtempo.variance.points import Points, check_log_snr, prepare
from flowtempo.variance.profile import VarianceProfile
from flowtempo.variance.stationary import Stationary, product_dtype, stationary_fits

SHRINKAGES = (1.0, 0.1, 0.01)
"""Fractions of the Ledoit-Wolf shrinkage, the whole first."""

# Largest dimension whose whole covariance is used. Beyond it, and for points fewer than half the dimensions,
# directions come from at most so many points, and hold at most so many numbers.
_LARGEST_DIM = 8192
_LARGEST_RANK = 4096
_LARGEST_DIRECTIONS = 1 << 26
# Points of the fit that the variances along its directions are taken from.
_VARIANCE_POINTS = 4096
_CHUNK_NUMBERS = 1 << 23
# The lower triangle of a scatter matrix is made of blocks of so many rows and columns.
_SCATTER_BLOCK = 128
# A rounding error of single precision must not show beside the smallest variance (see `_Dense`).
_FLOOR = 2.0**-30


def spectral(
    x: Tensor, log_snr: Tensor | None = None, *, seed: int = 0, data: dict[str, Any] | None = None
) -> VarianceProfile:
    """Estimate the error of the best linear denoiser, cross-fitted: an upper bound of the MMSE.

    See `spectral_errors`. Each half of the data is denoised by the fits of the other half. Which of them
    serves at a log-SNR is chosen on the half that it was not evaluated on, so that the result stays an upper
    bound in expectation; the least of the curves themselves would not be one.

    Args:
        x: Data, (M, ...), M >= 8. Images (C, H, W) and videos (C, T, H, W) also get the stationary denoiser,
            which few points suffice for.
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
    """Errors of linear denoisers, each fitted to the fold that the evaluated points are not in.

    With a mean mu, orthonormal directions v_k and variances l_k from the fitting fold, the denoiser
    x1 = mu + sum_k v_k r^2 l_k / (1 + r^2 l_k) <v_k, z - mu> has, at a point x and averaged over the noise,
    the squared error sum_k (<v_k, x - mu>^2 + r^2 l_k^2) / (1 + r^2 l_k)^2. It knows nothing of x, so its
    mean over the other fold is, whatever the fit, at least the MMSE in expectation (points that are copies
    of one another stay within a fold). The plug-in mean of l / (1 + r^2 l) has no such side: it lies
    below the MMSE when points are few against dimensions. Neither has the least of several estimates, unless
    the choice is cross-fitted too (`least`).

    The directions are the eigenvectors of the fold's covariance or, if the points are images or videos, also
    the components of a stationary field (`Stationary`).

    Args:
        points: The points.
        log_snr: (L,) float64.

    Returns:
        One estimate for each of `SHRINKAGES` of the covariance and for each stationary fit. Their errors are
        those of the evaluation, given the fits. The first has a value at every point; the others are sums
        over blocks alone, with all points as queries and no values.
    """
    square = log_snr.exp()
    value = torch.empty(points.count, len(square), dtype=torch.float64)
    sums: list[list[Tensor]] = [[], []]
    for half in (0, 1):
        fitted, held_out = points.fold(1 - half), points.fold(half)
        fits: list[_Dense | Stationary] = [_fit(points, fitted), *stationary_fits(points, fitted)]
        sums[half] = _evaluate(points, half, fits, square, value[held_out])
        del fits  # before the other half's are made
    curves = [torch.cat(halves) for halves in zip(*sums, strict=True)]
    return [
        pointwise(points, value, torch.arange(points.count)),
        *(_blockwise(points, c) for c in curves[1:]),
    ]


def _evaluate(
    points: Points, half: int, fits: list[_Dense | Stationary], square: Tensor, value: Tensor
) -> list[Tensor]:
    """Errors per dimension of a fold's points, summed over its blocks, (B/2, L) for each of a fit's values.

    Args:
        points: The points.
        half: The fold.
        fits: Fits of the other fold.
        square: r^2, (L,).
        value: (n, L), receives the error of the first values of the first fit at every point.
    """
    first, blocks = points.fold(half).start, points.blocks // 2
    energy = [torch.zeros(blocks, len(fit.weight), dtype=torch.float64) for fit in fits]
    gain, noise = _gain(fits[0].values[0], fits[0].weight, square)
    for block in range(blocks):
        for part in _parts(points.members(half * blocks + block), points.dim):
            rows = points.rows(part)
            for index, fit in enumerate(fits):
                along = fit.energy(rows - fit.mean)
                energy[index][block] += along.sum(0)
                if index == 0:
                    value[part.start - first : part.stop - first] = along @ gain.to(along.dtype) + noise
    value /= points.dim
    sizes = torch.tensor(points.starts).diff()[half * blocks :][:blocks, None].double()
    curves = []
    for fit, along in zip(fits, energy, strict=True):
        for values in fit.values:
            curve = torch.zeros(blocks, len(square), dtype=torch.float64)
            for some in torch.split(torch.arange(len(values)), max(1, _CHUNK_NUMBERS // (4 * len(square)))):
                gain, noise = _gain(values[some], fit.weight[some], square)
                curve += along[:, some] @ gain + sizes * noise
            curves.append(curve / points.dim)
    return curves


def _gain(values: Tensor, weight: Tensor, square: Tensor) -> tuple[Tensor, Tensor]:
    """Factor of the squared length along each direction, (K, L), and what the noise adds, (L,).

    Args:
        values: Variances, (K,).
        weight: Number of dimensions that each of them holds for, (K,).
        square: r^2, (L,).
    """
    gain = (1 + values[:, None] * square).square_().reciprocal_()
    return gain, square * ((weight * values.square()) @ gain)


def _blockwise(points: Points, sums: Tensor) -> Estimate:
    """Wrap sums over the points of each block, (B, L)."""
    sizes = torch.tensor(points.starts).diff()[:, None].double().expand_as(sums)
    return Estimate(
        value=sums.new_empty(0, sums.shape[1]),
        query=torch.arange(0),
        deleted=sums[:, None].expand(-1, points.blocks, -1),
        sizes=sizes,
        noise_variance=sums.new_zeros(sums.shape[1]),
    )


@dataclass(frozen=True)
class _Dense:
    """A Gaussian fitted to points through their covariance.

    With float32 points the products that the bound is evaluated with are float32 as well. Their error, and
    the error of the directions' being orthonormal, is in each <v_k, x - mu> about 3e-8 |x - mu| and averages
    out to first order. Its square counts beside r^2 l_k^2, so no variance is then taken below 2^-30 of their
    sum; where r^2 times that is small, the bound itself is large.

    Attributes:
        mean: (d,), in the precision of the products.
        directions: Orthonormal, (d, k).
        values: Variances along them for each of `SHRINKAGES` and, if k < d, along all other directions,
            (S, k) or (S, k + 1) float64.
    """

    mean: Tensor
    directions: Tensor
    values: Tensor

    @cached_property
    def weight(self) -> Tensor:
        """How many dimensions each value holds for, (K,) float64."""
        dim, rank = self.directions.shape
        weight = torch.ones(self.values.shape[1], dtype=torch.float64)
        if rank < dim:
            weight[-1] = dim - rank
        return weight

    def energy(self, y: Tensor) -> Tensor:
        """Squared length of the part of each point along each direction and outside them, (n, K).

        Args:
            y: Points less the mean, (n, d).
        """
        dim, rank = self.directions.shape
        along = (y @ self.directions).square_()
        if rank == dim:
            return along
        # Not clamped at 0: rounding errors of both signs average out.
        beside = y.square().sum(1, dtype=torch.float64) - along.sum(1, dtype=torch.float64)
        return torch.cat([along, beside[:, None].to(y.dtype)], 1)


def _fit(points: Points, fold: slice) -> _Dense:
    """Fit a fold: eigenvectors of its covariance, and variances along them shrunk towards their mean.

    The shrinkage is Ledoit & Wolf's ("A well-conditioned estimator for large-dimensional covariance
    matrices", Journal of Multivariate Analysis 88, 2004), and fractions of it: the whole serves flat spectra,
    but lifts values that are far below the mean, on which the error at high log-SNR depends.
    """
    dim, count = points.dim, fold.stop - fold.start
    mean = torch.zeros(dim, dtype=torch.float64)
    for part in _parts(fold, dim):
        mean += points.rows(part).sum(0) / count
    # Rounding the mean does no harm: it is the rounded one that is taken off. The rest has its precision.
    mean = mean.to(product_dtype(points))
    if dim <= _LARGEST_DIM and dim <= 2 * count:
        values, directions, fourth = _from_covariance(points, fold, mean)
    else:
        count = min(count, _LARGEST_RANK, max(2, _LARGEST_DIRECTIONS // dim))
        chosen = points.rows(slice(fold.start, fold.start + count))
        values, directions, fourth = _from_inner_products(chosen - mean)
    level = float(values.sum()) / dim
    power = float(values.square().sum())
    spread, error = power - dim * level**2, fourth / count**2 - power / count
    shrinkage = min(1.0, max(0.0, error) / spread) if spread > 0 else 1.0
    shares = shrinkage * torch.tensor(SHRINKAGES, dtype=torch.float64)
    values = torch.lerp(values, torch.tensor(level, dtype=torch.float64), shares[:, None])
    if len(directions.T) < dim:
        values = torch.cat([values, shares[:, None] * level], 1)
    if mean.dtype == torch.float32:
        values = values.clamp(min=_FLOOR * dim * level)
    return _Dense(mean, directions, values)


def _from_covariance(points: Points, fold: slice, mean: Tensor) -> tuple[Tensor, Tensor, float]:
    """Variances and directions, (d,) float64 and (d, d), and the sum of |x - mean|^4.

    The scatter matrix is added up in float64 from products in the points' precision. Eigenvalues that are
    computed in float32 are off by 1e-7 of the largest one or more, the directions by little, so that the
    variances are taken from points along the directions.
    """
    dim, fourth = points.dim, 0.0
    scatter = torch.zeros(dim, dim, dtype=torch.float64)
    for part in _parts(fold, dim):
        y = points.rows(part) - mean
        fourth += float(y.square().sum(1).double().square().sum())
        for first in range(0, dim, _SCATTER_BLOCK):
            last = min(first + _SCATTER_BLOCK, dim)
            scatter[first:last, :last] += y[:, first:last].T @ y[:, :last]
    covariance = scatter.div_(fold.stop - fold.start).to(mean.dtype)
    del scatter  # half a gigabyte at the largest dimension, and `eigh` needs three times that
    directions = torch.linalg.eigh(covariance)[1]  # reads the lower triangle alone
    del covariance
    some = slice(fold.start, min(fold.stop, fold.start + _VARIANCE_POINTS))
    values = torch.zeros(dim, dtype=torch.float64)
    for part in _parts(some, dim):
        values += ((points.rows(part) - mean) @ directions).square_().sum(0)
    return values / (some.stop - some.start), directions, fourth


def _from_inner_products(y: Tensor) -> tuple[Tensor, Tensor, float]:
    """The same for fewer points (n, d) than dimensions: (k,) and (d, k), k <= n.

    All in float64, or the directions of small variance would not be orthogonal to those of large variance.
    """
    count, dim = y.shape
    columns = torch.split(torch.arange(dim), max(1, _CHUNK_NUMBERS // count))
    inner = torch.zeros(count, count, dtype=torch.float64)
    for some in columns:
        part = y[:, some].double()
        inner += part @ part.T
    fourth = float(inner.diagonal().square().sum())
    values, left = torch.linalg.eigh(inner / count)
    real = values > 1e-10 * values[-1]  # the mean takes one direction away
    values, left = values[real], left[:, real] / (count * values[real]).sqrt()
    directions = torch.empty(dim, len(values), dtype=y.dtype)
    for some in columns:
        directions[some] = (y[:, some].double().T @ left).to(y.dtype)
    return values, directions, fourth


def _parts(run: slice, dim: int) -> Iterator[slice]:
    step = max(1, _CHUNK_NUMBERS // dim)
    for first in range(run.start, run.stop, step):
        yield slice(first, min(first + step, run.stop))
