"""The bracket: a lower and an upper edge for the posterior variance of the population."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

import torch
from torch import Tensor

from flowtempo.errors import UserError
from flowtempo.variance import document
from flowtempo.variance.direct import direct
from flowtempo.variance.estimate import (
    Estimate,
    Folds,
    Jackknifed,
    average,
    by_fold,
    fold_blocks,
    least,
    make_profile,
    pointwise,
)
from flowtempo.variance.linear import spectral_errors
from flowtempo.variance.points import Points, check_count, check_log_snr, check_queries, prepare
from flowtempo.variance.profile import Bound, VarianceProfile
from flowtempo.variance.tower import tower

# Default queries: what these many floating-point operations allow, within bounds.
_WORK = 6e12
_FEWEST, _MOST = 512, 4096
# Pairs of a query and a noise that leave-one-out aims at when the data has fewer points.
_PAIRS = 1024


@dataclass(frozen=True, eq=False)
class Bracket:
    """Two profiles with the truth between them, up to their standard errors.

    Attributes:
        lower: Lower edge.
        upper: Upper edge.
        candidates: The estimates that the edges were made from.
    """

    lower: VarianceProfile
    upper: VarianceProfile
    candidates: tuple[VarianceProfile, ...] = ()

    def save(self, path: str | PathLike[str]) -> None:
        """Write the bracket as JSON (`profile.json` of a measurement).

        Raises:
            UserError: If the file cannot be written.
        """
        content = {
            "lower": self.lower.to_dict(),
            "upper": self.upper.to_dict(),
            "candidates": [candidate.to_dict() for candidate in self.candidates],
        }
        document.save(path, "bracket", content)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Bracket:
        """Read what `save` wrote; every number comes back exactly.

        Raises:
            UserError: If the file is missing or not a sound bracket.
        """
        name = fspath(path)
        reader = document.Reader(document.load(path, "bracket"), name)
        lower = VarianceProfile.from_dict(reader.value("lower"), where=f"{name}: lower")
        upper = VarianceProfile.from_dict(reader.value("upper"), where=f"{name}: upper")
        candidates = reader.value("candidates")
        if not isinstance(candidates, list):
            raise UserError(f"{name}: 'candidates' must be a list")
        reader.end()
        return cls(
            lower,
            upper,
            tuple(
                VarianceProfile.from_dict(item, where=f"{name}: candidate {index}")
                for index, item in enumerate(candidates)
            ),
        )


def measure(
    x: Tensor,
    *,
    log_snr: Tensor | None = None,
    noises: int = 16,
    queries: int | None = None,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
    data: dict[str, Any] | None = None,
) -> Bracket:
    """Bracket the posterior variance of the population that the data was drawn from.

    The lower edge is the in-sample posterior variance (`in_sample`, tower form). The upper edge is the lesser
    of leave-one-out (`leave_one_out`) and the cross-fitted linear denoiser (`spectral`). Taking the least of
    two noisy curves would be optimistic, so the choice is cross-fitted at each log-SNR: made on the queries
    of one half of the data, evaluated on those of the other half, and averaged over both orders (`least`).

    The linear denoiser's error is known at every point, so it serves as a control variate for the two
    posterior estimates wherever the queries are a part of the points.

    Args:
        x: Data, (M, ...), M >= 8; float32 is faster than float64.
        log_snr: Grid, (L,), strictly increasing; 65 points from -14 to 14 by default.
        noises: Noises for each block of queries in the in-sample estimate.
        queries: How many points serve as queries; by default as many as about a minute on two cores allows,
            512 at least. Every point is a reference.
        seed: Seed of the noises, the halves and the choice of queries.
        progress: Called with the fraction done, 0 to 1.
        data: Description of the data to keep in the profiles.

    Returns:
        The bracket; `candidates` are in-sample, leave-one-out and spectral.

    Raises:
        UserError: If an argument has a wrong value, or the data is not finite or does not vary.
    """
    grid = check_log_snr(log_snr)
    points = prepare(x, seed=seed)
    check_count("noises", noises)
    queries = check_queries(_affordable(points, len(grid)) if queries is None else queries, points)
    pairs = max(1, min(noises, _PAIRS // queries))
    report = progress or (lambda fraction: None)

    linear = spectral_errors(points, grid)
    report(0.05)
    inside = tower(points, queries, grid, noises, seed=seed, progress=lambda done: report(0.05 + 0.25 * done))
    outside = direct(
        points,
        queries,
        grid,
        pairs,
        form="leave_one_out",
        seed=seed,
        progress=lambda done: report(0.3 + 0.7 * done),
    )

    lower = average(points, _controlled(points, inside, linear[0]))
    posterior = _controlled(points, outside, linear[0])
    spectra = [by_fold(points, estimate) for estimate in linear]
    upper = average(points, least([posterior, *spectra]))

    def profile(curve: Jackknifed, method: str, bound: Bound, counts: dict[str, int]) -> VarianceProfile:
        return make_profile(points, curve, grid, method, bound, counts, data)

    candidates = (
        profile(lower, "in_sample_tower", "lower", {"queries": queries, "noises": noises}),
        profile(average(points, posterior), "leave_one_out", "upper", {"queries": queries, "noises": pairs}),
        profile(average(points, least(spectra)), "spectral", "upper", {"queries": points.count}),
    )
    return Bracket(
        candidates[0],
        profile(upper, "least of leave_one_out, spectral", "upper", {"queries": queries, "noises": pairs}),
        candidates,
    )


def _affordable(points: Points, grid: int) -> int:
    # A query costs two products with the data's dimension and some passes over the references.
    each = grid * points.count * (2.0 * points.dim + 300)
    return min(points.count, max(_FEWEST, min(_MOST, int(_WORK / each))))


def _controlled(points: Points, estimate: Estimate, control: Estimate) -> Folds:
    """Means of an estimate over the queries of each fold, with a control that is known at every point.

    The mean of value - b (control - its mean over the fold) has the expectation of the value for any b that
    does not depend on the fold; the least-squares b is taken from the other fold's queries.
    """
    at_queries = control.value[estimate.query]
    second = points.block_of[estimate.query] >= points.blocks // 2
    results = []
    for half in (0, 1):
        fitted = second == (half == 0)
        deviation = at_queries[fitted] - at_queries[fitted].mean(0)
        power = deviation.square().sum(0)
        slope = torch.where(power > 0, (deviation * estimate.value[fitted]).sum(0) / power, 0.0)
        blocks = fold_blocks(points, half)
        sampled = pointwise(points, at_queries, estimate.query).over(points, blocks)
        results.append(estimate.over(points, blocks) - (sampled - control.over(points, blocks)) * slope)
    return results[0], results[1]
