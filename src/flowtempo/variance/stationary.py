"""The linear denoiser that treats all positions alike: it knows a spectrum and few numbers more."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from flowtempo.variance.points import Points

# Most numbers in the cross-spectra of all channels, C d. Beyond it each channel is denoised by itself.
_LARGEST_CROSS = 1 << 24
# Numbers of the points that are transformed at a time.
_CHUNK_NUMBERS = 1 << 21
# A rounding error of single precision must not show beside the smallest variance (see `Stationary`).
_FLOOR = 2.0**-30


@dataclass(frozen=True)
class Stationary:
    """A stationary Gaussian field fitted to points: independent over the frequencies of the spatial axes.

    With x^ the unitary discrete Fourier transform over the spatial axes and, at each frequency, orthonormal
    directions u_k in the C channels and variances l_k along them, the denoiser sends u_k^H z^ to
    r^2 l_k / (1 + r^2 l_k) u_k^H z^. It is a linear denoiser like any other and its error has the closed
    form of any other (`spectral_errors`), so it bounds the MMSE from above whether or not the data is
    stationary. Only half of the frequencies are kept, since those of real data come in conjugate pairs:
    one that stands for a pair counts twice.

    A transform in float32 has an error of about 1e-7 of the root mean square of a point in each component.
    Where the points are float32, no variance is taken below 2^-30 of the mean one, which keeps the error of
    the bound that comes from it below 1e-4 at any log-SNR.

    Attributes:
        mean: (d,), in the precision of the transforms.
        shape: (C, *spatial).
        basis: Directions in the channels: None if they are the channels themselves, (C, C) real if they are
            the same at all F frequencies, (F, C, C) complex otherwise; one in each column.
        values: (S, F C) float64, variances along them, for each of S amounts of smoothing.
    """

    mean: Tensor
    shape: tuple[int, ...]
    basis: Tensor | None
    values: Tensor

    @cached_property
    def weight(self) -> Tensor:
        """How many of the d dimensions each component stands for, (F C,) float64."""
        return frequency_weight(self.shape[1:]).repeat_interleave(self.shape[0])

    def energy(self, y: Tensor) -> Tensor:
        """Squared length of the part of each point in each component, (n, F C); rows add up to |y|^2.

        Args:
            y: Points less the mean, (n, d).
        """
        transformed = _transform(y, self.shape)
        if self.basis is not None:
            basis = self.basis.to(transformed.dtype)
            transformed = transformed @ basis.conj() if basis.ndim == 3 else transformed @ basis
        power = transformed.real.square() + transformed.imag.square()
        return power.transpose(0, 1).reshape(len(y), -1) * self.weight.to(y.dtype)


def stationary_fits(points: Points, fold: slice) -> list[Stationary]:
    """Fit stationary denoisers to a fold.

    Args:
        points: Points of shape (C, H, W) or (C, T, H, W).
        fold: The points to fit.

    Returns:
        Nothing for points of another shape. Else the channels turned to their principal axes, with a power
        spectrum for each, plain and smoothed over neighbouring frequencies for points that are few. With
        several channels also a C x C covariance for each frequency, drawn towards that power spectrum as a
        prior worth C points would draw it, so that fewer points than channels do no harm. Channels that are
        too many for that (C d above 2^24) are not turned, and have a power spectrum each.
    """
    if len(points.shape) not in (3, 4):
        return []
    channels, dim, count = points.shape[0], points.dim, fold.stop - fold.start
    frequencies = len(frequency_weight(points.shape[1:]))
    crossed = channels > 1 and channels * dim <= _LARGEST_CROSS
    total = torch.zeros(dim, dtype=torch.float64)
    moments: Tensor = torch.zeros(frequencies, channels, dtype=torch.float64)
    if crossed:
        moments = torch.zeros(frequencies, channels, channels, dtype=torch.complex128)
    step = max(1, _CHUNK_NUMBERS // dim)
    for first in range(fold.start, fold.stop, step):
        rows = points.rows(slice(first, min(first + step, fold.stop))).to(product_dtype(points))
        total += rows.sum(0)
        moments += _second_moment(_transform(rows, points.shape), crossed)
    # The mean must be the fold's: the zero of the points is the mean of all, the other fold's among them.
    # Rounding does no harm, since it is the rounded mean that is taken off.
    mean = (total / count).to(product_dtype(points))
    about = _transform(mean[None].double(), points.shape)
    # Points are centred, so that the fold's mean is small and little cancels.
    moments = moments / count - _second_moment(about, crossed)

    weight = frequency_weight(points.shape[1:])

    def fit(basis: Tensor | None, *amounts: Tensor) -> Stationary:
        values = torch.stack(amounts)
        if mean.dtype == torch.float32:
            values = values.clamp(min=_FLOOR * float((weight[:, None] * amounts[0]).sum()) / dim)
        return Stationary(mean, points.shape, basis, values.flatten(1))

    if not crossed:
        powers = moments.clamp(min=0)
        return [fit(None, powers, _smooth(powers, points.shape[1:]))]
    shared = torch.linalg.eigh((weight[:, None, None] * moments.real).sum(0))[1]
    turned = shared.T.to(moments.dtype) @ moments @ shared.to(moments.dtype)
    powers = turned.diagonal(dim1=1, dim2=2).real.clamp(min=0)
    turned *= count / (count + channels)
    turned.diagonal(dim1=1, dim2=2).copy_(powers)
    values, directions = torch.linalg.eigh(turned)
    return [
        fit(shared, powers, _smooth(powers, points.shape[1:])),
        fit(shared.to(directions.dtype) @ directions, values.clamp(min=0)),
    ]


def product_dtype(points: Points) -> torch.dtype:
    """Precision that linear denoisers are evaluated in: float32 for float32 points that it can square."""
    variance = float(points.norm.mean()) / points.dim
    return torch.float32 if points.x.dtype == torch.float32 and 1e-20 < variance < 1e20 else torch.float64


def frequency_weight(spatial: tuple[int, ...]) -> Tensor:
    """How many frequencies each of the kept half stands for, 1 or 2, (F,) float64 in `rfftn`'s order."""
    last = spatial[-1]
    weight = torch.full((last // 2 + 1,), 2.0, dtype=torch.float64)
    weight[0] = 1
    if last % 2 == 0:
        weight[-1] = 1
    return weight.repeat(math.prod(spatial[:-1]))


def _transform(y: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Unitary transform over the spatial axes, (F, n, C) complex."""
    axes = tuple(range(2, len(shape) + 1))
    transformed: Tensor = torch.fft.rfftn(y.reshape(len(y), *shape), dim=axes, norm="ortho")
    return transformed.reshape(len(y), shape[0], -1).permute(2, 0, 1)


def _second_moment(transformed: Tensor, crossed: bool) -> Tensor:
    """Sum over points of x^ x^H, (F, C, C), or of |x^|^2, (F, C)."""
    if crossed:
        return transformed.transpose(1, 2) @ transformed.conj()
    return (transformed.real.square() + transformed.imag.square()).sum(1)


def _smooth(powers: Tensor, spatial: tuple[int, ...]) -> Tensor:
    """Geometric mean of each frequency's power with its neighbours', weights 1/4, 1/2, 1/4 on each axis.

    Spectra fall by orders of magnitude, so that a plain mean would be that of the largest neighbour. The
    weights are a window over the lags of the spectrum's own transform (Blackman & Tukey, 1958).
    """
    channels, axes = powers.shape[1], tuple(range(len(spatial)))
    logs = powers.clamp(min=_FLOOR * float(powers.mean())).log()
    half = logs.reshape(*spatial[:-1], -1, channels).to(torch.complex128)
    lags = torch.fft.irfftn(half, spatial, dim=axes)
    for axis, size in enumerate(spatial):
        window = (1 + (2 * math.pi / size * torch.arange(size, dtype=torch.float64)).cos()) / 2
        lags *= window.reshape(-1, *[1] * (lags.ndim - axis - 1))
    smooth: Tensor = torch.fft.rfftn(lags, dim=axes).real
    return smooth.exp().reshape(powers.shape)
