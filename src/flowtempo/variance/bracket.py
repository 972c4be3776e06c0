"""The bracket: a lower and an upper edge for the posterior variance of the population."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from os import PathLike, fspath
from typing import Any

import torch
from torch import Tensor

from flowtempo.errors import UserError
from flowtempo.variance import document
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
from flowtempo.variance.points import Points, Source, check_count, check_log_snr, check_queries, prepare
from flowtempo.variance.profile import Bound, VarianceProfile
from flowtempo.variance.rounds import Rounds
from flowtempo.variance.share import Share

DEFAULT_TARGET = 0.01
"""Standard error at which measuring stops, relative to `gaussian_shape`."""

# A first look with so many queries decides where more are worth it; each round then doubles them.
_FIRST, _MOST = 64, 4096
_MOST_NOISES = 4096
# Pairs of a query and a noise that leave-one-out aims at when the data has fewer points.
_PAIRS = 1024
# Leave-one-out is given up where it is behind the linear bound by so many standard errors.
_BEHIND = 4.0


@dataclass(frozen=True, eq=False)
class Bracket:
    """Two profiles with the truth between them, up to their standard errors.

    Attributes:
        lower: Lower edge.
        upper: Upper edge.
        candidates: The estimates that the edges were made from.
        by_class: The same with the label known, for a class-conditional model; None if it was not measured.
    """

    lower: VarianceProfile
    upper: VarianceProfile
    candidates: tuple[VarianceProfile, ...] = ()
    by_class: Bracket | None = None

    def save(self, path: str | PathLike[str]) -> None:
        """Write the bracket as JSON (`profile.json` of a measurement).

        Raises:
            UserError: If the file cannot be written.
        """
        document.save(path, "bracket", self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return what `from_dict` reads; lists and plain numbers only."""
        return {
            "lower": self.lower.to_dict(),
            "upper": self.upper.to_dict(),
            "candidates": [candidate.to_dict() for candidate in self.candidates],
            "by_class": None if self.by_class is None else self.by_class.to_dict(),
        }

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Bracket:
        """Read what `save` wrote; every number comes back exactly.

        Raises:
            UserError: If the file is missing or not a sound bracket.
        """
        return cls.from_dict(document.load(path, "bracket"), fspath(path))

    @classmethod
    def from_dict(cls, content: object, where: str = "bracket") -> Bracket:
        """Build a bracket from `to_dict`'s result.

        Args:
            content: The result.
            where: What error messages start with.

        Raises:
            UserError: If a key is missing, unknown or has a wrong value.
        """
        reader = document.Reader(content, where)
        lower = VarianceProfile.from_dict(reader.value("lower"), f"{where}: lower")
        upper = VarianceProfile.from_dict(reader.value("upper"), f"{where}: upper")
        candidates, by_class = reader.value("candidates"), reader.value("by_class")
        if not isinstance(candidates, list):
            raise UserError(f"{where}: 'candidates' must be a list")
        reader.end()
        return cls(
            lower,
            upper,
            tuple(
                VarianceProfile.from_dict(item, f"{where}: candidate {index}")
                for index, item in enumerate(candidates)
            ),
            None if by_class is None else cls.from_dict(by_class, f"{where}: by_class"),
        )


def measure(
    x: Tensor | Source,
    *,
    log_snr: Tensor | None = None,
    noises: int = 16,
    target_stderr: float = DEFAULT_TARGET,
    queries: int | None = None,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
    data: dict[str, Any] | None = None,
    state: str | PathLike[str] | None = None,
    share: Share = Share(),  # noqa: B008 (immutable)
) -> Bracket:
    """Bracket the posterior variance of the population that the data was drawn from.

    The lower edge is the in-sample posterior variance (`in_sample`, tower form). The upper edge is the lesser
    of leave-one-out (`leave_one_out`) and the cross-fitted linear denoiser (`spectral`). Taking the least of
    two noisy curves would be optimistic, so the choice is cross-fitted at each log-SNR: made on the queries
    of one half of the data, evaluated on those of the other half, and averaged over both orders (`least`).

    The linear denoiser's error is known at every point, so it serves as a control variate for the two
    posterior estimates wherever the queries are a part of the points.

    Every point is a reference. Points become queries in rounds, twice as many each time, and at each log-SNR
    an edge gets no more once its standard error is below the target. Leave-one-out, whose cost is
    2 M d operations for each query and log-SNR, also stops where it cannot matter: where it is far behind the
    linear bound, and where the linear bound is within the target of the lower edge. The upper edge stays a
    bound, and is at most about the target above what all queries would give.

    Args:
        x: Data, (M, ...), M >= 8, or a `Source` of it; float32 is faster than float64.
        log_snr: Grid, (L,), strictly increasing; 65 points from -14 to 14 by default.
        noises: Noises for each block of queries in the in-sample estimate.
        target_stderr: Standard error to reach, relative to E|x1|^2/d where noise dominates and to
            exp(-log_snr) where the signal does (`gaussian_shape`), so that it holds for the target variance
            at every t. 0 uses all `queries` everywhere.
        queries: Most points that serve as queries; the lesser of all and 4,096 by default.
        seed: Seed of the noises, the halves and the choice of queries.
        progress: Called with the fraction done, 0 to 1; how much is left is an estimate that gets better.
        data: Description of the data to keep in the profiles.
        state: File in which finished work is kept, so that a later call with the same arguments goes on from
            there. It is left in place at the end.
        share: This process's part of the work. Any number of processes gives the same numbers.

    Returns:
        The bracket; `candidates` are in-sample, leave-one-out and spectral.

    Raises:
        UserError: If an argument has a wrong value, the data is not finite or does not vary, or `state` is
            not the file of such a measurement.
    """
    grid = check_log_snr(log_snr)
    points = prepare(x, seed=seed)
    if check_count("noises", noises) > _MOST_NOISES:
        raise UserError(f"noises = {noises}: {_MOST_NOISES:,} for each block of queries are more than enough")
    check_target(target_stderr)
    most = check_queries(min(points.count, _MOST) if queries is None else queries, points)
    pairs = max(1, min(noises, _PAIRS // most))
    report = progress or (lambda fraction: None)
    linear = spectral_errors(points, grid)
    report(0.05)
    rounds = Rounds(
        points, grid, noises=noises, pairs=pairs, seed=seed, target=target_stderr, state=state, share=share
    )
    edges = _Edges(points, linear, target_stderr * gaussian_shape(points.second_moment, grid))
    total, finished = 0, 0.0
    while total < most and bool((edges.wants_lower | edges.wants_upper).any()):
        # Everything is looked at where there is no target.
        total = most if target_stderr == 0 else min(most, max(_FIRST, 2 * points.blocks, 2 * total))
        low, high = finished, edges.fraction(total, most)
        rounds.run(total, edges.wants_lower, edges.wants_upper, _between(low, high, report))
        edges.update(rounds.inside.estimate, rounds.outside.estimate)
        finished = max(finished, edges.fraction(total, most))
    report(1.0)
    return _bracket(points, grid, edges, noises, pairs, seed, data)


def check_target(target_stderr: float) -> None:
    """Raise UserError if it is no relative standard error."""
    if not 0 <= target_stderr < 1:
        raise UserError(f"target_stderr = {target_stderr} is relative to E|x1|^2/d: use 0 to below 1")


def gaussian_shape(variance: float, log_snr: Tensor) -> Tensor:
    """Posterior variance of an isotropic Gaussian: its variance under noise, exp(-log_snr) under signal."""
    return variance / (1 + variance * log_snr.exp())


class _Edges:
    """Both edges as they are known so far, and where they are not known well enough.

    Args:
        points: The points.
        linear: The linear denoisers' errors.
        target: (L,) standard errors to reach.
    """

    def __init__(self, points: Points, linear: list[Estimate], target: Tensor) -> None:
        grid = len(target)
        self.points, self.linear, self.target = points, linear, target
        self.spectra = [by_fold(points, estimate) for estimate in linear]
        self.spectral = average(points, least(self.spectra))
        self.wants_lower, self.wants_upper = torch.ones(2, grid, dtype=torch.bool)
        self.unused = torch.zeros(grid, dtype=torch.bool)
        self.upper: Jackknifed | None = None

    def update(self, inside: Estimate, outside: Estimate) -> None:
        """Take in what the queries so far say."""
        points, target = self.points, self.target
        self.inside, self.outside = inside, outside
        self.lower = average(points, _controlled(points, inside, self.linear[0]))
        self.posterior = _controlled(points, outside, self.linear[0])
        self.held_out = average(points, self.posterior)
        if bool((target > 0).all()):
            difference = self.held_out.mean - self.spectral.mean
            error = (self.held_out.stderr.square() + self.spectral.stderr.square()).sqrt()
            close = self.spectral.mean - self.lower.mean < target
            # The decision is not taken back: leave-one-out gets no more queries there.
            self.unused |= self.wants_upper & ((difference > _BEHIND * error) | close)
        self.upper = average(points, least([_without(self.posterior, self.unused), *self.spectra]))
        self.wants_lower &= self.lower.stderr > target
        self.wants_upper &= ~self.unused & (self.upper.stderr > target)

    def fraction(self, total: int, most: int) -> float:
        """How much of the work is done after `total` queries, a guess."""
        if self.upper is None:
            return 1.0 if total >= most else 0.3
        errors = (self.upper.stderr / self.target)[self.wants_upper]
        needed = (total * errors.square()).clamp(max=most).clamp(min=total)
        done = float(self.outside.sizes.sum())
        return done / (done + float((needed - total).sum()))


def _bracket(
    points: Points,
    grid: Tensor,
    edges: _Edges,
    noises: int,
    pairs: int,
    seed: int,
    data: dict[str, Any] | None,
) -> Bracket:
    def profile(curve: Jackknifed, method: str, bound: Bound, **counts: int) -> VarianceProfile:
        own = edges.inside.own if bound == "lower" else None
        return make_profile(points, curve, grid, method, bound, {**counts, "seed": seed}, data, own)

    def asked(estimate: Estimate) -> dict[str, int]:
        sizes = estimate.sizes.sum(0)
        return {
            "queries": int(sizes.max()),
            "fewest_queries": int(sizes.min()),
            "evaluations": int(sizes.sum()),
        }

    lower = profile(edges.lower, "in_sample_tower", "lower", **asked(edges.inside), noises=noises)
    outside = {**asked(edges.outside), "noises": pairs}
    candidates = (
        lower,
        profile(edges.held_out, "leave_one_out", "upper", **outside),
        profile(edges.spectral, "spectral", "upper", queries=points.count),
    )
    assert edges.upper is not None
    upper = profile(edges.upper, "least of leave_one_out, spectral", "upper", **outside)
    return Bracket(lower, upper, candidates)


def _between(low: float, high: float, report: Callable[[float], None]) -> Callable[[float], None]:
    return lambda done: report(0.05 + 0.95 * (low + (high - low) * done))


def _without(folds: Folds, where: Tensor) -> Folds:
    """A candidate that is never the least at some log-SNRs."""
    first, second = (replace(fold, mean=fold.mean.masked_fill(where, torch.inf)) for fold in folds)
    return first, second


def _controlled(points: Points, estimate: Estimate, control: Estimate) -> Folds:
    """Means of an estimate over the queries of each fold, with a control that is known at every point.

    The mean of value - b (control - its mean over the fold) has the expectation of the value for any b that
    does not depend on the fold; the least-squares b is taken from the other fold's queries.
    """
    there = ~estimate.value.isnan()
    value = estimate.value.nan_to_num(0.0)
    at_queries = control.value[estimate.query].masked_fill(~there, 0.0)
    second = points.block_of[estimate.query] >= points.blocks // 2
    results = []
    for half in (0, 1):
        fitted = there & (second == (half == 0))[:, None]
        mean = (at_queries * fitted).sum(0) / fitted.sum(0)
        deviation = (at_queries - mean) * fitted
        power = deviation.square().sum(0)
        slope = torch.where(power > 0, (deviation * value).sum(0) / power, 0.0)
        blocks = fold_blocks(points, half)
        sampled = pointwise(points, at_queries.masked_fill(~there, torch.nan), estimate.query)
        correction = sampled.over(points, blocks) - control.over(points, blocks)
        results.append(estimate.over(points, blocks) - correction * slope)
    return results[0], results[1]
