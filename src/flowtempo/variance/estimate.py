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
class Estimate:
    """A curve estimated as the mean over query points of a value that also depends on reference points.

    Attributes:
        value: (n, L) float64, one value for each query and log-SNR.
        query: (n,) index of each query among the points, rising.
        deleted: (B, B, L) float64. [g, b] is the sum over the queries of block g of their value when the
            points of block b no longer serve as references; [g, g] is the plain sum.
        noise_variance: (L,) variance of the mean that comes from noises which all queries share.
    """

    value: Tensor
    query: Tensor
    deleted: Tensor
    noise_variance: Tensor

    def over(self, points: Points, blocks: Tensor) -> Jackknifed:
        """The mean over the queries in some blocks, and the means that are left when a block is deleted.

        Args:
            points: The points that the estimate was made from.
            blocks: (B,) bool.
        """
        sizes = torch.bincount(points.block_of[self.query], minlength=points.blocks).double() * blocks
        sums = self.deleted * blocks[:, None, None]
        plain = torch.diagonal(sums).T
        left = sums.sum(0) - plain
        return Jackknifed(
            plain.sum(0) / sizes.sum(), left / (sizes.sum() - sizes)[:, None], self.noise_variance
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
    """Wrap values (n, L) that do not depend on the references."""
    sums = torch.zeros(points.blocks, value.shape[1], dtype=torch.float64)
    sums.index_add_(0, points.block_of[query], value)
    deleted = sums[:, None].expand(-1, points.blocks, -1)
    return Estimate(value, query, deleted, torch.zeros(value.shape[1], dtype=torch.float64))


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
) -> VarianceProfile:
    """Put a curve into a profile; a posterior variance is not negative, so neither is its estimate."""
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
    )
