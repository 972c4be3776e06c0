"""Frechet distance between Gaussians fitted to two sets of features, in float64 and never complex.

d^2 = |m_a - m_b|^2 + tr S_a + tr S_b - 2 tr (S_a S_b)^(1/2)  (Dowson and Landau 1982; Heusel et al. 2017,
eq. 6). With S_b = R R^T the last trace is the sum of the square roots of the eigenvalues of the symmetric
R^T S_a R, so no square root of a non-symmetric matrix is taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Statistics:
    """Moments of a set of features.

    Attributes:
        mean: (d,) float64.
        cov: (d, d) float64, the unbiased estimate (divides by count - 1); zero for a count of 1.
        count: Number of feature vectors.
    """

    mean: np.ndarray
    cov: np.ndarray
    count: int

    @classmethod
    def of(cls, blocks: np.ndarray | Iterable[np.ndarray]) -> Statistics:
        """Statistics of one (n, d) array, or of an iterable of such, read once.

        Raises:
            ValueError: If there is no row, a block is not (n, d), or a value is not finite.
        """
        total: Statistics | None = None
        for block in [blocks] if isinstance(blocks, np.ndarray) else blocks:
            part = cls._of_block(block)
            total = part if total is None else total.merge(part)
        if total is None:
            raise ValueError("no features to take statistics of")
        return total

    @classmethod
    def _of_block(cls, block: np.ndarray) -> Statistics:
        if block.ndim != 2 or 0 in block.shape:
            raise ValueError(f"features must be (n, d) with n, d > 0, got {block.shape}")
        wide = block.astype(np.float64)
        mean = wide.mean(axis=0)
        if not np.isfinite(mean).all():
            raise ValueError("features hold NaN or infinity")
        wide -= mean
        return cls(mean, wide.T @ wide / max(len(wide) - 1, 1), len(wide))

    def merge(self, other: Statistics) -> Statistics:
        """Statistics of both sets together (Chan, Golub and LeVeque 1983)."""
        count = self.count + other.count
        shift = other.mean - self.mean
        scatter = self._scatter + other._scatter + np.outer(shift, shift * (self.count * other.count / count))
        return Statistics(self.mean + shift * (other.count / count), scatter / (count - 1), count)

    def without(self, part: Statistics) -> Statistics:
        """Statistics of what is left when `part` of the set is taken away: undoes `merge`.

        Raises:
            ValueError: If nothing would be left.
        """
        count = self.count - part.count
        if count < 1:
            raise ValueError(f"cannot take {part.count} vectors away from {self.count}")
        mean = self.mean + (self.mean - part.mean) * (part.count / count)
        shift = part.mean - mean
        scatter = self._scatter - part._scatter - np.outer(shift, shift * (count * part.count / self.count))
        return Statistics(mean, scatter / max(count - 1, 1), count)

    @property
    def _scatter(self) -> np.ndarray:
        return self.cov * max(self.count - 1, 1)


@dataclass(frozen=True)
class Estimate:
    """A Frechet distance and its standard error.

    Attributes:
        value: The squared distance d^2, as the field reports it; biased upwards by about 1/n.
        stderr: Delete-a-block jackknife over the samples, the reference held fixed.
        blocks: Number of blocks.
    """

    value: float
    stderr: float
    blocks: int


def distance(a: Statistics, b: Statistics) -> float:
    """Frechet distance d^2 >= 0 between the Gaussians (a.mean, a.cov) and (b.mean, b.cov).

    Covariances may be singular (fewer vectors than features).

    Raises:
        ValueError: If the numbers of features differ.
    """
    return _distance(a, b, _root(b.cov))


def estimate(samples: np.ndarray, reference: Statistics, *, blocks: int = 20) -> Estimate:
    """Frechet distance of samples to a reference, with its jackknife standard error.

    The samples are dealt to the blocks by a fixed random permutation, since files are often sorted by
    class, or cycle through the classes.

    Args:
        samples: (n, d) features, n >= 4.
        reference: Statistics of the reference features.
        blocks: Number of blocks, at most n / 2.

    Raises:
        ValueError: If n < 4 or the numbers of features differ.
    """
    if len(samples) < 4:
        raise ValueError(f"a standard error needs 4 samples or more, got {len(samples)}")
    blocks = min(blocks, len(samples) // 2)
    order = np.argsort(np.random.Philox(key=0).random_raw(len(samples)), kind="stable")
    parts = [Statistics.of(samples[rows]) for rows in np.array_split(order, blocks)]
    total = parts[0]
    for part in parts[1:]:
        total = total.merge(part)
    root = _root(reference.cov)
    left_out = np.array([_distance(total.without(part), reference, root) for part in parts])
    spread = float(np.sqrt((blocks - 1) / blocks * np.sum((left_out - left_out.mean()) ** 2)))
    return Estimate(_distance(total, reference, root), spread, blocks)


def _distance(a: Statistics, b: Statistics, root: np.ndarray) -> float:
    if a.mean.shape != b.mean.shape:
        raise ValueError(f"{a.mean.size} features against {b.mean.size}: use the same feature network")
    shift = a.mean - b.mean
    cross = np.sqrt(_clean(np.linalg.eigvalsh(root.T @ a.cov @ root))).sum()
    return max(0.0, float(shift @ shift + np.trace(a.cov) + np.trace(b.cov) - 2 * cross))


def _root(cov: np.ndarray) -> np.ndarray:
    """R with R R^T = cov and as many columns as cov has rank: (d, rank)."""
    values, vectors = np.linalg.eigh(cov)
    values = _clean(values)
    kept = values > 0
    return vectors[:, kept] * np.sqrt(values[kept])


def _clean(values: np.ndarray) -> np.ndarray:
    """Eigenvalues with those that are rounding of zero set to zero.

    Rounding leaves values of about 1e-16 of the largest, of either sign, in the null space; their square
    roots (1e-8) would add up over hundreds of dimensions.
    """
    floor = values.size * np.finfo(np.float64).eps * np.abs(values).max(initial=0.0)
    return np.where(values > floor, values, 0.0)
