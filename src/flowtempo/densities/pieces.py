"""Functions as piecewise polynomials, found by halving cells until they fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
# How often a cell of the first grid is halved at most, and how small it may become beside its place.
_MOST_HALVINGS = 12
_LEAST_WIDTH = 1e-13
# How many cells may still be halved at a time: more are noise, not shape.
_MOST_CELLS = 4096
# Cells of the first grid between two powers of 2.
_PER_OCTAVE = 4
# Where a fit is tested: between its nodes and at the ends, where it is worst.
_PROBES = np.array([-1.0, -0.84, -0.41, 0.13, 0.55, 0.93, 1.0])


@dataclass(frozen=True)
class Pieces:
    """Several functions of x, polynomials of one degree on each cell of a grid.

    Attributes:
        edges: Edges of the cells, (n + 1,), rising.
        coefficients: (degree + 1, functions, n): powers of the place in the cell, from -1 to 1, lowest first.
        rough: Whether halving did not help, (n,): the polynomials are not good there.
    """

    edges: Array
    coefficients: Array
    rough: NDArray[np.bool_]

    @cached_property
    def _inner(self) -> Array:
        return np.ascontiguousarray(self.edges[1:-1])

    @cached_property
    def _columns(self) -> Array:
        """Center, inverse half width and coefficients of each cell, together: one gather fetches them."""
        place = np.stack([(self.edges[1:] + self.edges[:-1]) / 2, 2 / np.diff(self.edges)])
        rows = self.coefficients.reshape(-1, len(self.edges) - 1)
        return np.ascontiguousarray(np.concatenate([place, rows]).T)

    @cached_property
    def _any_rough(self) -> bool:
        return bool(self.rough.any())

    def cells(self, x: Array) -> NDArray[np.intp]:
        """Index of the cell of each x, which lies between the first edge and the last; quick if x rises."""
        return self._inner.searchsorted(x, "right")

    def values(self, x: Array, cells: NDArray[np.intp]) -> Array:
        """Values of the functions, (functions, len(x))."""
        table = self._columns.take(cells, axis=0).T.copy()
        x = x - table[0]
        x *= table[1]
        # (degree + 1, functions, len(x))
        degrees, functions, _ = self.coefficients.shape
        rows = table[2:].reshape(degrees, functions, -1)
        value: Array = rows[-1]
        for row in rows[-2::-1]:
            value *= x
            value += row
        return value

    def rough_at(self, cells: NDArray[np.intp]) -> NDArray[np.intp]:
        """Indices of the elements that lie in rough cells."""
        return np.flatnonzero(self.rough.take(cells)) if self._any_rough else cells[:0]


def geometric(breaks: Iterable[float], octaves: int = 80) -> Array:
    """Edges from 0 to 1, finer towards both ends: a power, a logarithm or a tail at an end fits well.

    Args:
        breaks: More edges.
        octaves: Powers of 2 towards 0; towards 1 as many as a float64 tells apart.
    """
    down = 2.0 ** -(np.arange(_PER_OCTAVE, octaves * _PER_OCTAVE + 1) / _PER_OCTAVE)
    edges = np.array([0.0, *down, *(1 - down[down >= 2.0**-52]), *breaks, 1.0])
    edges = np.unique(edges[(edges >= 0) & (edges <= 1)])
    # Breaks that rounding has doubled.
    keep = np.diff(edges, append=2.0) > 4e-16 * edges
    keep[0] = True
    edges = edges[keep]
    edges[-1] = 1.0
    return edges


def fit(
    function: Callable[[Array], Array],
    edges: Array,
    good: Callable[[Array, Array, Array], NDArray[np.bool_]],
    degree: int,
) -> Pieces:
    """Fit polynomials through Chebyshev's nodes, and halve a cell until they are good.

    Args:
        function: Values (functions, n) at x (n,), smooth inside the cells of the first grid.
        edges: The first grid, (m,), rising.
        good: Whether fitted values (functions, n) at x (n,) are as good as the true ones: (n,).
        degree: Of the polynomials.
    """
    nodes, matrix = _nodes(degree)
    left, right = edges[:-1], edges[1:]
    done: list[tuple[Array, Array, NDArray[np.bool_]]] = []
    for halving in range(_MOST_HALVINGS + 1):
        center, half = (left + right) / 2, (right - left) / 2
        x = (center[:, None] + half[:, None] * nodes).clip(left[:, None], right[:, None])
        # (functions, n, nodes) -> (powers, functions, n)
        values = function(x.ravel())
        coefficients = np.einsum("pk,fnk->pfn", matrix, values.reshape(len(values), *x.shape))
        probes = (center[:, None] + half[:, None] * _PROBES).clip(left[:, None], right[:, None])
        powers = ((probes - center[:, None]) / half[:, None])[None] ** np.arange(degree + 1)[:, None, None]
        fitted = np.einsum("pfn,pnk->fnk", coefficients, powers).reshape(len(values), -1)
        true = function(probes.ravel())
        fits = good(probes.ravel(), fitted, true).reshape(probes.shape).all(1)
        last = (half <= _LEAST_WIDTH * center) | (halving == _MOST_HALVINGS)
        last |= halving > 3 and np.count_nonzero(~fits) > _MOST_CELLS
        end = fits | last
        done.append((left[end], coefficients[..., end], ~fits[end]))
        left, right, center = left[~end], right[~end], center[~end]
        if not len(left):
            break
        left, right = np.concatenate([left, center]), np.concatenate([center, right])
    starts = np.concatenate([part[0] for part in done])
    order = np.argsort(starts)
    return Pieces(
        np.append(starts[order], edges[-1]),
        np.ascontiguousarray(np.concatenate([part[1] for part in done], axis=2)[..., order]),
        np.concatenate([part[2] for part in done])[order],
    )


@lru_cache(maxsize=8)
def _nodes(degree: int) -> tuple[Array, Any]:
    """Chebyshev's nodes in [-1, 1], and the matrix from values there to powers."""
    nodes = np.cos(np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1))
    basis = np.polynomial.chebyshev.chebvander(nodes, degree)
    weights = np.full(degree + 1, 2.0 / (degree + 1))
    weights[0] /= 2
    to_chebyshev = weights[:, None] * basis.T
    to_powers = np.zeros((degree + 1, degree + 1))
    for k in range(degree + 1):
        powers = np.polynomial.chebyshev.cheb2poly(np.eye(degree + 1)[k])
        to_powers[: len(powers), k] = powers
    return nodes, to_powers @ to_chebyshev
