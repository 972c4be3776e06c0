"""The logit-normal nearest to a density, for trainers that take only its two numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from flowtempo.densities import Density, LogitNormal

_POINTS = 4096
_SMALLEST_STEP = 1e-7


@dataclass(frozen=True)
class LogitNormalFit:
    """A logit-normal and how far it is from the density that it stands for.

    Attributes:
        mean: Mean of logit(t), where t = 1 is data; trainers whose t = 1 is noise take -mean.
        std: Standard deviation of logit(t).
        distance: Wasserstein-1 distance in t: the area between the two CDFs, 0 to 1.
    """

    mean: float
    std: float
    distance: float


def nearest_logit_normal(density: Density) -> LogitNormalFit:
    """The logit-normal with the least Wasserstein-1 distance in t to a density.

    In one dimension that distance is the area between the quantile functions, or between the CDFs
    (Villani, "Optimal transport, old and new", remark 2.19). It is minimised over (mean, log std) by a
    pattern search, which needs no derivative of the absolute value.
    """
    t = (torch.arange(_POINTS, dtype=torch.float64) + 0.5) / _POINTS
    cdf = density.cdf(t)

    def distance(mean: float, log_std: float) -> float:
        return float((LogitNormal(mean, math.exp(log_std)).cdf(t) - cdf).abs().mean())

    middle = torch.logit(density.quantile(torch.tensor([0.16, 0.5, 0.84], dtype=torch.float64)), eps=1e-12)
    spread = max(float(middle[2] - middle[0]) / 2, 1e-3)
    mean, log_std, least = _pattern_search(distance, float(middle[1]), math.log(spread))
    return LogitNormalFit(mean, math.exp(log_std), least)


def _pattern_search(
    function: Callable[[float, float], float], x: float, y: float
) -> tuple[float, float, float]:
    """Minimise over two numbers: go to the best of eight neighbours, halve the step where none is better."""
    least, step = function(x, y), 0.5
    while step > _SMALLEST_STEP:
        neighbours = [(x + i * step, y + j * step) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j]
        values = [function(*point) for point in neighbours]
        best = min(range(len(values)), key=values.__getitem__)
        if values[best] < least:
            least, (x, y) = values[best], neighbours[best]
        else:
            step /= 2
    return x, y, least
