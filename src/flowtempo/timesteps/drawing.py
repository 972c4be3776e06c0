"""Times and weights from uniforms, at the same small cost for every density."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from flowtempo.densities import Density
from flowtempo.densities.pieces import Array, Mask, Pieces, fit, geometric

_DEGREE = 5
# Of a time: beside itself, or as probability beside the nearer end's. Weights are used in float32.
_PRECISION = 2e-13
_WEIGHT_PRECISION = 1e-9
_ROUNDING = 4e-16


def times_and_weights(target: Density, density: Density | None, u: Array, *, steady: bool = True) -> Array:
    """Quantiles of the density, and target / density there.

    They come from polynomials in u, made at the first call, which follow the quantile to a relative 2e-13
    (or as closely in probability), wherever it is smooth; elsewhere from the density itself.

    Args:
        target: What weights are for.
        density: What is drawn; None draws the target.
        u: Uniforms, (B,) float64 in (0, 1); quicker if they rise.
        steady: Whether more will be drawn from the same densities; else no polynomials are made, which takes
            as long as some hundred draws.

    Returns:
        (2, B) float64, times and weights; (1, B), times alone, without a density.
    """
    if not steady:
        return _exact(target, density, u)
    pieces = _pieces(target, density)
    cells = pieces.cells(u)
    values = pieces.values(u, cells)
    rough = pieces.rough_at(cells)
    if len(rough):
        values[:, rough] = _exact(target, density, u[rough])
    return values


def weights(target: Density, density: Density, t: Tensor) -> Tensor:
    """target / density at t, float64."""
    return target.pdf(t) / density.pdf(t)


def _exact(target: Density, density: Density | None, u: Array) -> Array:
    t = (density or target).draw(torch.from_numpy(u), torch.float64)
    if density is None:
        return t.numpy()[None]
    return torch.stack([t, weights(target, density, t)]).numpy()


@lru_cache(maxsize=32)
def _pieces(target: Density, density: Density | None) -> Pieces:
    drawn = density or target
    kinks = torch.tensor([*target.edges(), *drawn.edges()], dtype=torch.float64)

    def good(u: Array, fitted: Array, true: Array) -> Mask:
        error = np.abs(fitted[0] - true[0])
        pdf = drawn.pdf(torch.from_numpy(true[0])).numpy()
        # Near 1 a float64 knows u itself no better.
        rounding = np.where(u > 0.5, _ROUNDING, 0.0)
        allowed = _PRECISION * np.minimum(u, 1 - u) + rounding
        fine: Mask = (error <= _PRECISION * true[0]) | (error * pdf <= allowed)
        fine &= fitted[0] > 0
        if density is not None:
            relative = _WEIGHT_PRECISION + rounding / np.maximum(1 - u, _ROUNDING)
            fine &= np.abs(fitted[1] - true[1]) <= relative * true[1]
        return fine

    with np.errstate(all="ignore"):
        edges = geometric(drawn.cdf(kinks).tolist(), octaves=56)
        return fit(lambda u: _exact(target, density, u), edges, good, _DEGREE)
