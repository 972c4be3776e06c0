"""Moments of per-sample gradients and losses over time, with the jackknife over blocks of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flowtempo.variance.estimate import Jackknifed
from flowtempo.variance.profile import Quantity

# Columns of a gradient matrix that are turned to float64 at a time.
_COLUMNS = 1 << 20


@dataclass(frozen=True, eq=False)
class Moments:
    """Sums over B blocks of samples, at T times and for G groups of parameters; float64.

    Attributes:
        sizes: Samples in each block, (B,).
        values: Sums of k values of each sample, (T, B, k).
        squares: Sums of |g|^2, (T, B, G).
        products: Inner products of the blocks' summed gradients, (T, G, B, B).
    """

    sizes: Tensor
    values: Tensor
    squares: Tensor
    products: Tensor

    @classmethod
    def empty(cls, sizes: Sequence[int], times: int, values: int, groups: int) -> Moments:
        """Nothing summed yet."""
        blocks = len(sizes)
        return cls(
            torch.tensor(sizes, dtype=torch.float64),
            torch.zeros(times, blocks, values, dtype=torch.float64),
            torch.zeros(times, blocks, groups, dtype=torch.float64),
            torch.zeros(times, groups, blocks, blocks, dtype=torch.float64),
        )

    def value(self, which: int) -> Jackknifed:
        """The mean of a value."""
        return self._mean(self.values[:, :, which])

    def gradients(self, group: int | None) -> dict[Quantity, tuple[Jackknifed, Tensor]]:
        """Curves of a group, or of all for None, and their standard errors.

        |E g|^2 is estimated without bias by (|sum g|^2 - sum |g|^2) / (N (N - 1)), the mean of <g_i, g_j>
        over distinct samples; where that is negative its root counts as 0. Its variance is the jackknife's,
        but where E g vanishes that is the square of a small number by chance. So it is at least the variance
        of the products of pairs of blocks over their number, as if pairs were independent, which is exact
        there and too little elsewhere. The root's error follows from that of the square, |E g|^2 +- s, as
        sqrt(|E g|^2 + s) - |E g|.
        """
        squares = self.squares.sum(2) if group is None else self.squares[:, :, group]
        products = self.products.sum(1) if group is None else self.products[:, group]
        second = self._mean(squares)
        rows, total, count = products.sum(2), squares.sum(1), self.sizes.sum()
        own = torch.diagonal(products, dim1=1, dim2=2)
        # The sum without block b: |S - S_b|^2 = |S|^2 - 2 <S, S_b> + |S_b|^2.
        left_out = (rows.sum(1)[:, None] - 2 * rows + own) - (total[:, None] - squares)
        left = count - self.sizes
        square = _curve((rows.sum(1) - total) / (count * (count - 1)), (left_out / (left * (left - 1))).T)
        each = products / torch.outer(self.sizes, self.sizes)
        first, other = torch.triu_indices(len(self.sizes), len(self.sizes), offset=1)
        pairs = each[:, first, other]
        error = torch.maximum(square.stderr, (pairs.var(1) / pairs.shape[1]).sqrt())
        spread = second - square
        norm = _curve(square.mean.clamp(min=0).sqrt(), square.without.clamp(min=0).sqrt())
        return {
            "gradient_second_moment": (second, second.stderr),
            "gradient_variance": (spread, spread.stderr),
            "gradient_norm": (norm, (norm.mean.square() + error).sqrt() - norm.mean),
        }

    def _mean(self, sums: Tensor) -> Jackknifed:
        """From sums over blocks, (T, B)."""
        total, count = sums.sum(1), self.sizes.sum()
        return _curve(total / count, ((total[:, None] - sums) / (count - self.sizes)).T)


def inner_products(sums: Mapping[str, Tensor], groups: Mapping[str, int], count: int) -> Tensor:
    """Inner products of the rows of gradients within each group, (G, B, B) float64.

    Args:
        sums: Gradients by parameter, (B, n) each.
        groups: The number of each parameter's group.
        count: G.
    """
    example = next(iter(sums.values()))
    products = example.new_zeros(count, len(example), len(example), dtype=torch.float64)
    for name, rows in sums.items():
        for first in range(0, rows.shape[1], _COLUMNS):
            wide = rows[:, first : first + _COLUMNS].double()
            products[groups[name]] += wide @ wide.T
    return products


def _curve(mean: Tensor, without: Tensor) -> Jackknifed:
    return Jackknifed(mean, without, torch.zeros_like(mean))
