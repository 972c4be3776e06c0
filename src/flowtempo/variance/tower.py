"""The in-sample posterior variance in its factorised form."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from flowtempo.variance.estimate import Estimate
from flowtempo.variance.points import Points, draw_noise

# exp(-745) is the least positive float64, and exp is many times slower where its result is no normal number.
# Where the own point's weight is above exp(-600) of the largest, factors below exp(-700) do not matter.
_LEAST = -700.0
_SAFE_GAP = 600.0
# Weights below exp(-40) / M of the own point's are left out once products underflow.
_CUTOFF = 40.0
_CHUNK_BYTES = 1 << 28
_CACHED_NUMBERS = 1 << 17


def tower(
    points: Points,
    queries: int,
    log_snr: Tensor,
    noises: int | Tensor,
    *,
    seed: int,
    progress: Callable[[float], None] | None = None,
) -> Estimate:
    """Estimate E|x1|^2/d - E<x1, D>/d, the in-sample posterior variance, by the tower identity.

    D(z) = E[x1 | z] over the points, at z = x_i + e/r with r = exp(log_snr / 2). Given z, x_i is itself a
    draw from the posterior, so E<x_i, D> = E|D|^2. The weight of x_j at z factorises into
    P_ij Q_lj = exp(-r^2 |x_i - x_j|^2 / 2) exp(r <e_l, x_j>) up to factors that cancel, so the mean over j
    of F_ij = <x_i, x_i - x_j> is [(P * F) Q^T]_il / [P Q^T]_il: two matrix products for each log-SNR,
    whatever d is. F vanishes at j = i, so nothing cancels when the posterior collapses on the own point.

    Args:
        points: The points; all are references.
        queries: How many of them are queries.
        log_snr: (L,) float64.
        noises: Noises for each block of queries, or (K, d) float64 noises that all queries share.
        seed: Seed of the noises.
        progress: Called with the fraction done.

    Returns:
        The estimate. The effect of deleting a block of references is taken to first order.
    """
    shared = isinstance(noises, Tensor)
    per_block = [points.queries(block, queries) for block in range(points.blocks)]
    groups = [torch.cat(per_block)] if shared else per_block
    radii = (log_snr / 2).exp()
    values, influences, by_noise = [], [], []
    for block, group in enumerate(groups):
        noise = noises if isinstance(noises, Tensor) else draw_noise(points, seed, "tower", [block], noises)
        projected = points.inner(noise)
        step = max(1, _CHUNK_BYTES // (8 * 5 * points.count))
        for chunk in torch.split(group, step):
            value, influence = _Pairs(points, chunk, noise, projected).at(radii)
            values.append(value.mean(2).T)
            influences.append(influence.permute(1, 2, 0))
            by_noise.append(value.sum(1).T)
        if progress is not None:
            progress((block + 1) / len(groups))
    value, influence = torch.cat(values) / points.dim, torch.cat(influences) / points.dim
    query = torch.cat(per_block)
    block_of = points.block_of[query]
    blocks = points.blocks
    deleted = torch.zeros(blocks, blocks, len(log_snr), dtype=torch.float64)
    deleted.index_add_(0, block_of, value[:, None] - influence)
    plain = torch.zeros(blocks, len(log_snr), dtype=torch.float64).index_add_(0, block_of, value)
    index = torch.arange(blocks)
    deleted[index, index] = plain
    noise_variance = torch.zeros(len(log_snr), dtype=torch.float64)
    if shared:
        means = torch.stack(by_noise).sum(0) / (len(query) * points.dim)
        noise_variance = means.var(0) / len(means)
    return Estimate(value, query, deleted, noise_variance)


class _Pairs:
    """What all log-SNRs share for some queries and noises."""

    def __init__(self, points: Points, query: Tensor, noise: Tensor, projected: Tensor) -> None:
        inner = points.inner(torch.cat([points.x[query].double(), points.offset[None]]))
        inner, lift = inner[:-1], inner[-1]
        self.points, self.query, self.projected = points, query, projected
        self.distance = points.distances(query, inner)
        # <x_i - c, x_i - x_j> about the point c that moments are taken about.
        self.factor = (points.norm[query] - lift[query])[:, None] - (inner - lift)
        self.factor[torch.arange(len(query)), query] = 0.0
        self.reach = float(noise.square().sum(1).max().sqrt())
        top = projected.amax(1, keepdim=True)
        self.gap = top.T - projected[:, query].T  # (n, K)
        # Blocks of one size, padded with references of no weight: (B, n, m) and (B, K, m).
        padded, empty = points.padded
        self.blockwise = (
            self.distance[:, padded].movedim(0, 1).contiguous(),
            self.factor[:, padded].movedim(0, 1).contiguous(),
            (projected - top)[:, padded].movedim(0, 1).masked_fill(empty[:, None], -torch.inf),
        )

    def at(self, radii: Tensor) -> tuple[Tensor, Tensor]:
        """Values (L, n, K), and the influence of each block of references on their mean over K, (L, n, B).

        The influence is the derivative by the logarithm of the block's weight. That of a query's own block
        is not used: the query goes when the block is deleted.
        """
        safe = radii[:, None, None] * self.gap < _SAFE_GAP
        value = torch.zeros(safe.shape, dtype=torch.float64)
        influence = torch.zeros(len(radii), len(self.query), self.points.blocks, dtype=torch.float64)
        some = safe.any((1, 2)).nonzero().flatten()
        for part in torch.split(some, self._at_once()[0]) if len(some) > 0 else ():
            value[part], influence[part] = self._products(radii[part], safe[part])
        for index in (~safe).any((1, 2)).nonzero().flatten().tolist():
            self._near(float(radii[index]), ~safe[index], value[index], influence[index])
        return value, influence / value.shape[2]

    def _at_once(self) -> tuple[int, int]:
        """Log-SNRs and blocks whose factors stay in the cache from the exponential to the product."""
        blocks, count, size = self.blockwise[0].shape
        numbers = (count + self.gap.shape[1]) * size
        return max(1, _CACHED_NUMBERS // (blocks * numbers)), max(1, _CACHED_NUMBERS // numbers)

    def _products(self, radii: Tensor, safe: Tensor) -> tuple[Tensor, Tensor]:
        radius = radii[:, None, None, None]
        products = []
        for parts in zip(*(torch.split(each, self._at_once()[1]) for each in self.blockwise), strict=True):
            distance, factor, tilt = parts
            p = (distance * (-radius * radius / 2)).clamp_(min=_LEAST).exp_()
            q = (tilt * radius).clamp_(min=_LEAST).exp_().transpose(2, 3)
            weight = p @ q
            products.append((weight, p.mul_(factor) @ q))
        weight, moment = (torch.cat(each, 1) for each in zip(*products, strict=True))  # (l, B, n, K)
        total = weight.sum(1)
        value = torch.where(safe, moment.sum(1) / total, 0.0)
        share = torch.where(safe, 1 / total, 0.0)
        influence = ((moment - value[:, None] * weight) * share[:, None]).sum(-1)
        return value, influence.transpose(1, 2)

    def _near(self, radius: float, wanted: Tensor, value: Tensor, influence: Tensor) -> None:
        """Evaluate pairs whose products underflow, over the references that can carry weight.

        With delta = r |x_i - x_j|, x_j weighs at most exp(-delta^2/2 + delta |e|) times the own point.
        """
        points = self.points
        least = _CUTOFF + math.log(points.count)
        limit = (self.reach + math.sqrt(self.reach**2 + 2 * least)) / radius
        near = self.distance < limit * limit
        block_of = points.block_of
        for row in (wanted.any(1) & (near.sum(1) > 1)).nonzero().flatten().tolist():
            which, others = wanted[row], near[row].nonzero().flatten()
            tilt = self.projected[which][:, others] - self.projected[which, self.query[row]][:, None]
            weight = (radius * tilt - radius * radius / 2 * self.distance[row, others]).softmax(1)
            factor = self.factor[row, others]
            moment = weight @ factor
            value[row, which] = moment
            influence[row].index_add_(0, block_of[others], (weight * (factor - moment[:, None])).sum(0))
