"""The member of a family nearest to a density, for trainers that take only a few numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flowtempo.densities import Density

_POINTS = 4096
_FIRST_STEP, _SMALLEST_STEP = 0.5, 1e-7
# Around a fit that is known already, for standard errors.
_NEAR_STEP, _COARSE_STEP = 0.1, 2e-4
# For families whose members are built one by one.
_FEW_POINTS = 512


@dataclass(frozen=True)
class LogitNormalFit:
    """A logit-normal and how far it is from the density that it stands for.

    Attributes:
        mean: Mean of logit(t), where t = 1 is data; trainers whose t = 1 is noise take -mean.
        std: Standard deviation of logit(t).
        distance: Wasserstein-1 distance in t: the area between the two CDFs, 0 to 1.
        mean_stderr: Standard error of `mean` from the sampling error of the profile; None if unknown.
        std_stderr: The same of `std`.
    """

    mean: float
    std: float
    distance: float
    mean_stderr: float | None = None
    std_stderr: float | None = None


def nearest_logit_normal(density: Density) -> LogitNormalFit:
    """The logit-normal with the least Wasserstein-1 distance in t to a density.

    In one dimension that distance is the area between the quantile functions, or between the CDFs
    (Villani, "Optimal transport, old and new", remark 2.19). It is minimised over (mean, log std) by a
    pattern search, which needs no derivative of the absolute value.
    """
    t = (torch.arange(_POINTS, dtype=torch.float64) + 0.5) / _POINTS
    middle = torch.logit(density.quantile(torch.tensor([0.16, 0.5, 0.84], dtype=torch.float64)), eps=1e-12)
    spread = max(float(middle[2] - middle[0]) / 2, 1e-3)
    start = torch.tensor([[float(middle[1]), math.log(spread)]], dtype=torch.float64)
    area = _area_between(t, torch.full_like(t, 1 / _POINTS), density.cdf(t)[None])
    found, least = _pattern_search(area, start, _FIRST_STEP, _SMALLEST_STEP)
    return LogitNormalFit(float(found[0, 0]), math.exp(float(found[0, 1])), float(least[0]))


def fit_errors(fit: LogitNormalFit, t: Tensor, cdf: Tensor) -> tuple[float, float]:
    """Standard errors of a fit's mean and std: their spread over resampled densities.

    Args:
        fit: The fit to the density itself, where the search starts.
        t: Grid in [0, 1], (T,).
        cdf: CDF of each resampled density there, (R, T).
    """
    # Trapezoid rule: each point stands for half of both cells beside it.
    cells = torch.nn.functional.pad(t.diff(), (1, 1))
    area = _area_between(t, (cells[1:] + cells[:-1]) / 2, cdf)
    start = torch.tensor([[fit.mean, math.log(fit.std)]], dtype=torch.float64).expand(len(cdf), 2)
    found, _ = _pattern_search(area, start, _NEAR_STEP, _COARSE_STEP)
    return float(found[:, 0].std()), float(found[:, 1].exp().std())


def nearest_member(
    density: Density, member: Callable[..., Density], start: Sequence[float], smallest: float = 1e-5
) -> list[float]:
    """The numbers of a family's member with the least Wasserstein-1 distance in t to a density.

    Args:
        density: The density to come near to.
        member: The family: any numbers, as many as `start` has, to a density. They should be on scales where
            1 is a large change.
        start: Where the search starts.
        smallest: How exactly the numbers are found.
    """
    t = (torch.arange(_FEW_POINTS, dtype=torch.float64) + 0.5) / _FEW_POINTS
    cdf = density.cdf(t)

    def area(points: Tensor) -> Tensor:
        rows = points.tolist()
        return torch.tensor(
            [[float((member(*point).cdf(t) - cdf).abs().mean()) for point in row] for row in rows],
            dtype=torch.float64,
        )

    found, _ = _pattern_search(area, torch.tensor([list(start)], dtype=torch.float64), _FIRST_STEP, smallest)
    numbers: list[float] = found[0].tolist()
    return numbers


def _area_between(t: Tensor, weight: Tensor, cdf: Tensor) -> Callable[[Tensor], Tensor]:
    """The area between given CDFs (R, T) and those of logit-normals (mean, log std), (R, n, 2) -> (R, n)."""
    logit = torch.logit(t)

    def area(points: Tensor) -> Tensor:
        z = (logit - points[..., :1]) / points[..., 1:].exp()
        apart = torch.special.ndtr(z).sub_(cdf[:, None]).abs_()
        return torch.matmul(apart, weight)

    return area


def _pattern_search(
    function: Callable[[Tensor], Tensor], start: Tensor, step: float, smallest: float
) -> tuple[Tensor, Tensor]:
    """Minimise R functions of D numbers: go to the best of the 3^D - 1 neighbours, else halve the step.

    Args:
        function: The values (R, n) at n points for each function, (R, n, D).
        start: (R, D).
        step: First step.
        smallest: The search ends below this step.

    Returns:
        Where the least values are, (R, D), and the values, (R,).
    """
    moves = [move for move in itertools.product((-1, 0, 1), repeat=start.shape[-1]) if any(move)]
    directions = torch.tensor(moves, dtype=torch.float64)
    best, least = start, function(start[:, None])[:, 0]
    steps = torch.full_like(least, step)
    while bool((steps > smallest).any()):
        neighbours = best[:, None] + steps[:, None, None] * directions
        value, index = function(neighbours).min(1)
        better = value < least
        best = torch.where(better[:, None], neighbours[torch.arange(len(best)), index], best)
        least = torch.where(better, value, least)
        steps = torch.where(better, steps, steps / 2)
    return best, least
