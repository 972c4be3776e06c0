"""One pass over the images: fingerprint, per-channel mean and standard deviation, finiteness."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from flowtempo.errors import UserError

_CHUNK_ELEMENTS = 1 << 22  # 4 Mi values: 32 MiB in float64, whatever the size of the file


@dataclass(frozen=True)
class Scan:
    """What one pass over the images finds.

    Attributes:
        fingerprint: SHA-256 (hex) over dtype, shape and bytes of the images, then those of the labels.
        mean: (C,) float64, in the units stored in the file.
        std: (C,) float64, population standard deviation (divides by the count), same units.
        low: Least value.
        high: Largest value.
    """

    fingerprint: str
    mean: np.ndarray
    std: np.ndarray
    low: float
    high: float


def scan(images: np.ndarray, labels: np.ndarray | None, name: str) -> Scan:
    """Read every image once, in blocks, so that a memory-mapped file is never loaded as a whole.

    Args:
        images: (N, C, H, W) uint8 or float32.
        labels: (N,) int64 or None.
        name: The file or data set, for the error.

    Raises:
        UserError: If an image holds NaN or infinity.
    """
    digest = hashlib.sha256(_header(images))
    channels = images.shape[1]
    count, low, high = 0, np.inf, -np.inf
    mean, scatter = np.zeros(channels), np.zeros(channels)
    for start, block in _blocks(images):
        digest.update(block.data)
        least, largest = float(block.min()), float(block.max())
        if not np.isfinite(least + largest):  # min and max propagate NaN
            bad = start + int(np.argmin(np.isfinite(block).all(axis=(1, 2, 3))))
            raise UserError(f"{name}: image {bad} holds NaN or infinity: remove or repair it")
        low, high = min(low, least), max(high, largest)
        count, mean, scatter = _merge(count, mean, scatter, block)
    if labels is not None:
        digest.update(_header(labels))
        digest.update(np.ascontiguousarray(labels).data)
    return Scan(digest.hexdigest(), mean, np.sqrt(scatter / count), low, high)


def _blocks(images: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    rows = max(1, _CHUNK_ELEMENTS // max(1, int(np.prod(images.shape[1:]))))
    for start in range(0, len(images), rows):
        yield start, np.ascontiguousarray(images[start : start + rows])


def _header(array: np.ndarray) -> bytes:
    return f"{array.dtype.str}{array.shape}".encode()


def _merge(
    count: int, mean: np.ndarray, scatter: np.ndarray, block: np.ndarray
) -> tuple[int, np.ndarray, np.ndarray]:
    """Add a block to running moments per channel (Chan, Golub and LeVeque 1983, eq. 2.1)."""
    added = block.size // block.shape[1]
    if block.dtype == np.uint8:
        # 256 counts per channel give the moments exactly and spare a float64 copy of the block
        values = np.arange(256.0)
        counts = np.stack([np.bincount(block[:, c].ravel(), minlength=256) for c in range(block.shape[1])])
        block_mean = counts @ values / added
        block_scatter = (counts * (values - block_mean[:, None]) ** 2).sum(axis=1)
    else:
        wide = block.astype(np.float64)
        block_mean = wide.mean(axis=(0, 2, 3))
        wide -= block_mean[:, None, None]
        block_scatter = np.square(wide, out=wide).sum(axis=(0, 2, 3))
    total = count + added
    shift = block_mean - mean
    return (
        total,
        mean + shift * (added / total),
        scatter + block_scatter + shift**2 * (count * added / total),
    )
