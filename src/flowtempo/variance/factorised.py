"""The in-sample posterior variance: the factorised form, and the published quadratic one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from flowtempo.variance.estimate import Estimate, Part, Tally
from flowtempo.variance.points import Points, draw_noise

Form = Literal["tower", "quadratic"]

# For each precision: the least exponent that is formed (exp is many times slower where its result is no
# normal number), and how far the own point's weight may lie below the largest: beyond, products underflow.
_RANGE = {torch.float32: (-85.0, 60.0), torch.float64: (-700.0, 600.0)}
# References that weigh below exp(-40) / M of the own point are left out.
_CUTOFF = 40.0
# Costs in nanoseconds, to choose between products and rows: a row and one of its numbers; a factor of the
# products and one term of their sums.
_ROW, _NUMBER, _FACTOR, _TERM = 1e5, 10.0, 2.0, 0.15
_CHUNK_BYTES = 1 << 28
_LARGEST_GRAM = 4096


def in_sample_estimate(
    points: Points,
    queries: int,
    log_snr: Tensor,
    noises: int | Tensor,
    *,
    form: Form = "tower",
    seed: int,
    progress: Callable[[float], None] | None = None,
) -> Estimate:
    """Estimate the in-sample posterior variance with a fixed number of queries; see `in_sample_part`.

    Args:
        points: The points; all are references.
        queries: How many of them are queries.
        log_snr: (L,) float64.
        noises: Noises for each block of queries, or (K, d) float64 noises that all queries share.
        form: Which value.
        seed: Seed of the noises.
        progress: Called with the fraction done.
    """
    per_block = [points.queries(block, queries) for block in range(points.blocks)]
    shared = isinstance(noises, Tensor)
    groups = [torch.cat(per_block)] if shared else per_block
    tally = Tally(points, len(log_snr))
    for unit, query in enumerate(groups):
        noise = noises if isinstance(noises, Tensor) else draw_noise(points, seed, "tower", [unit], noises)
        tally.add(query, in_sample_part(points, query, noise, log_snr, form=form, shared=shared))
        if progress is not None:
            progress((unit + 1) / len(groups))
    return tally.estimate


def in_sample_part(
    points: Points,
    query: Tensor,
    noise: Tensor,
    log_snr: Tensor,
    *,
    form: Form = "tower",
    shared: bool = False,
    inner: Tensor | None = None,
    projected: Tensor | None = None,
) -> Part:
    """Evaluate the in-sample posterior variance of some queries.

    D(z) = E[x1 | z] over the points, at z = x_i + e/r with r = exp(log_snr / 2). "quadratic" is
    (|x_i|^2 - |D|^2)/d, VR-Sampling's formula. "tower" is (|x_i|^2 - <x_i, D>)/d: given z, x_i is itself a
    draw from the posterior, so E<x_i, D> = E|D|^2. The weight of x_j at z factorises into
    P_ij Q_lj = exp(-r^2 |x_i - x_j|^2 / 2) exp(r <e_l, x_j>) up to factors that cancel, so the mean over j
    of F_ij = <x_i, x_i - x_j> is [(P * F) Q^T]_il / [P Q^T]_il: two matrix products for each log-SNR,
    whatever d is, and two more for the influence of every reference on the mean. F vanishes at j = i, so
    nothing cancels when the posterior collapses on the own point. With D = x_i + delta the quadratic form is
    twice the tower's less |delta|^2.

    Args:
        points: The points; all are references.
        query: (n,) indices.
        noise: (K, d) float64, used with every query.
        log_snr: (L,) float64.
        form: Which value.
        shared: Whether other queries use the same noises, so that their own error has to be known.
        inner: <x_i, x_j> of the queries and all points, (n, M) float64, where it is known already.
        projected: The same of the noises, (K, M).

    Returns:
        Values averaged over the noises. The effect of deleting a block of references is taken to first order.
    """
    projected = points.inner(noise) if projected is None else projected
    blocks, radii = points.blocks, (log_snr / 2).exp()
    block_of = points.block_of[query]
    value = torch.zeros(len(query), len(radii), dtype=torch.float64)
    deleted = torch.zeros(blocks, blocks, len(radii), dtype=torch.float64)
    own = torch.zeros(blocks, len(radii), dtype=torch.float64)
    by_noise = torch.zeros(len(noise), len(radii), dtype=torch.float64)
    step = max(1, _CHUNK_BYTES // (8 * 6 * points.count))
    for chunk in torch.split(torch.arange(len(query)), step) if len(query) else ():
        rows = points.inner(points.rows(query[chunk]).double()) if inner is None else inner[chunk]
        pairs = _Pairs(points, query[chunk], rows, projected, form)
        for index, radius in enumerate(radii.tolist()):
            result = pairs.at(radius)
            if result is None:
                own[:, index].index_add_(0, block_of[chunk], torch.ones(len(chunk), dtype=torch.float64))
                continue
            values, weight, influence = result
            mean = values.mean(1)
            value[chunk, index] = mean
            by_noise[:, index] += values.sum(0)
            own[:, index].index_add_(0, block_of[chunk], weight)
            deleted[:, :, index].index_add_(0, block_of[chunk], mean[:, None] - influence)
    # A query goes when its own block is deleted: what stands there is its plain value.
    each = torch.arange(blocks)
    deleted[each, each] = torch.zeros(blocks, len(radii), dtype=torch.float64).index_add_(0, block_of, value)
    dim = points.dim
    return Part(value / dim, deleted / dim, own, by_noise / dim if shared else None)


class _Pairs:
    """What all log-SNRs share for some queries and noises."""

    def __init__(self, points: Points, query: Tensor, inner: Tensor, projected: Tensor, form: Form) -> None:
        lift = points.lift
        self.points, self.query, self.projected, self.form = points, query, projected, form
        self.distance = points.distances(query, inner)
        # <x_i - c, x_i - x_j> about the point c that moments are taken about.
        self.factor = (points.norm[query] - lift[query])[:, None] - (inner - lift)
        self.factor[torch.arange(len(query)), query] = 0.0
        self.copies = points.equal(query).sum(1)
        self.tilt = projected - projected.amax(1, keepdim=True)
        self.gap = -self.tilt[:, query].T.amin(1, keepdim=True)  # (n, 1), bounds <e, x_j - x_i>
        self.widest = float(self.gap.max())
        self.member = torch.nn.functional.one_hot(points.block_of, points.blocks)
        # Vectors D need not be formed where there are fewer points than dimensions.
        small = form == "quadratic" and points.count <= min(points.dim, _LARGEST_GRAM)
        self.gram = points.inner(points.rows(slice(0, points.count)).double()) if small else None
        self._narrow: tuple[Tensor, ...] | None = None

    def at(self, radius: float) -> tuple[Tensor, Tensor, Tensor] | None:
        """Values (n, K), mean own weights (n,), and the influence of each block on the mean value, (n, B).

        The influence is the derivative by the logarithm of the block's weight. That of a query's own block
        is not used: the query goes when the block is deleted. None where the own points hold all weight.
        """
        count, noises = self.points.count, self.projected.shape[0]
        # x_j weighs exp(-r^2 |x_i - x_j|^2 / 2 + r <e, x_j - x_i>) of the own point.
        near = self.distance < 2 * (self.gap / radius + (_CUTOFF + math.log(count)) / radius**2)
        shared = near.sum(1)
        rows = (shared > self.copies).nonzero().flatten()
        if len(rows) == 0:
            return None
        dtype = self.points.x.dtype
        if radius * self.widest >= _RANGE[dtype][1]:
            dtype = torch.float64
        products = self.distance.numel() * (_FACTOR + _TERM * noises) + noises * count * _FACTOR
        alone = len(rows) * _ROW + noises * int(shared[rows].sum()) * _NUMBER
        if self.form == "quadratic" or alone < products or radius * self.widest >= _RANGE[dtype][1]:
            return self._by_row(radius, near, rows)
        return self._products(radius, dtype)

    def _products(self, radius: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        distance, factor, tilt, member = self._in(dtype)
        least = _RANGE[dtype][0]
        p = (distance * (-radius * radius / 2)).clamp_(min=least).exp_()
        q = (tilt * radius).clamp_(min=least).exp_()
        share = (p @ q.T).reciprocal_()  # (n, K)
        weighed = p * factor
        value = (weighed @ q.T).mul_(share)
        own = (q[:, self.query].T * share).double().mean(1) * self.copies
        weighed.mul_(share @ q).sub_(p.mul_(share.mul_(value) @ q))
        return value.double(), own, (weighed @ member).double() / len(q)

    def _in(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        parts = (self.distance, self.factor, self.tilt, self.member)
        if dtype == torch.float64:
            return *parts[:3], self.member.to(dtype)
        if self._narrow is None:
            self._narrow = tuple(part.to(dtype) for part in parts)
        return self._narrow

    def _by_row(self, radius: float, near: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Evaluate each query over the references that can carry weight, in the log domain."""
        points = self.points
        value = torch.zeros(len(self.query), self.projected.shape[0], dtype=torch.float64)
        own = torch.ones(len(self.query), dtype=torch.float64)
        influence = torch.zeros(len(self.query), points.blocks, dtype=torch.float64)
        for row in rows.tolist():
            others = near[row].nonzero().flatten()
            query = self.query[row]
            tilt = self.projected[:, others] - self.projected[:, query, None]
            distance, factor = self.distance[row, others], self.factor[row, others]
            weight = (radius * tilt - radius * radius / 2 * distance).softmax(1)
            moment = weight @ factor
            pull = factor - moment[:, None]
            if self.form == "quadratic":
                along, square = self._step(weight, others, query)
                moment = 2 * moment - square
                pull = 2 * (pull - along + square[:, None])
            value[row] = moment
            own[row] = weight[:, points.copy_of[others] == points.copy_of[query]].sum(1).mean()
            influence[row].index_add_(0, points.block_of[others], (weight * pull).mean(0))
        return value, own, influence

    def _step(self, weight: Tensor, others: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
        """<delta, x_j - x_i> and |delta|^2 for delta = D - x_i, (K, m) and (K,)."""
        if self.gram is None:
            away = self.points.rows(others).double() - self.points.rows(query[None]).double()
            along = (weight @ away) @ away.T
        else:
            inner = self.gram[query, others]
            along = weight @ self.gram[others][:, others] - (weight @ inner)[:, None]
            along += self.gram[query, query] - inner
        return along, (weight * along).sum(1)
