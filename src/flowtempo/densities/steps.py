"""Densities that are constant in steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from flowtempo.densities.base import Density
from flowtempo.errors import UserError
from flowtempo.forms import number
from flowtempo.interpolants import Discrete, Interpolant

# SpeeD's steps, where a path has none of its own, and its threshold on the slope of sigma per step of 1000.
_STEPS = 1000
_SLOPE = 1e-4 * _STEPS


class _Steps(Density):
    """A piecewise-constant pdf."""

    def _set(self, edges: Sequence[float], masses: Sequence[float]) -> None:
        weights = torch.tensor(masses, dtype=torch.float64)
        weights = weights / weights.sum()
        grid = torch.tensor(edges, dtype=torch.float64)
        cumulative = torch.nn.functional.pad(weights.cumsum(0), (1, 0))
        filled = weights.nonzero().flatten()
        cumulative[int(filled[-1]) + 1 :] = 1
        values = {
            "_grid": grid,
            "_weights": weights,
            "_heights": weights / grid.diff(),
            "_cumulative": cumulative,
            "low": float(grid[int(filled[0])]),
            "high": float(grid[int(filled[-1]) + 1]),
        }
        # Subclasses are frozen: these follow from what they hold.
        for key, value in values.items():
            object.__setattr__(self, key, value)

    _grid: Tensor
    _weights: Tensor
    _heights: Tensor
    _cumulative: Tensor

    def _index(self, t: Tensor) -> Tensor:
        index = torch.searchsorted(self._grid.to(t.device), t.detach().contiguous(), right=True) - 1
        return index.clamp(0, len(self._weights) - 1)

    def _pdf(self, t: Tensor) -> Tensor:
        return self._heights.to(t.device)[self._index(t)]

    def _cdf(self, t: Tensor) -> Tensor:
        index = self._index(t)
        start, height = self._grid.to(t.device)[index], self._heights.to(t.device)[index]
        return self._cumulative.to(t.device)[index] + (t - start) * height

    def _quantile(self, u: Tensor) -> Tensor:
        # The left side finds the first edge with cdf >= u, so an empty step is never entered.
        index = torch.searchsorted(self._cumulative.to(u.device), u.contiguous()) - 1
        index = index.clamp(0, len(self._weights) - 1)
        grid = self._grid.to(u.device)
        share = (u - self._cumulative.to(u.device)[index]) / self._weights.to(u.device)[index]
        start, end = grid[index], grid[index + 1]
        return torch.minimum(start + share.clamp(0, 1) * (end - start), end)

    def _mass(self, lo: float, hi: float) -> float:
        return math.fsum(
            height * max(0.0, min(hi, right) - max(lo, left))
            for (left, right), height in zip(
                itertools.pairwise(self._grid.tolist()), self._heights.tolist(), strict=True
            )
        )

    def gaps(self) -> list[tuple[float, float]]:
        """Intervals of [0, 1] with zero density, in order."""
        steps = zip(itertools.pairwise(self._grid.tolist()), self._weights.tolist(), strict=True)
        inside = [step for step, weight in steps if weight == 0 and self.low < step[0] < self.high]
        return sorted([*super().gaps(), *inside])

    def edges(self) -> list[float]:
        """Times in (0, 1) where the pdf is not smooth, in order."""
        return [t for t in self._grid.tolist() if 0 < t < 1]


@final
@dataclass(frozen=True)
class Piecewise(_Steps):
    """A constant density in each of some bands, from the mass of each.

    Attributes:
        bounds: Edges of the bands, strictly increasing in [0, 1], two or more.
        masses: Mass of each band, not negative, not all zero, one fewer than the edges; any scale.

    Raises:
        UserError: If they break one of these rules.
    """

    bounds: tuple[float, ...]
    masses: tuple[float, ...]

    def __init__(self, edges: Sequence[float], masses: Sequence[float]) -> None:
        object.__setattr__(self, "bounds", tuple(float(edge) for edge in edges))
        object.__setattr__(self, "masses", tuple(float(mass) for mass in masses))
        bands = list(itertools.pairwise(self.bounds))
        if not bands or not (
            self.bounds[0] >= 0 and self.bounds[-1] <= 1 and all(lo < hi for lo, hi in bands)
        ):
            raise UserError("piecewise: edges must be two or more, increasing strictly within [0, 1]")
        if len(self.masses) != len(bands):
            raise UserError(
                f"piecewise: {len(self.bounds)} edges need {len(bands)} masses, not {len(self.masses)}"
            )
        if not (all(0 <= mass < math.inf for mass in self.masses) and 0 < math.fsum(self.masses) < math.inf):
            raise UserError("piecewise: masses must be finite, not negative and not all zero")
        self._set(self.bounds, self.masses)

    def __str__(self) -> str:
        edges, masses = (", ".join(map(number, values)) for values in (self.bounds, self.masses))
        return f"piecewise([{edges}], [{masses}])"


@final
@dataclass(frozen=True)
class Speed(_Steps):
    """SpeeD's asymmetric sampling: `ratio` times as dense at the noise levels below a boundary as above.

    The steps below the boundary, the cleaner ones, stand at t > 1 - boundary / steps here. The boundary is
    given as `tau`, or found on a path (Wang et al., arXiv 2405.17403, equation 7 and the public code): the
    first step from the data at which sigma grows by less than 1e-4, in steps of a thousandth.

    Attributes:
        ratio: How much denser, finite, above 0 and not 1.
        interpolant: The path that says where the boundary is; None if `tau` does.
        tau: The boundary as a share of the steps, above 0 and below 1: 0.7 for step 700 of 1000.

    Raises:
        UserError: If a value is out of range, not exactly one of `interpolant` and `tau` is given, or the
            path's sigma never flattens that much (on the linear path it never does).
    """

    ratio: float
    interpolant: Interpolant | None = None
    tau: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.ratio < math.inf or self.ratio == 1:
            raise UserError(
                f"speed: ratio = {self.ratio} must be finite, above 0 and not 1, which is uniform"
            )
        if (self.interpolant is None) == (self.tau is None):
            raise UserError(
                "speed: give either a path, speed(5, ddpm_cosine), or the boundary, speed(5, tau=0.7)"
            )
        if self.tau is not None and not 0 < self.tau < 1:
            raise UserError(
                f"speed: tau = {self.tau} must be above 0 and below 1: it is a share of the steps, 0.7 for"
                " step 700 of 1000"
            )
        share = self.tau if self.interpolant is None else flat_from(self.interpolant)
        assert share is not None
        self._set([0.0, 1 - share, 1.0], [1 - share, share * self.ratio])

    def __str__(self) -> str:
        where = f"tau={number(self.tau)}" if self.tau is not None else str(self.interpolant)
        return f"speed({number(self.ratio)}, {where})"


def flat_from(path: Interpolant) -> float:
    """Share of the steps, from the data, from which on sigma grows by less than 1e-4 a thousandth.

    Returns:
        (i + 1) / steps for the first such step i: 0.642 for `ddpm_linear`, 0.959 for `ddpm_cosine`. A path
        without steps of its own is looked at in 1000.

    Raises:
        UserError: If there is none, or sigma is as flat at the data already.
    """
    steps = path.steps if isinstance(path, Discrete) else _STEPS
    t = torch.arange(steps - 1, -1, -1, dtype=torch.float64) / steps
    slope = np.gradient(path.sigma(t).numpy()) * steps
    flat = np.flatnonzero(slope < _SLOPE)
    if not len(flat) or not 0 < flat[0] < steps - 1:
        raise UserError(
            f"speed: sigma of the path {path} has no boundary after which it grows by less than 1e-4 in a"
            " thousandth of the steps: give it, speed(5, tau=0.7)"
        )
    return float(flat[0] + 1) / steps
