"""A trained denoiser's error as a further upper edge of a bracket, and whether a bracket is in order."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from flowtempo.errors import UserError
from flowtempo.variance.bracket import Bracket
from flowtempo.variance.combine import jackknifed, same_blocks
from flowtempo.variance.compare import CLEAR, on_one_grid
from flowtempo.variance.profile import POSTERIOR, VarianceProfile

# A denoiser must be lower by so many standard errors of the difference before it is believed.
_MARGIN = 2.0
# Second moments of one kind of data differ by less than this factor, whichever part of it was taken.
_SAME_UNITS = 1.5


def with_denoiser(bracket: Bracket, denoiser: VarianceProfile) -> Bracket:
    """Let a trained denoiser's error on held-out data lower the upper edge of a bracket.

    No denoiser is better than the best, so the error is an upper bound, if the network has not been trained
    on these points: comparing `denoiser.data` with the run's training data is the caller's duty. The least of
    two noisy curves would be too low. So the denoiser is taken only where it is lower by more than 2 standard
    errors of the difference: with normal errors the edge's expectation is then at most
    phi(2) = 0.054 of these standard errors below the least of the two expectations, and 0.061 or 0.076 with
    errors estimated from 32 or 10 blocks: (1 + 4/n)^(-n/2) / sqrt(2 pi) for n degrees of freedom.

    Args:
        bracket: A bracket.
        denoiser: Error per dimension of a model's prediction of the data, bound "upper". Known labels make it
            a `class_posterior_variance`, which enters `bracket.by_class`. On another grid it is interpolated,
            and not used outside its range.

    Returns:
        The bracket with the new edge; `candidates` gain the denoiser.

    Raises:
        UserError: If the profile is no upper bound of a posterior variance of such data, or the bracket has
            no class-conditional part to put it in.
    """
    if denoiser.quantity not in POSTERIOR or denoiser.bound != "upper":
        raise UserError(
            f"a denoiser's error is an upper bound of a posterior variance, not the {denoiser.bound} of a"
            f" {denoiser.quantity}"
        )
    if denoiser.quantity == "class_posterior_variance" != bracket.upper.quantity:
        if bracket.by_class is None:
            raise UserError(
                "the denoiser was given labels, so it bounds the class-conditional variance only, and this"
                " bracket has none: measure with labels"
            )
        return replace(bracket, by_class=with_denoiser(bracket.by_class, denoiser))
    upper = bracket.upper
    if denoiser.dim != upper.dim:
        raise UserError(f"the denoiser's data has {denoiser.dim:,} dimensions, the bracket's {upper.dim:,}")
    units = denoiser.second_moment / upper.second_moment
    if not 1 / _SAME_UNITS < units < _SAME_UNITS:
        raise UserError(
            f"E|x1|^2/d is {denoiser.second_moment:.3g} where the denoiser was measured and"
            f" {upper.second_moment:.3g} in the bracket: scale the data alike"
        )
    inside = (upper.log_snr >= denoiser.log_snr[0]) & (upper.log_snr <= denoiser.log_snr[-1])
    paired = same_blocks([upper, denoiser])
    other = denoiser.resampled(upper.log_snr)
    if paired:
        error = (jackknifed(upper) - jackknifed(other)).stderr
    else:
        error = torch.hypot(upper.stderr, other.stderr)
    lower = inside & (upper.mean - other.mean > _MARGIN * error)
    without = None
    if upper.without is not None and other.without is not None:
        rows = (upper.without, other.without) if paired else _independent(upper.without, other.without)
        without = torch.where(lower, rows[1], rows[0])
    method = upper.method if upper.method.startswith("least of ") else f"least of {upper.method}"
    edge = replace(
        upper,
        method=f"{method}, {denoiser.method}",
        mean=torch.where(lower, other.mean, upper.mean),
        stderr=torch.where(lower, other.stderr, upper.stderr),
        ess=None,
        without=without,
    )
    return replace(bracket, upper=edge, candidates=(*bracket.candidates, denoiser))


def check_order(bracket: Bracket) -> list[float]:
    """The log-SNRs at which the lower edge is above the upper one by more than 4 standard errors."""
    grid, lower, upper = on_one_grid(bracket.lower, bracket.upper)
    inverted = lower[0] - upper[0] > CLEAR * torch.hypot(lower[1], upper[1])
    return [float(value) for value in grid[inverted]]


def _independent(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of two independent curves as rows of a common jackknife: where one varies the other rests.

    Over B1 + B2 rows the jackknife's factor (B - 1) / B is another, so the deviations are scaled for the
    variances to stay what they are.
    """
    count = len(first) + len(second)

    def spread(rows: Tensor, before: int) -> Tensor:
        factor = math.sqrt((len(rows) - 1) / len(rows) * count / (count - 1))
        whole = rows.mean(0).expand(count, -1).clone()
        whole[before : before + len(rows)] += factor * (rows - rows.mean(0))
        return whole

    return spread(first, 0), spread(second, len(first))
