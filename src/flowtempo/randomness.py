"""Counter-based random numbers: every draw is a function of (seed, stream, step, index).

Nothing is carried from one draw to the next, so draws do not depend on the number of ranks, on the batch
size or on what else was drawn, a resumed run repeats an uninterrupted one bit for bit, and the global
generators of torch and NumPy are neither read nor moved.

The source is Philox 4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), as
implemented by NumPy. Its 128-bit key is (seed, hash of the stream's name); its 256-bit counter is
(block, 0, index, step), where the block counts on inside one draw. Uniforms and permutations are taken from
Philox's raw words, which NumPy promises to keep; normals and `generator` use `numpy.random.Generator`, whose
methods NumPy may change between versions.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flowtempo.errors import UserError

__all__ = ["generator", "normal", "permutation", "permutation_rows", "uniform", "uniform_rows"]

_WORD = 1 << 64
_SHIFT = np.uint64(12)
_ONE = np.float64(1).view(np.uint64)
_ONE_LESS_HALF_A_CELL = 1 - 2.0**-53


def generator(seed: int, stream: str, step: int = 0, index: int = 0) -> np.random.Generator:
    """Return a NumPy generator whose state depends on the arguments only.

    Args:
        seed: The run's seed, 0 <= seed < 2**64.
        stream: What the numbers are for ("labels", ...). Different names give independent streams.
        step: Optimizer step, 0 <= step < 2**64.
        index: Global sample index, 0 <= index < 2**64.

    Raises:
        UserError: If a number is out of range.
    """
    return np.random.Generator(_philox("generator", seed, stream, step, index))


def uniform(seed: int, stream: str, step: int, count: int) -> Tensor:
    """Draw `count` uniforms, the same whatever the number of ranks; element i does not depend on `count`.

    Returns:
        (count,) float64 in the open interval (0, 1): the midpoints of 2**52 equal cells.

    Raises:
        UserError: If a number is out of range.
    """
    return torch.from_numpy(uniform_rows(seed, stream, range(step, step + 1), count)[0])


def uniform_rows(seed: int, stream: str, steps: range, count: int) -> NDArray[np.float64]:
    """Draw what `uniform` does for each of some steps, (steps, count)."""
    words = _words("uniform", seed, stream, steps, count)
    # 52 bits: with 53 the last midpoint would round to 1. As the digits of a number from 1 to 2 they need no
    # conversion, and what is taken off is exact.
    words >>= _SHIFT
    words |= _ONE
    values = words.view(np.float64)
    values -= _ONE_LESS_HALF_A_CELL
    return values


def normal(
    seed: int, stream: str, step: int, indices: Sequence[int] | Tensor, shape: Sequence[int]
) -> Tensor:
    """Draw one standard-normal array for each global sample index.

    Args:
        seed: The run's seed, 0 <= seed < 2**64.
        stream: What the numbers are for ("noise", ...).
        step: Optimizer step, 0 <= step < 2**64.
        indices: Global sample indices, (n,); row i depends on `indices[i]` and not on its neighbours.
        shape: Shape of one row.

    Returns:
        (n, *shape) float32 on the CPU.

    Raises:
        UserError: If a number is out of range.
    """
    rows = [int(index) for index in (indices.tolist() if isinstance(indices, Tensor) else indices)]
    source = _philox("normal", seed, stream, step, 0)
    draw = np.random.Generator(source)
    out = np.empty((len(rows), math.prod(shape)), dtype=np.float32)
    # Moving the counter of one bit generator costs a few microseconds; making one per row costs more than
    # drawing a small image.
    state = source.state
    counter = state["state"]["counter"]
    for row, index in zip(out, rows, strict=True):
        counter[2] = _check("index", index)
        source.state = state
        draw.standard_normal(dtype=np.float32, out=row)
    return torch.from_numpy(out).reshape(len(rows), *shape)


def permutation(seed: int, stream: str, step: int, count: int) -> Tensor:
    """Draw a permutation of 0 .. count - 1.

    Returns:
        (count,) int64.

    Raises:
        UserError: If a number is out of range.
    """
    return torch.from_numpy(permutation_rows(seed, stream, range(step, step + 1), count)[0])


def permutation_rows(seed: int, stream: str, steps: range, count: int) -> NDArray[np.int64]:
    """Draw what `permutation` does for each of some steps, (steps, count)."""
    words = _words("permutation", seed, stream, steps, count)
    return words.argsort(axis=1, kind="stable").astype(np.int64, copy=False)


class _Source(threading.local):
    """One Philox for each thread: setting its state takes a tenth of the time that making one does."""

    def __init__(self) -> None:
        self.philox = np.random.Philox(key=0)
        self.state: Any = self.philox.state


_SOURCE = _Source()


def _words(kind: str, seed: int, stream: str, steps: range, count: int) -> NDArray[np.uint64]:
    """The first raw words of `_philox(kind, seed, stream, step, 0)` for each step, (steps, count)."""
    philox, state = _SOURCE.philox, _SOURCE.state
    counter, key = state["state"]["counter"], state["state"]["key"]
    counter[:] = 0
    key[:] = _check("seed", seed), _stream_key(kind, stream)
    _check("step", steps[0]), _check("step", steps[-1])
    words = np.empty((len(steps), _check("count", count)), dtype=np.uint64)
    for row, step in zip(words, steps, strict=True):
        counter[3] = step
        philox.state = state
        row[:] = philox.random_raw(count)
    return words


@lru_cache(maxsize=1024)
def _stream_key(kind: str, stream: str) -> int:
    # `kind` keeps, say, uniforms and normals of one stream apart.
    digest = hashlib.blake2b(f"{kind}:{stream}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _philox(kind: str, seed: int, stream: str, step: int, index: int) -> np.random.Philox:
    key = np.array([_check("seed", seed), _stream_key(kind, stream)], dtype=np.uint64)
    counter = np.array([0, 0, _check("index", index), _check("step", step)], dtype=np.uint64)
    return np.random.Philox(key=key, counter=counter)


def _check(name: str, value: int) -> int:
    if not 0 <= value < _WORD:
        raise UserError(f"{name} = {value} is out of range: it must be at least 0 and below 2**64")
    return int(value)
