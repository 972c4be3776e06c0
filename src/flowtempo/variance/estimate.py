"""Estimates that are a mean over query points, with the jackknife over blocks of points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flowtempo.variance.points import Points
from flowtempo.variance.profile import Bound, VarianceProfile


@dataclass(frozen=True)
class Part:
    """What some queries contribute to an estimate.

    Attributes:
        value: (n, L) float64, one value for each query and log-SNR.
        deleted: (B, B, L) float64. [g, b] is the sum over the queries of block g of their value when the
            points of block b no longer serve as references; [g, g] is the plain sum.
        own: (B, L) float64, the posterior weight of the noised point itself, summed over the queries of each
            block; None for estimates without it.
        by_noise: (K, L) float64, sums over the queries for each noise that they share; None if they do not.
    """

    value: Tensor
    deleted: Tensor
    own: Tensor | None = None
    by_noise: Tensor | None = None


@dataclass(frozen=True)
class Estimate:
    """A curve estimated as the mean over query points of a value that also depends on reference points.

    Attributes:
        value: (n, L) float64, one value for each query and log-SNR; NaN where a query was not evaluated.
        query: (n,) index of each query among the points.
        deleted: (B, B, L) float64, as in `Part`.
        sizes: (B, L) float64, the queries of each block that were evaluated.
        noise_variance: (L,) variance of the mean that comes from noises which all queries share.
        own: (L,) mean posterior weight of the noised point itself, or None.
    """

    value: Tensor
    query: Tensor
    deleted: Tensor
    sizes: Tensor
    noise_variance: Tensor
    own: Tensor | None = None

    def over(self, points: Points, blocks: Tensor) -> Jackknifed:
        """The mean over the queries in some blocks, and the means that are left when a block is deleted.

        Args:
            points: The points that the estimate was made from.
            blocks: (B,) bool.
        """
        sizes = self.sizes * blocks[:, None]
        sums = self.deleted * blocks[:, None, None]
        plain = torch.diagonal(sums).T
        left = sums.sum(0) - plain
        return Jackknifed(plain.sum(0) / sizes.sum(0), left / (sizes.sum(0) - sizes), self.noise_variance)


class Tally:
    """An estimate that grows by parts.

    Args:
        points: The points.
        grid: L, the number of log-SNRs.
    """

    def __init__(self, points: Points, grid: int) -> None:
        self.points, self.grid = points, grid
        self._values: list[Tensor] = []
        self._queries: list[Tensor] = []
        self._deleted = torch.zeros(points.blocks, points.blocks, grid, dtype=torch.float64)
        self._sizes = torch.zeros(points.blocks, grid, dtype=torch.float64)
        self._own = torch.zeros(points.blocks, grid, dtype=torch.float64)
        self._by_noise: Tensor | float = 0.0
        self._knows_own = False

    def add(self, query: Tensor, part: Part, active: Tensor | None = None) -> None:
        """Add the queries of one part.

        Args:
            query: (n,) indices.
            part: Their values and sums over the active log-SNRs.
            active: (L,) bool, which log-SNRs were evaluated; all for None.
        """
        active = torch.ones(self.grid, dtype=torch.bool) if active is None else active
        value = torch.full((len(query), self.grid), torch.nan, dtype=torch.float64)
        value[:, active] = part.value
        self._values.append(value)
        self._queries.append(query)
        self._deleted[..., active] += part.deleted
        counts = torch.bincount(self.points.block_of[query], minlength=self.points.blocks)
        self._sizes[:, active] += counts[:, None].double()
        if part.own is not None:
            self._own[:, active] += part.own
            self._knows_own = True
        if part.by_noise is not None:
            self._by_noise = self._by_noise + part.by_noise

    @property
    def estimate(self) -> Estimate:
        """What the parts amount to."""
        noise_variance = torch.zeros(self.grid, dtype=torch.float64)
        if isinstance(self._by_noise, Tensor):
            means = self._by_noise / self._sizes.sum(0)
            noise_variance = means.var(0) / len(means)
        own = self._own.sum(0) / self._sizes.sum(0) if self._knows_own else None
        return Estimate(
            torch.cat(self._values), torch.cat(self._queries), self._deleted, self._sizes, noise_variance, own
        )


@dataclass(frozen=True)
class Jackknifed:
    """A curve and what it becomes when one block of points is deleted.

    Points are independent and serve both as queries and as references, so neither the spread over queries
    nor that over references alone is the error of the mean. Deleting a block takes its points out of both
    roles (and out go the noises that only they used): the delete-a-group jackknife (Efron & Stein, Annals
    of Statistics 9, 1981), with B - 1 degrees of freedom.

    Attributes:
        mean: (L,).
        without: (B, L), the mean without each block.
        noise_variance: (L,), added to the jackknife's variance.
    """

    mean: Tensor
    without: Tensor
    noise_variance: Tensor

    @property
    def stderr(self) -> Tensor:
        """Standard error of `mean`, (L,)."""
        blocks = len(self.without)
        spread = self.without - self.without.mean(0)
        return ((blocks - 1) / blocks * spread.square().sum(0) + self.noise_variance).sqrt()

    def __add__(self, other: Jackknifed) -> Jackknifed:
        return Jackknifed(
            self.mean + other.mean, self.without + other.without, self.noise_variance + other.noise_variance
        )

    def __mul__(self, factor: Tensor | float) -> Jackknifed:
        square = factor * factor
        return Jackknifed(self.mean * factor, self.without * factor, self.noise_variance * square)

    def __sub__(self, other: Jackknifed) -> Jackknifed:
        return self + other * -1.0


Folds = tuple[Jackknifed, Jackknifed]


def pointwise(points: Points, value: Tensor, query: Tensor) -> Estimate:
    """Wrap values (n, L) that do not depend on the references; NaN where a query was not evaluated."""
    there = ~value.isnan()
    sums, sizes = torch.zeros(2, points.blocks, value.shape[1], dtype=torch.float64)
    sums.index_add_(0, points.block_of[query], value.nan_to_num(0.0))
    sizes.index_add_(0, points.block_of[query], there.double())
    deleted = sums[:, None].expand(-1, points.blocks, -1)
    return Estimate(value, query, deleted, sizes, torch.zeros(value.shape[1], dtype=torch.float64))


def everywhere(points: Points) -> Tensor:
    """All blocks, (B,) bool."""
    return torch.ones(points.blocks, dtype=torch.bool)


def fold_blocks(points: Points, half: int) -> Tensor:
    """The blocks of fold 0 or 1, (B,) bool."""
    first = torch.arange(points.blocks) < points.blocks // 2
    return first if half == 0 else ~first


def by_fold(points: Points, estimate: Estimate) -> Folds:
    """The means over the queries of each fold."""
    return estimate.over(points, fold_blocks(points, 0)), estimate.over(points, fold_blocks(points, 1))


def average(points: Points, folds: Folds) -> Jackknifed:
    """The mean over both folds, weighted by their points."""
    first = points.starts[points.blocks // 2] / points.count
    return folds[0] * first + folds[1] * (1 - first)


def least(candidates: Sequence[Folds]) -> Folds:
    """The least of several upper bounds at each log-SNR, without the optimism of choosing on the same data.

    Each fold's value is that of the candidate which is least on the other fold. Given the other fold, every
    candidate is an upper bound in expectation on this one, and so is the chosen one.
    """
    chosen = []
    for half in (0, 1):
        choice = torch.stack([candidate[1 - half].mean for candidate in candidates]).argmin(0)
        here = [candidate[half] for candidate in candidates]
        chosen.append(
            Jackknifed(
                _pick(choice, [each.mean for each in here]),
                _pick(choice, [each.without for each in here]),
                _pick(choice, [each.noise_variance for each in here]),
            )
        )
    return chosen[0], chosen[1]


def _pick(choice: Tensor, curves: list[Tensor]) -> Tensor:
    stacked = torch.stack(curves)
    return stacked.gather(0, choice.expand(1, *stacked.shape[1:]))[0]


def make_profile(
    points: Points,
    curve: Jackknifed,
    log_snr: Tensor,
    method: str,
    bound: Bound,
    counts: dict[str, int],
    data: dict[str, Any] | None,
    own: Tensor | None = None,
) -> VarianceProfile:
    """Put a curve into a profile; a posterior variance is not negative, so neither is its estimate.

    The effective sample size is 1 / E sum_j w_j^2 over distinct points. The noised point is itself a draw
    from the posterior, so that E sum_j w_j^2 is the mean weight of the noised point, `own`.
    """
    return VarianceProfile(
        quantity="posterior_variance",
        method=method,
        bound=bound,
        log_snr=log_snr,
        mean=curve.mean.clamp(min=0),
        stderr=curve.stderr,
        dim=points.dim,
        second_moment=points.second_moment,
        counts={"points": points.count, "copies": points.copies, "blocks": points.blocks, **counts},
        data=dict(data or {}),
        ess=None if own is None else 1 / own.clamp(1 / points.count, 1.0),
        without=curve.without,
    )
