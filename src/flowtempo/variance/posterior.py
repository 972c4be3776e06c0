"""Posterior variance by Monte Carlo over data and noise, in-sample and leave-one-out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import torch
from torch import Tensor

from flowtempo.errors import UserError
from flowtempo.variance.estimate import everywhere, make_profile
from flowtempo.variance.factorised import Form, in_sample_estimate
from flowtempo.variance.held_out import leave_one_out_estimate
from flowtempo.variance.points import Points, check_count, check_log_snr, check_queries, prepare
from flowtempo.variance.profile import VarianceProfile

Progress = Callable[[float], None]


def in_sample(
    x: Tensor,
    log_snr: Tensor | None = None,
    noises: int | Tensor = 64,
    *,
    form: Form = "tower",
    queries: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    data: dict[str, Any] | None = None,
) -> VarianceProfile:
    """Estimate the posterior variance of the data set itself: a lower bound for its population.

    G = E|x1|^2/d - S with S = E|E[x1 | z]|^2/d, z = x_i + e/r, r = exp(log_snr / 2), the posterior taken over
    the points as equally likely atoms (Shaul et al., arXiv 2306.06626, equation 23). The MMSE is concave in
    the prior, so the expectation lies below the population's MMSE: far below once r|x_i - x_j| exceeds about
    sqrt(8 log M), where the posterior collapses on the own point and G to 0.

    "quadratic" is the published expression, S = mean over i and l of |D(x_i + e_l/r)|^2/d. "tower" replaces
    |D|^2 by <x_i, D>, which has the same expectation over all points, and factorises: no vector D is formed,
    and two products of queries, points and noises remain at each log-SNR. Both take moments about the zero
    of the data, as published; their noise is less when the mean is subtracted from the data beforehand.

    Args:
        x: Data, (M, ...), M >= 8.
        log_snr: Grid, (L,), strictly increasing; 65 points from -14 to 14 by default.
        noises: As a number, that many fresh noises for each block of queries. As a tensor, (K, d) or
            (K, *x.shape[1:]), exactly these noises for every query, as published; K >= 2.
        form: Which of the two.
        queries: How many points serve as queries, all by default; every point is a reference.
        seed: Seed of the noises and of the choice of queries.
        progress: Called with the fraction done.
        data: Description of the data to keep in the profile.

    Returns:
        The profile, bound "lower". Standard errors are for the estimator's mean at this M, over the choice
        of the data, the queries and the noises: the jackknife over blocks of points (see `Jackknifed`) plus
        the variance over shared noises.

    Raises:
        UserError: If an argument has a wrong shape or value, or the data is not finite or does not vary.
    """
    if form not in get_args(Form):
        raise UserError(f"unknown form {form!r}: use one of {', '.join(get_args(Form))}")
    grid = check_log_snr(log_snr)
    points = prepare(x, seed=seed, centre=False)
    queries = check_queries(queries, points)
    noise = _check_noises(noises, points)
    estimate = in_sample_estimate(points, queries, grid, noise, form=form, seed=seed, progress=progress)
    counts = {"queries": queries, "noises": noises if isinstance(noises, int) else len(noises)}
    result = estimate.over(points, everywhere(points))
    return make_profile(points, result, grid, f"in_sample_{form}", "lower", counts, data, estimate.own)


def leave_one_out(
    x: Tensor,
    log_snr: Tensor | None = None,
    noises: int | Tensor = 1,
    *,
    queries: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    data: dict[str, Any] | None = None,
) -> VarianceProfile:
    """Estimate the error of the posterior mean over all points but the own one: an upper bound.

    The mean over i and noises of |x_i - D_-i(z)|^2/d, with D_-i the posterior mean over the points other than
    x_i (and other than exact copies of it). D_-i is a denoiser that does not know x_i, so the expectation is
    at least the population's MMSE. The tower identity does not hold for it: the error is formed as it stands.

    Args:
        x: Data, (M, ...), M >= 8.
        log_snr: Grid, (L,), strictly increasing; 65 points from -14 to 14 by default.
        noises: Fresh noises for each query, or a tensor of noises that all queries share, as in `in_sample`.
        queries: How many points serve as queries, all by default; every point is a reference.
        seed: Seed of the noises and of the choice of queries.
        progress: Called with the fraction done.
        data: Description of the data to keep in the profile.

    Returns:
        The profile, bound "upper"; standard errors as in `in_sample`.

    Raises:
        UserError: If an argument has a wrong shape or value, or the data is not finite or does not vary.
    """
    grid = check_log_snr(log_snr)
    points = prepare(x, seed=seed)
    queries = check_queries(queries, points)
    noise = _check_noises(noises, points)
    estimate = leave_one_out_estimate(points, queries, grid, noise, seed=seed, progress=progress)
    counts = {"queries": queries, "noises": noises if isinstance(noises, int) else len(noises)}
    result = estimate.over(points, everywhere(points))
    return make_profile(points, result, grid, "leave_one_out", "upper", counts, data)


def _check_noises(noises: int | Tensor, points: Points) -> int | Tensor:
    if not isinstance(noises, Tensor):
        return check_count("noises", noises)
    if noises.ndim < 2 or len(noises) < 2 or noises[0].numel() != points.dim:
        raise UserError(
            f"noises have shape {tuple(noises.shape)}: shared noises are (K, {points.dim}) with K >= 2, since"
            " their own error is estimated from their spread"
        )
    if not bool(torch.isfinite(noises).all()):
        raise UserError("noises hold NaN or infinite values")
    return noises.detach().cpu().double().reshape(len(noises), -1)
