"""Data made ready for the estimators: checked, centred, and in random blocks that never part equal points."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, cast

import torch
from torch import Tensor

from flowtempo.errors import UserError
from flowtempo.randomness import normal, permutation

MIN_POINTS = 8
DEFAULT_LOG_SNR = torch.linspace(-14, 14, 65, dtype=torch.float64)
_LARGEST_LOG_SNR = 50.0
# Rows of data that are turned to float64 at a time: 4 MiB, to stay in the cache.
_ROWS_BYTES = 1 << 22
# A source is kept in memory while it takes less than this part of it.
_MEMORY_SHARE = 3


class Source(Protocol):
    """Data that is read when it is asked for, such as a memory-mapped array."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one point."""

    def __len__(self) -> int:
        """M."""

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor | None]:
        """The points at (n,) int64 indices, (n, *shape) float32 or float64, and their labels if any."""


class Stream:
    """The centred points of a source, read whenever they are needed.

    Args:
        source: The data.
        order: Index in the source of each point, (M,).
        mean: (d,) float64, subtracted.
        dtype: float32 or float64.
    """

    def __init__(self, source: Source, order: Tensor, mean: Tensor, dtype: torch.dtype) -> None:
        self.source, self.order, self.mean, self.dtype = source, order, mean, dtype

    def __getitem__(self, which: slice | Tensor) -> Tensor:
        index = self.order[which]
        out = torch.empty(len(index), len(self.mean), dtype=self.dtype)
        # A disk reads rising positions faster than the random order of the blocks.
        for part in torch.split(index.argsort(), _rows_at_once(len(self.mean))):
            rows, _ = self.source.batch(index[part])
            out[part] = (rows.reshape(len(part), -1).double() - self.mean).to(self.dtype)
        return out


@dataclass(frozen=True)
class Points:
    """M points in R^d in a random order, cut into blocks.

    A block is the unit of the jackknife; the first and the last half of the blocks are the two folds. Equal
    points stand side by side, so that they share a block and a fold (but for the few that a border parts): a
    copy carries no independent information, and a fold that holds a copy of a point is not held out from it.

    Attributes:
        x: Centred points in block order, (M, d), float32 or float64, in memory or read from a source.
        offset: What moments are taken about, seen from the mean, (d,) float64: zero, or minus the mean.
        second_moment: E|x|^2 / d before centring.
        starts: First point of each block and M, B + 1 numbers; B is even, sizes fall by 1 at most.
        copy_of: (M,) int64, equal for equal points.
        norm: |x|^2 of the centred points, (M,) float64.
        shape: Shape of one point in the data, such as (C, H, W); its product is d.
    """

    x: Tensor | Stream
    offset: Tensor
    second_moment: float
    starts: tuple[int, ...]
    copy_of: Tensor
    norm: Tensor
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """M."""
        return len(self.norm)

    @property
    def dim(self) -> int:
        """d."""
        return len(self.offset)

    @property
    def blocks(self) -> int:
        """B."""
        return len(self.starts) - 1

    @cached_property
    def copies(self) -> int:
        """How many points are copies of another one."""
        return self.count - int(self.copy_of.max()) - 1

    @cached_property
    def block_of(self) -> Tensor:
        """Block of each point, (M,) int64."""
        sizes = torch.tensor(self.starts).diff()
        return torch.repeat_interleave(torch.arange(self.blocks), sizes)

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
        for part in _runs(self.count, self.dim):
            out[:, part] = rows @ self.rows(part).double().T
        return out

    @cached_property
    def lift(self) -> Tensor:
        """Inner products of the offset with all points, (M,) float64."""
        return self.inner(self.offset[None])[0] if bool(self.offset.any()) else torch.zeros_like(self.norm)

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


def prepare(x: Tensor | Source, *, seed: int, centre: bool = True) -> Points:
    """Check data and cut it into blocks.

    Args:
        x: (M, ...) real numbers, M >= 8. float64 and wide integers are computed with in float64, everything
            else in float32 wherever that is enough. A source that is larger than a third of the memory as
            float32 is read again and again instead of being kept.
        seed: Seed of the order.
        centre: Take moments about the mean instead of the zero of the data. Posterior variances do not
            depend on it; their Monte Carlo estimates do, and have less noise about the mean.

    Raises:
        UserError: If `x` is not such data, is not finite or does not vary.
    """
    if not isinstance(x, Tensor) and hasattr(x, "batch"):
        shape, dtype = (len(x), *x.shape), torch.float32
    elif not isinstance(x, Tensor) or x.ndim < 2 or x.is_complex() or x.dtype == torch.bool:
        named = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise UserError(f"data must be a real tensor of shape (points, ...), not {named}")
    else:
        shape, dtype = tuple(x.shape), torch.float64 if _needs_double(x.dtype) else torch.float32
    count, dim = shape[0], math.prod(shape[1:])
    if count < MIN_POINTS or dim == 0:
        raise UserError(
            f"data has shape {shape}: at least {MIN_POINTS} points of one dimension or more are needed to"
            " measure a variance and its error"
        )
    nothing = torch.zeros(dim, dtype=torch.float64)
    if isinstance(x, Tensor):
        raw: Tensor | Stream = x.detach().cpu().reshape(count, -1).to(dtype)
    else:
        source = cast(Source, x)
        raw = Stream(source, torch.arange(count), nothing, dtype)
        if 4 * count * dim < _memory() // _MEMORY_SHARE:
            raw = raw[:]
    copy_of, mean, power = _look(raw, count, dim)
    order = torch.argsort(
        permutation(seed, "variance.points", 0, int(copy_of.max()) + 1)[copy_of], stable=True
    )
    kept: Tensor | Stream = (
        torch.empty_like(raw) if isinstance(raw, Tensor) else Stream(raw.source, order, mean, dtype)
    )
    norm = torch.empty(count, dtype=torch.float64)
    for part in _runs(count, dim):
        if isinstance(raw, Tensor) and isinstance(kept, Tensor):
            kept[part] = (raw[order[part]].double() - mean).to(dtype)
        norm[part] = kept[part].double().square().sum(1)
    blocks = 32 if count >= 512 else min(16, count // 4 * 2)
    return Points(
        x=kept,
        offset=nothing if centre else -mean,
        second_moment=power,
        starts=tuple(block * (count // blocks) + min(block, count % blocks) for block in range(blocks + 1)),
        copy_of=copy_of[order],
        norm=norm,
        shape=shape[1:],
    )


def _look(x: Tensor | Stream, count: int, dim: int) -> tuple[Tensor, Tensor, float]:
    """One pass: which points are equal, (M,) int64; the mean, (d,) float64; and E|x|^2/d.

    Raises:
        UserError: If the data is not finite, too large to square, or does not vary.
    """
    seen: dict[bytes, int] = {}
    copy_of = torch.empty(count, dtype=torch.int64)
    mean, power, peak = torch.zeros(dim, dtype=torch.float64), 0.0, 0.0
    for part in _runs(count, dim):
        rows = x[part]
        finite = torch.isfinite(rows).all(1)
        if not bool(finite.all()):
            bad = part.start + int((~finite).nonzero()[0, 0])
            raise UserError(f"data holds NaN or infinite values, first in point {bad}: remove or repair them")
        peak = max(peak, float(rows.abs().max()))
        mean += rows.double().sum(0) / count
        power += float(rows.double().square().sum()) / (count * dim)
        # Adding 0 makes -0.0 equal to 0.0 in its bytes too.
        digests = (hashlib.blake2b(row + 0.0, digest_size=16).digest() for row in rows.numpy())
        copy_of[part] = torch.tensor([seen.setdefault(digest, len(seen)) for digest in digests])
    # Twice the largest value is the largest difference; its norm is squared in float32 and, for the shrinkage
    # of the linear denoiser, raised to the fourth power in float64.
    largest = torch.finfo(x.dtype).max ** (0.5 if x.dtype == torch.float32 else 0.25)
    if not 2 * peak * (dim * count) ** 0.5 < largest:
        raise UserError(
            f"data holds values so large (max {peak:.3g}) that squares overflow; rescale them, for example to"
            " a standard deviation of 1"
        )
    if not math.isfinite(power):
        raise UserError("data is too large to square in float64: divide it by its standard deviation")
    if len(seen) == 1:
        raise UserError(f"data does not vary: all {count} points are equal, there is nothing to measure")
    return copy_of, mean, power


def _rows_at_once(dim: int) -> int:
    return max(1, _ROWS_BYTES // (8 * dim))


def _runs(count: int, dim: int) -> Iterator[slice]:
    step = _rows_at_once(dim)
    for first in range(0, count, step):
        yield slice(first, min(first + step, count))


def _memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


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
