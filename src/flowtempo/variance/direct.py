"""Posterior means evaluated pair by pair, for the estimators that need the vector D itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from flowtempo.variance.estimate import Estimate
from flowtempo.variance.points import Points, draw_noise

Form = Literal["quadratic", "leave_one_out"]

# Blocks of references whose largest weight is below exp(-25) / M of the others' are left out of a sum.
_CUTOFF = 25.0
# exp is many times slower where its result is no normal float32; such weights do not count.
_LEAST = -80.0
_CHUNK_NUMBERS = 1 << 23


def direct(
    points: Points,
    queries: int,
    log_snr: Tensor,
    noises: int | Tensor,
    *,
    form: Form,
    seed: int,
    progress: Callable[[float], None] | None = None,
) -> Estimate:
    """Estimate the posterior variance from D(z) = sum_j w_j x_j at z = x_i + e/r, r = exp(log_snr / 2).

    "quadratic" is E|x1|^2/d - E|D|^2/d with x_i among the references (VR-Sampling's formula). In
    "leave_one_out" x_i and its copies are none, and the value is the squared error |x_i - D|^2/d: the error
    of a denoiser that does not know x_i, so its expectation is at least the MMSE. (Leaving out a copy
    multiplies the error by 1 / (1 - weight of the copy)^2 >= 1, so the bound holds with it too.)

    Weights and sums over references are in the dtype of the points, after |x_i - x_j|^2 and <e, x_j - x_i>
    were formed in float64. float32 is enough: references that share the weight have distances within about
    1/r^2 of each other, so that an exponent r^2 D/2 that is wrong by eps r^2 D moves |x_i - D|^2 by eps D.

    Args:
        points: The points; all are references.
        queries: How many of them are queries.
        log_snr: (L,) float64.
        noises: Noises for each query, of its own; or (K, d) float64 noises that all queries share.
        form: Which estimate.
        seed: Seed of the noises.
        progress: Called with the fraction done.
    """
    blocks = points.blocks
    radii = (log_snr / 2).exp()
    shared = noises if isinstance(noises, Tensor) else None
    each = len(noises) if isinstance(noises, Tensor) else noises
    values = []
    deleted = torch.zeros(blocks, blocks, len(log_snr), dtype=torch.float64)
    by_noise = torch.zeros(each, len(log_snr), dtype=torch.float64)
    query = torch.cat([points.queries(block, queries) for block in range(blocks)])
    step = max(1, _CHUNK_NUMBERS // (2 * points.count * (1 + each)))
    done = 0
    for chunk in torch.split(query, step):
        noise = draw_noise(points, seed, form, chunk.tolist(), each) if shared is None else shared
        rows = _rows(points, chunk, noise, each, radii, form)  # (B + 1, n K, L)
        rows = rows.reshape(blocks + 1, len(chunk), each, -1) / points.dim
        by_noise += rows[0].sum(0)
        mean = rows.mean(2)
        own = points.block_of[chunk]
        without = mean[1:]
        without[own, torch.arange(len(chunk))] = mean[0]
        deleted.index_add_(0, own, without.transpose(0, 1))
        values.append(mean[0])
        done += len(chunk)
        if progress is not None:
            progress(done / len(query))
    value = torch.cat(values)
    noise_variance = torch.zeros(len(log_snr), dtype=torch.float64)
    if shared is not None:
        noise_variance = (by_noise / len(value)).var(0) / each
    return Estimate(value, query, deleted, noise_variance)


def _rows(points: Points, query: Tensor, noise: Tensor, each: int, radii: Tensor, form: Form) -> Tensor:
    """Values of all pairs of a query and a noise: whole, then without each block, (B + 1, n K, L) float64."""
    dtype = points.x.dtype
    row_query = torch.arange(len(query)).repeat_interleave(each)
    # Noises are shared by all queries, or each query has its own.
    row_noise = torch.arange(each).repeat(len(query)) if len(noise) == each else torch.arange(len(noise))
    own = query[row_query]
    inner = points.inner(torch.cat([points.x[query].double(), noise]))
    distance, projected = points.distances(query, inner[: len(query)]), inner[len(query) :]
    if form == "leave_one_out":
        distance.masked_fill_(points.equal(query), torch.inf)
    at_once = max(1, _CHUNK_NUMBERS // (2 * (points.blocks + 1) * points.dim))
    out = torch.empty(points.blocks + 1, len(own), len(radii), dtype=torch.float64)
    for part in torch.split(torch.arange(len(own)), at_once):
        far = distance[row_query[part]].to(dtype)
        tilt = (projected[row_noise[part]] - projected[row_noise[part], own[part]][:, None]).to(dtype)
        x = points.x[own[part]]
        about = (x.double() - points.offset).to(dtype)
        for some in torch.split(torch.arange(len(radii)), max(1, at_once // len(part))):
            mean = _posterior_means(points, far, tilt, radii[some])
            error = x[:, None] - mean
            value = error.square().sum(-1).double()
            if form == "quadratic":
                value = 2 * (error * about[:, None]).sum(-1).double() - value
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
    counts = top > second - (_CUTOFF + math.log(points.count))
    weight = torch.zeros_like(top)
    moment = top.new_zeros(len(top), blocks, points.dim)
    for block in range(blocks):
        rows = counts[:, block].nonzero().flatten()
        if len(rows) > 0:
            w = exponent(block, rows).sub_(top[rows, block][:, None]).clamp_(min=_LEAST).exp_()
            weight[rows, block] = w.sum(1)
            moment[rows, block] = w @ points.x[points.members(block)]
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
