"""Two profiles against each other: ratio, difference and rank correlation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flowtempo.errors import UserError
from flowtempo.variance.combine import jackknifed, same_blocks
from flowtempo.variance.profile import POSTERIOR, VarianceProfile

# Curves differ beyond so many standard errors of the difference.
CLEAR = 4.0


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two curves of like quantities against each other.

    Attributes:
        log_snr: (L,), where both are known.
        ratio: First over second, (L,); NaN where the second is 0.
        ratio_stderr: Its standard error, to first order.
        difference: First minus second, (L,).
        difference_stderr: Its standard error.
        paired: Whether the errors were taken from the common blocks of the data. If not, they are those of
            independent curves, too large where the curves share data.
        rank_correlation: Spearman's, over the grid; NaN where it is not defined.
    """

    log_snr: Tensor
    ratio: Tensor
    ratio_stderr: Tensor
    difference: Tensor
    difference_stderr: Tensor
    paired: bool
    rank_correlation: float

    @property
    def z(self) -> Tensor:
        """The difference in its standard errors, (L,); 0 where both are 0."""
        return torch.where(self.difference == 0, 0.0, self.difference / self.difference_stderr)

    @property
    def largest(self) -> tuple[float, float]:
        """The log-SNR at which |z| is largest, and z there."""
        place = int(self.z.abs().argmax())
        return float(self.log_snr[place]), float(self.z[place])

    @property
    def differ(self) -> bool:
        """Whether they differ by more than 4 standard errors somewhere.

        The largest of 65 independent normal |z| passes 4 once in 240 times; neighbours on a grid are
        correlated, which makes it rarer, and errors from few blocks have heavier tails, which makes it less
        rare.
        """
        return abs(self.largest[1]) > CLEAR

    def summary(self) -> str:
        """The result in a sentence or two."""
        where, z = self.largest
        known = self.ratio[torch.isfinite(self.ratio)]
        text = (
            f"The first is {float(known.min()):.2g} to {float(known.max()):.2g} times the second. "
            if len(known)
            else ""
        )
        verdict = "they differ there" if self.differ else "no difference is shown"
        text += f"The largest difference is {abs(z):.1f} standard errors, at log-SNR {where:.2g}: {verdict}."
        if math.isfinite(self.rank_correlation):
            text += f" Rank correlation over the grid {self.rank_correlation:.2f}."
        return text.replace(" -", " −")


def compare(first: VarianceProfile, second: VarianceProfile) -> Comparison:
    """Ratio and difference of two profiles with their errors.

    On one grid, of the same data and with the same number of `without` rows (measured with one seed, so that
    the blocks are the same) the errors are paired: what both share cancels. Otherwise they are those of
    independent curves. On different grids the second is interpolated at the points of the first that lie
    inside its range.

    Args:
        first: A profile.
        second: One of the same quantity; posterior variances with and without the class are alike.

    Raises:
        UserError: If the quantities are not alike or the grids do not overlap.
    """
    if first.quantity != second.quantity and not {first.quantity, second.quantity} <= set(POSTERIOR):
        raise UserError(
            f"a {first.quantity} and a {second.quantity} have no common unit:"
            " compare their shapes by rank_correlation"
        )
    grid, left, right = on_one_grid(first, second)
    difference = left[0] - right[0]
    ratio = torch.where(right[0] > 0, left[0] / right[0], torch.nan)
    paired = torch.equal(first.log_snr, second.log_snr) and same_blocks([first, second])
    if paired:
        curves = jackknifed(first), jackknifed(second)
        difference_stderr = (curves[0] - curves[1]).stderr
        ratio_stderr = (curves[0] - curves[1] * ratio).stderr / right[0]
    else:
        difference_stderr = torch.hypot(left[1], right[1])
        ratio_stderr = torch.hypot(left[1], ratio * right[1]) / right[0]
    return Comparison(
        grid, ratio, ratio_stderr, difference, difference_stderr, paired, spearman(left[0], right[0])
    )


def rank_correlation(first: VarianceProfile, second: VarianceProfile) -> float:
    """Spearman's rank correlation of two profiles of any quantities, 1 if they rise and fall together.

    Over the first's grid points inside the range of the second, which is interpolated there.

    Returns:
        -1 to 1; NaN if one of them is constant.

    Raises:
        UserError: If the grids do not overlap.
    """
    _, left, right = on_one_grid(first, second)
    return spearman(left[0], right[0])


def on_one_grid(
    first: VarianceProfile, second: VarianceProfile
) -> tuple[Tensor, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The first's grid inside the second's range, and mean and standard error of both there.

    Raises:
        UserError: If the grids do not overlap.
    """
    grid = first.log_snr
    if torch.equal(grid, second.log_snr):
        return grid, (first.mean, first.stderr), (second.mean, second.stderr)
    inside = (grid >= second.log_snr[0]) & (grid <= second.log_snr[-1])
    if not bool(inside.any()):
        raise UserError("the profiles' log-SNR grids do not overlap")
    return grid[inside], (first.mean[inside], first.stderr[inside]), second.at(grid[inside])


def spearman(first: Tensor, second: Tensor) -> float:
    """Spearman's rank correlation of two (L,) tensors, -1 to 1; NaN if one of them is constant."""
    ranks = torch.stack([_ranks(first), _ranks(second)])
    ranks = ranks - ranks.mean(1, keepdim=True)
    power = ranks.square().sum(1).prod().sqrt()
    return float(ranks.prod(0).sum() / power) if power > 0 else math.nan


def _ranks(values: Tensor) -> Tensor:
    """Ranks from 1; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values.numpy(), return_inverse=True, return_counts=True)
    return torch.from_numpy((counts.cumsum() - (counts - 1) / 2)[inverse])
