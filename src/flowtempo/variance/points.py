"""Data made ready for the estimators: checked, centred, and in random blocks that never part equal points."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flowtempo.errors import UserError
from flowtempo.randomness import normal, permutation

MIN_POINTS = 8
DEFAULT_LOG_SNR = torch.linspace(-14, 14, 65, dtype=torch.float64)
_LARGEST_LOG_SNR = 50.0
# Rows of data that are turned to float64 at a time: 4 MiB, to stay in the cache.
_ROWS_BYTES = 1 << 22


@dataclass(frozen=True)
class Points:
    """M points in R^d in a random order, cut into blocks.

    A block is the unit of the jackknife; the first and the last half of the blocks are the two folds. Equal
    points stand side by side, so that they share a block and a fold (but for the few that a border parts): a
    copy carries no independent information, and a fold that holds a copy of a point is not held out from it.

    Attributes:
        x: Centred points in block order, (M, d), float32 or float64.
        offset: What moments are taken about, seen from the mean, (d,) float64: zero, or minus the mean.
        second_moment: E|x|^2 / d before centring.
        starts: First point of each block and M, B + 1 numbers; B is even, sizes fall by 1 at most.
        copy_of: (M,) int64, equal for equal points.
        norm: |x|^2 of the centred points, (M,) float64.
        shape: Shape of one point in the data, such as (C, H, W); its product is d.
    """

    x: Tensor
    offset: Tensor
    second_moment: float
    starts: tuple[int, ...]
    copy_of: Tensor
    norm: Tensor
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """M."""
        return self.x.shape[0]

    @property
    def dim(self) -> int:
        """d."""
        return self.x.shape[1]

    @property
    def blocks(self) -> int:
        """B."""
        return len(self.starts) - 1

    @property
    def copies(self) -> int:
        """How many points are copies of another one."""
        return self.count - int(self.copy_of.max()) - 1

    @property
    def block_of(self) -> Tensor:
        """Block of each point, (M,) int64."""
        sizes = torch.tensor(self.starts).diff()
        return torch.repeat_interleave(torch.arange(self.blocks), sizes)

    @property
    def padded(self) -> tuple[Tensor, Tensor]:
        """The points of each block, (B, m) indices, and where there is none, (B, m) bool."""
        starts = torch.tensor(self.starts)
        size = int(starts.diff().max())
        index = starts[:-1, None] + torch.arange(size)
        empty = index >= starts[1:, None]
        return index.masked_fill(empty, 0), empty

    def rows(self, which: slice | Tensor) -> Tensor:
        """Some of the centred points, (n, d), float32 or float64."""
        return self.x[which]

    def members(self, block: int) -> slice:
        """The points of a block."""
        return slice(self.starts[block], self.starts[block + 1])

    def fold(self, half: int) -> slice:
        """The points of fold 0 or 1."""
        middle = self.starts[self.blocks // 2]
        return slice(0, middle) if half == 0 else slice(middle, self.count)

    def queries(self, block: int, total: int) -> Tensor:
        """Points of a block that are queries when `total` of all points are, spread evenly over blocks."""
        first = self.starts[block]
        return torch.arange(first, first + total // self.blocks + (block < total % self.blocks))

    def inner(self, rows: Tensor) -> Tensor:
        """Inner products of float64 vectors (n, d) with all centred points, (n, M) float64."""
        out = torch.empty(rows.shape[0], self.count, dtype=torch.float64)
        step = max(1, _ROWS_BYTES // (8 * self.dim))
        for first in range(0, self.count, step):
            part = slice(first, first + step)
            out[:, part] = rows @ self.x[part].double().T
        return out

    def distances(self, query: Tensor, inner: Tensor) -> Tensor:
        """|x_i - x_j|^2 of queries and all points, (n, M) float64, exactly 0 for equal points.

        Args:
            query: (n,) indices.
            inner: Their inner products with all points, (n, M).
        """
        distance = (self.norm[query][:, None] + self.norm - 2 * inner).clamp_(min=0)
        return distance.masked_fill_(self.equal(query), 0.0)

    def equal(self, query: Tensor) -> Tensor:
        """Which points equal a query, itself included, (n, M) bool."""
        return self.copy_of[query][:, None] == self.copy_of


def prepare(x: Tensor, *, seed: int, centre: bool = True) -> Points:
    """Check data and cut it into blocks.

    Args:
        x: (M, ...) real numbers, M >= 8. float64 and wide integers are computed with in float64, everything
            else in float32 wherever that is enough.
        seed: Seed of the order.
        centre: Take moments about the mean instead of the zero of the data. Posterior variances do not
            depend on it; their Monte Carlo estimates do, and have less noise about the mean.

    Raises:
        UserError: If `x` is not such data, is not finite or does not vary.
    """
    if not isinstance(x, Tensor) or x.ndim < 2 or x.is_complex() or x.dtype == torch.bool:
        shape = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise UserError(f"data must be a real tensor of shape (points, ...), not {shape}")
    if x.shape[0] < MIN_POINTS or x[0].numel() == 0:
        raise UserError(
            f"data has shape {tuple(x.shape)}: at least {MIN_POINTS} points of one dimension or more are"
            " needed to measure a variance and its error"
        )
    flat = x.detach().cpu().reshape(x.shape[0], -1)
    flat = flat.to(torch.float64 if _needs_double(flat.dtype) else torch.float32)
    finite = torch.isfinite(flat).all(1)
    if not bool(finite.all()):
        bad = int((~finite).nonzero()[0, 0])
        raise UserError(f"data holds NaN or infinite values, first in point {bad}: remove or repair them")
    peak = float(flat.abs().max())
    # Twice the largest value is the largest difference; its norm is squared in float32 and, for the shrinkage
    # of the linear denoiser, raised to the fourth power in float64.
    largest = torch.finfo(flat.dtype).max ** (0.5 if flat.dtype == torch.float32 else 0.25)
    if not 2 * peak * (flat.shape[1] * flat.shape[0]) ** 0.5 < largest:
        raise UserError(
            f"data holds values so large (max {peak:.3g}) that squares overflow; rescale them, for example to"
            " a standard deviation of 1"
        )
    copy_of = _copies(flat)
    groups = int(copy_of.max()) + 1
    if groups == 1:
        raise UserError(f"data does not vary: all {len(flat)} points are equal, there is nothing to measure")

    count, dim = flat.shape
    order = torch.argsort(permutation(seed, "variance.points", 0, groups)[copy_of], stable=True)
    blocks = 32 if count >= 512 else min(16, count // 4 * 2)
    mean = torch.zeros(dim, dtype=torch.float64)
    power = 0.0
    step = max(1, _ROWS_BYTES // (8 * dim))
    for first in range(0, count, step):
        part = flat[first : first + step].double()
        mean += part.sum(0) / count
        power += float(part.square().sum()) / (count * dim)
    if not math.isfinite(power):
        raise UserError("data is too large to square in float64: divide it by its standard deviation")
    centred = torch.empty_like(flat)
    norm = torch.empty(count, dtype=torch.float64)
    for first in range(0, count, step):
        part = order[first : first + step]
        rows = (flat[part].double() - mean).to(flat.dtype)
        centred[first : first + step] = rows
        norm[first : first + step] = rows.double().square().sum(1)
    return Points(
        x=centred,
        offset=torch.zeros_like(mean) if centre else -mean,
        second_moment=power,
        starts=tuple(block * (count // blocks) + min(block, count % blocks) for block in range(blocks + 1)),
        copy_of=copy_of[order],
        norm=norm,
        shape=tuple(x.shape[1:]),
    )


def check_log_snr(log_snr: Tensor | None) -> Tensor:
    """Return the grid as float64, the default one for None.

    Raises:
        UserError: If it is not strictly increasing, not finite or outside [-50, 50].
    """
    grid = (DEFAULT_LOG_SNR if log_snr is None else torch.as_tensor(log_snr)).double().detach().cpu()
    if grid.ndim != 1 or len(grid) == 0 or not bool((grid.diff() > 0).all() and torch.isfinite(grid).all()):
        raise UserError("log_snr must be a list of finite, strictly increasing numbers")
    if float(grid.abs().max()) > _LARGEST_LOG_SNR:
        raise UserError(f"log_snr must lie within [-{_LARGEST_LOG_SNR:g}, {_LARGEST_LOG_SNR:g}]")
    return grid


def check_count(name: str, value: int) -> int:
    """Return `value` if it is a whole number, 1 or more.

    Raises:
        UserError: If it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"{name} = {value!r} must be a whole number, 1 or more")
    return value


def check_queries(value: int | None, points: Points) -> int:
    """Return how many points are queries, all for None.

    Raises:
        UserError: If there are more than points, or fewer than blocks, of which each needs one.
    """
    if value is None:
        return points.count
    if not points.blocks <= check_count("queries", value) <= points.count:
        raise UserError(
            f"queries = {value}: use {points.blocks} (one for each block of the jackknife) to"
            f" {points.count} (all points)"
        )
    return value


def draw_noise(points: Points, seed: int, stream: str, owners: Sequence[int], each: int) -> Tensor:
    """Draw `each` standard-normal vectors for each owner (a query or a block), (owners * each, d) float64."""
    indices = [owner * each + k for owner in owners for k in range(each)]
    return normal(seed, f"variance.{stream}", 0, indices, (points.dim,)).double()


def _needs_double(dtype: torch.dtype) -> bool:
    return dtype in (torch.float64, torch.int32, torch.int64, torch.uint32, torch.uint64)


def _copies(flat: Tensor) -> Tensor:
    seen: dict[bytes, int] = {}
    # Adding 0 makes -0.0 equal to 0.0 in its bytes too.
    digests = (hashlib.blake2b(row + 0.0, digest_size=16).digest() for row in flat.numpy())
    return torch.tensor([seen.setdefault(digest, len(seen)) for digest in digests])
