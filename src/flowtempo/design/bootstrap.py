"""What a profile might have been on other data: resampled curves, and the band of a design."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flowtempo.randomness import normal, uniform
from flowtempo.variance import VarianceProfile

LEVEL = 0.95
_BAND_POINTS = 257


@dataclass(frozen=True, eq=False)
class Band:
    """Where a density lies, at each t by itself, with a given confidence.

    It is about the sampling error of the profile that the density was made from, not about the width of a
    bracket.

    Attributes:
        t: (T,) float64, points of the density's table.
        low: (T,) float64, lower end of the interval for the pdf.
        high: (T,) float64, upper end.
        level: Confidence, 0 to 1.
    """

    t: Tensor
    low: Tensor
    high: Tensor
    level: float = LEVEL


def resampled(profile: VarianceProfile, count: int, seed: int) -> Tensor | None:
    """Curves as other data might have given them: the block bootstrap of the jackknife's pseudo-values.

    The pseudo-value of a block is B mean - (B - 1) (mean without it) (Tukey; Efron & Tibshirani, "An
    introduction to the bootstrap", chapter 11). B of them are drawn with replacement; the deviation of their
    mean moves the profile's own mean, so that the jackknife's guess of the bias stays out: which side of the
    truth an estimate is on is its `bound`. Deviations are scaled at each log-SNR to the profile's `stderr`,
    which may hold noise that is not in the blocks, and in each resample by sqrt((B - 1) / chi-square with
    B - 1 degrees of freedom), because the spread over B blocks is itself an estimate: intervals are then
    Student's.

    Args:
        profile: The curve; the number of blocks is taken from `without`.
        count: R, the number of resamples.
        seed: Seed. Profiles with the same number of blocks get the same choices.

    Returns:
        (R, L) float64, not negative; None if the profile has no `without` of two blocks or more.
    """
    if profile.without is None or len(profile.without) < 2:
        return None
    blocks = len(profile.without)
    pseudo = -(blocks - 1) * (profile.without - profile.without.mean(0))
    plain = pseudo.square().mean(0).div(blocks).sqrt()
    scale = torch.where(plain > 0, profile.stderr / plain, 0.0)
    drawn = (uniform(seed, "design blocks", 0, count * blocks) * blocks).long().reshape(count, blocks)
    spread = normal(seed, "design spread", 0, range(count), (blocks - 1,)).double().square().mean(1)
    # How often each block was drawn: (R, B) @ (B, L) needs no (R, B, L).
    times = torch.nn.functional.one_hot(drawn, blocks).sum(1).double()
    deviation = (times / blocks) @ (pseudo * scale) / spread.sqrt()[:, None]
    return (profile.mean + deviation).clamp(min=0)


def thinned(t: Tensor) -> Tensor:
    """Indices of about 257 points of a table, ends included, evenly by index: denser at both ends of t."""
    return torch.linspace(0, len(t) - 1, min(_BAND_POINTS, len(t)), dtype=torch.float64).round().long()


def band_of(t: Tensor, pdf: Tensor, level: float = LEVEL) -> Band:
    """Pointwise quantiles of resampled densities.

    Args:
        t: (T,).
        pdf: (R, T).
        level: Confidence.
    """
    count = len(pdf)
    # The k-th of R draws stands for the level k / (R + 1); torch's own rule is narrower.
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = torch.quantile(pdf, (((count + 1) * ends - 1) / (count - 1)).clamp(0, 1), dim=0)
    return Band(t, low, high, level)
