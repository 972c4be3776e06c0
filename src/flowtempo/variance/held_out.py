"""The leave-one-out squared error: posterior means without the noised point, evaluated pair by pair."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from flowtempo.variance.estimate import Estimate, Part, Tally
from flowtempo.variance.points import Points, draw_noise

# References that weigh less than exp(-cutoff) / M of the second heaviest block's heaviest are left out: what
# is lost is below the rounding of the sum, with or without the heaviest block.
_CUTOFF = {torch.float32: 18.0, torch.float64: 38.0}
# Products with fewer non-zero weights than this fraction are faster as sparse ones.
_SPARSE = 0.06
# exp is many times slower where its result is no normal float32; such weights do not count.
_LEAST = -80.0
_CHUNK_NUMBERS = 1 << 23


def leave_one_out_estimate(
    points: Points,
    queries: int,
    log_snr: Tensor,
    noises: int | Tensor,
    *,
    seed: int,
    progress: Callable[[float], None] | None = None,
) -> Estimate:
    """Estimate the leave-one-out error with a fixed number of queries; see `leave_one_out_part`.

    Args:
        points: The points; all are references.
        queries: How many of them are queries.
        log_snr: (L,) float64.
        noises: Noises for each query, of its own; or (K, d) float64 noises that all queries share.
        seed: Seed of the noises.
        progress: Called with the fraction done.
    """
    tally = Tally(points, len(log_snr))
    for block in range(points.blocks):
        query = points.queries(block, queries)
        tally.add(query, leave_one_out_part(points, query, noises, log_snr, seed=seed))
        if progress is not None:
            progress((block + 1) / points.blocks)
    return tally.estimate


def leave_one_out_part(
    points: Points,
    query: Tensor,
    noises: int | Tensor,
    log_snr: Tensor,
    *,
    seed: int,
    inner: Tensor | None = None,
    projected: Tensor | None = None,
) -> Part:
    """Evaluate |x_i - D(z)|^2/d, D = sum_j w_j x_j at z = x_i + e/r, r = exp(log_snr / 2), for some queries.

    x_i and its copies are no references, so this is the error of a denoiser that does not know x_i, and its
    expectation is at least the MMSE. (Leaving out a copy multiplies the error by
    1 / (1 - weight of the copy)^2 >= 1, so the bound holds with it too.)

    Weights and sums over references are in the dtype of the points, after |x_i - x_j|^2 and <e, x_j - x_i>
    were formed in float64. float32 is enough: references that share the weight have distances within about
    1/r^2 of each other, so that an exponent r^2 D/2 that is wrong by eps r^2 D moves |x_i - D|^2 by eps D.

    Args:
        points: The points; all but the own are references.
        query: (n,) indices.
        noises: Noises for each query, of its own; or (K, d) float64 noises that other queries use too.
        log_snr: (L,) float64.
        seed: Seed of the noises.
        inner: <x_i, x_j> of the queries and all points, (n, M) float64, where it is known already.
        projected: The same of their own noises (`own_noise`), (n K, M).

    Returns:
        Values averaged over the noises; blocks of references are deleted exactly.
    """
    radii = (log_snr / 2).exp()
    shared = isinstance(noises, Tensor)
    each = len(noises) if isinstance(noises, Tensor) else noises
    own = points.block_of[query]
    value = torch.empty(len(query), len(radii), dtype=torch.float64)
    deleted = torch.zeros(points.blocks, points.blocks, len(radii), dtype=torch.float64)
    by_noise = torch.zeros(each, len(radii), dtype=torch.float64)
    if isinstance(noises, Tensor):
        projected = points.inner(noises)
    step = max(1, _CHUNK_NUMBERS // (2 * points.count * (1 + each)))
    for chunk in torch.split(torch.arange(len(query)), step) if len(query) else ():
        some = query[chunk]
        along = points.inner(points.rows(some).double()) if inner is None else inner[chunk]
        if shared and projected is not None:
            tilt = projected.repeat(len(some), 1)
        elif projected is not None:
            tilt = projected[chunk[0] * each : (chunk[-1] + 1) * each]
        else:
            tilt = points.inner(own_noise(points, some, each, seed))
        rows = _rows(points, some.repeat_interleave(each), along.repeat_interleave(each, 0), tilt, radii)
        rows = rows.reshape(points.blocks + 1, len(some), each, -1) / points.dim
        by_noise += rows[0].sum(0)
        mean = rows.mean(2)
        value[chunk] = mean[0]
        without = mean[1:]
        # A query goes when its own block is deleted: what stands there is its plain value.
        without[own[chunk], torch.arange(len(some))] = mean[0]
        deleted.index_add_(0, own[chunk], without.transpose(0, 1))
    return Part(value, deleted, None, by_noise if shared else None)


def own_noise(points: Points, query: Tensor, each: int, seed: int) -> Tensor:
    """The noises of some queries that have their own, (n * each, d) float64."""
    return draw_noise(points, seed, "leave_one_out", query.tolist(), each)


def _rows(points: Points, own: Tensor, inner: Tensor, projected: Tensor, radii: Tensor) -> Tensor:
    """Values of pairs of a query and a noise: whole, then without each block, (B + 1, n, L) float64.

    Args:
        points: The points.
        own: The query of each pair, (n,).
        inner: <x_i, x_j> with all points, (n, M).
        projected: <e, x_j> of the noise of each pair, (n, M).
        radii: (L,).
    """
    dtype = points.x.dtype
    at_once = max(1, _CHUNK_NUMBERS // (2 * (points.blocks + 1) * points.dim))
    out = torch.empty(points.blocks + 1, len(own), len(radii), dtype=torch.float64)
    for part in torch.split(torch.arange(len(own)), at_once):
        query = own[part]
        distance = points.distances(query, inner[part])
        far = distance.masked_fill_(points.equal(query), torch.inf).to(dtype)
        tilt = (projected[part] - projected[part, query][:, None]).to(dtype)
        x = points.rows(query)
        for some in torch.split(torch.arange(len(radii)), max(1, at_once // len(part))):
            mean = _posterior_means(points, far, tilt, radii[some])
            value = (x[:, None] - mean).square().sum(-1).double()
            out[:, part[:, None], some] = value.permute(2, 1, 0)
    return out


def _posterior_means(points: Points, far: Tensor, tilt: Tensor, radii: Tensor) -> Tensor:
    """Softmax averages of the points: over all, then without each block, (l, n, B + 1, d).

    Blocks are summed about their own maxima and then combined, so that deleting the block which holds all
    the weight leaves the others' sum exact instead of a difference of rounded numbers.

    Args:
        points: The points.
        far: |x_i - x_j|^2, (n, M); infinite where j is left out.
        tilt: <e, x_j - x_i>, (n, M).
        radii: (l,).
    """
    blocks, dtype = points.blocks, far.dtype
    row_radius = radii.to(dtype).repeat_interleave(len(far))[:, None]
    row = torch.arange(len(far)).repeat(len(radii))

    def exponent(block: int, rows: Tensor) -> Tensor:
        part, radius = points.members(block), row_radius[rows]
        return (tilt[row[rows], part] * radius).sub_(far[row[rows], part] * (radius * radius / 2))

    # The exponents of a block are formed twice, in the cache, rather than kept for all blocks.
    everything = torch.arange(len(row))
    top = torch.stack([exponent(block, everything).amax(1) for block in range(blocks)], 1)
    second = top.topk(2, dim=1).values[:, 1:]
    least = second - (_CUTOFF[dtype] + math.log(points.count))
    counts = top > least
    weight = torch.zeros_like(top)
    moment = top.new_zeros(len(top), blocks, points.dim)
    for block in range(blocks):
        rows = counts[:, block].nonzero().flatten()
        if len(rows) > 0:
            w = exponent(block, rows)
            light = w < least[rows]
            w = w.sub_(top[rows, block][:, None]).clamp_(min=_LEAST).exp_().masked_fill_(light, 0.0)
            weight[rows, block] = w.sum(1)
            moment[rows, block] = _product(w, points.rows(points.members(block)))
    # scale[:, 0] combines all blocks, scale[:, 1 + b] all but b.
    kept = torch.cat([torch.ones(1, blocks), 1 - torch.eye(blocks)]).bool()
    tops = top[:, None].masked_fill(~kept, -torch.inf)
    peak = tops.amax(-1, keepdim=True)
    # Where nothing but copies would be left without a block, the block stays.
    peak = torch.where(peak == -torch.inf, 0.0, peak)
    scale = torch.where(tops == -torch.inf, 0.0, (tops - peak).exp())
    total = scale @ weight[..., None]
    bare = total == 0
    mean = (scale / total.masked_fill_(bare, 1.0)) @ moment
    if bool(bare.any()):
        mean = torch.where(bare, mean[:, :1], mean)
    return mean.reshape(len(radii), len(far), blocks + 1, points.dim)


def _product(weight: Tensor, x: Tensor) -> Tensor:
    """(n, m) @ (m, d), through the weights that are not zero where these are few."""
    if int(weight.count_nonzero()) > _SPARSE * weight.numel():
        return weight @ x
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return weight.to_sparse_csr() @ x
