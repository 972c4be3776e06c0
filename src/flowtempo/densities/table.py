"""A measured density: piecewise linear on a grid, with its exact CDF and inverse."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from os import PathLike, fspath
from typing import final

import torch
from torch import Tensor

from flowtempo.densities.base import Density
from flowtempo.errors import UserError
from flowtempo.files import read_json

_FIRST_POINTS, _MOST_POINTS, _MOST_HALVINGS = 1025, 200_000, 40


@final
class Tabulated(Density):
    """A piecewise-linear pdf on a grid.

    The CDF is quadratic in each cell and is inverted by its root, so that draws follow exactly the pdf that
    importance weights are computed from (interpolating the inverse CDF linearly would draw from another).

    Args:
        t: Grid, (n,), n >= 2, strictly increasing in [0, 1].
        pdf: Values at the grid, (n,), finite, not negative, not all zero; any scale, they are normalised.
        path: File that the table stands in, for the text form.

    Attributes:
        grid: (n,) float64.
        values: (n,) float64, the normalised pdf at the grid.
        path: File that the table stands in, or None.

    Raises:
        UserError: If the table breaks one of these rules.
    """

    def __init__(
        self, t: Tensor | Sequence[float], pdf: Tensor | Sequence[float], *, path: str | None = None
    ) -> None:
        where = f"{path}: " if path else ""
        grid = torch.as_tensor(t, dtype=torch.float64).detach().cpu().clone()
        values = torch.as_tensor(pdf, dtype=torch.float64).detach().cpu().clone()
        if grid.ndim != 1 or grid.shape != values.shape or len(grid) < 2:
            raise UserError(
                f"{where}a table needs t and pdf as two lists of one length, 2 or more,"
                f" not shapes {tuple(grid.shape)} and {tuple(values.shape)}"
            )
        if not (torch.isfinite(grid).all() and (grid.diff() > 0).all() and grid[0] >= 0 and grid[-1] <= 1):
            raise UserError(f"{where}t must increase strictly within [0, 1]")
        if not (torch.isfinite(values).all() and (values >= 0).all() and (values > 0).any()):
            raise UserError(f"{where}pdf must be finite, not negative and not zero everywhere")
        values /= values.max()
        masses = grid.diff() * (values[1:] + values[:-1]) / 2
        cumulative = torch.cat([torch.zeros(1, dtype=torch.float64), masses.cumsum(0)])
        self.grid = grid
        self.values = values / cumulative[-1]
        self.path = path
        self._cumulative = cumulative / cumulative[-1]
        filled = torch.nonzero(masses > 0).flatten()
        self._first, self._last = int(filled[0]), int(filled[-1])
        self.low, self.high = float(grid[self._first]), float(grid[self._last + 1])

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Tabulated:
        """Read a JSON file that holds `{"table": {"t": [...], "pdf": [...]}}`, such as a saved design.

        Raises:
            UserError: If the file is missing, is not such a file, or its table breaks the class's rules.
        """
        name = fspath(path)
        content = read_json(name)
        try:
            t, pdf = content["table"]["t"], content["table"]["pdf"]
            t, pdf = [float(value) for value in t], [float(value) for value in pdf]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise UserError(
                f'{name}: holds no density table: expected {{"table": {{"t": [...], "pdf": [...]}}}}'
            ) from error
        return cls(t, pdf, path=name)

    @classmethod
    def from_function(
        cls,
        pdf: Callable[[Tensor], Tensor],
        low: float = 0.0,
        high: float = 1.0,
        *,
        tolerance: float = 1e-6,
    ) -> Tabulated:
        """Tabulate any function of t as a density.

        Cells are halved until the area between the function and the lines, estimated from the middle of each
        cell, is at most `tolerance` of the whole: about that is the total variation between what is drawn and
        the function. Structure that is narrower than a thousandth of the interval may be missed.

        Args:
            pdf: Values at times (n,) float64, not negative; any scale.
            low: Lower end, 0 <= low < high.
            high: Upper end, at most 1.
            tolerance: Above 0.

        Raises:
            UserError: If a number is out of range, a value is negative or not finite, all are zero, or the
                function is too rough for the tolerance (a pole, say).
        """
        if not 0 <= low < high <= 1:
            raise UserError(f"low = {low} and high = {high} must be 0 <= low < high <= 1")
        if not tolerance > 0:
            raise UserError(f"tolerance = {tolerance} must be above 0")

        def values_at(t: Tensor) -> Tensor:
            values = torch.as_tensor(pdf(t), dtype=torch.float64)
            if values.shape != t.shape:
                raise UserError(f"the function gave shape {tuple(values.shape)} for {len(t)} times")
            bad = ~(values.isfinite() & (values >= 0))
            if bool(bad.any()):
                raise UserError(
                    f"the function is {float(values[bad][0]):g} at t = {float(t[bad][0]):g}: a density is"
                    " finite and not negative; choose low and high inside"
                )
            return values

        t = torch.linspace(low, high, _FIRST_POINTS, dtype=torch.float64)
        values = values_at(t)
        if not bool(values.any()):
            raise UserError("the function is zero everywhere")
        for _ in range(_MOST_HALVINGS):
            middle = (t[1:] + t[:-1]) / 2
            between = values_at(middle)
            # A parabola through the three values lies 2/3 of the difference times the width off the line.
            area = (between - (values[1:] + values[:-1]) / 2).abs() * t.diff() * (2 / 3)
            apart = float(area.sum()) / float(torch.trapezoid(values, t))
            if apart <= tolerance:
                return cls(t, values)
            if len(t) > _MOST_POINTS:
                break
            halved = area > area.sum() / (2 * len(area))
            t, order = torch.cat([t, middle[halved]]).sort()
            values = torch.cat([values, between[halved]])[order]
        raise UserError(
            f"the function is too rough to be tabulated within {tolerance:g}: with {len(t)} points"
            f" {apart:.2g} of its area is still uncertain"
        )

    def gaps(self) -> list[tuple[float, float]]:
        """Intervals of [0, 1] with zero density, in order; empty cells inside the grid count."""
        empty = (self.values[1:] + self.values[:-1] == 0).nonzero().flatten().tolist()
        inside = [
            (float(self.grid[k]), float(self.grid[k + 1])) for k in empty if self._first < k < self._last
        ]
        return sorted(super().gaps() + inside)

    def edges(self) -> list[float]:
        """Times in (0, 1) where the pdf is not smooth, in order."""
        return [t for t in self.grid.tolist() if 0 < t < 1]

    def _cell(self, index: Tensor) -> tuple[Tensor, ...]:
        """Ends of the cells, the pdf there and the CDF there."""
        grid, values, cumulative = (
            table.to(index.device) for table in (self.grid, self.values, self._cumulative)
        )
        return (
            grid[index],
            grid[index + 1],
            values[index],
            values[index + 1],
            cumulative[index],
            cumulative[index + 1],
        )

    def _locate(self, t: Tensor) -> tuple[Tensor, ...]:
        """Place of t within its cell, 0 to 1, then what `_cell` returns."""
        index = torch.searchsorted(self.grid.to(t.device), t.contiguous(), right=True) - 1
        cell = self._cell(index.clamp(0, len(self.grid) - 2))
        return (t - cell[0]) / (cell[1] - cell[0]), *cell

    def _pdf(self, t: Tensor) -> Tensor:
        x, _, _, p0, p1, _, _ = self._locate(t)
        return (1 - x) * p0 + x * p1

    def _cdf(self, t: Tensor) -> Tensor:
        x, _, _, p0, p1, f0, f1 = self._locate(t)
        total = p0 + p1
        share = x * (p0 * (2 - x) + p1 * x) / torch.where(total > 0, total, 1.0)
        return f0 + (f1 - f0) * share

    def _quantile(self, u: Tensor) -> Tensor:
        # The left side finds the first grid point with cdf >= u, so an empty cell is never entered.
        index = torch.searchsorted(self._cumulative.to(u.device), u.contiguous()) - 1
        t0, t1, p0, p1, f0, f1 = self._cell(index.clamp(self._first, self._last))
        share = ((u - f0) / (f1 - f0)).clamp(0, 1)
        # p0 x + (p1 - p0) x^2 / 2 = share (p0 + p1) / 2 at the place x in the cell; this form of the root
        # adds only terms that are not negative.
        x = share * (p0 + p1) / (p0 + torch.hypot((1 - share).sqrt() * p0, share.sqrt() * p1))
        return torch.minimum(t0 + x * (t1 - t0), t1)

    def __str__(self) -> str:
        if self.path is not None:
            return f"table({self.path!r})"
        return f"table({len(self.grid)} points, sha256 {self._digest[:12]})"

    def __repr__(self) -> str:
        return f"Tabulated({len(self.grid)} points on [{self.low:g}, {self.high:g}])"

    @functools.cached_property
    def _digest(self) -> str:
        return hashlib.sha256(torch.stack([self.grid, self.values]).numpy().tobytes()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Tabulated)
            and torch.equal(self.grid, other.grid)
            and torch.equal(self.values, other.values)
        )

    def __hash__(self) -> int:
        return hash(self._digest)
