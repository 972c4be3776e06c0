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
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from flowtempo.errors import UserError

__all__ = ["generator", "normal", "permutation", "uniform"]

_WORD = 1 << 64


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
    words = _philox("uniform", seed, stream, step, 0).random_raw(_check("count", count))
    # 52 bits: with 53 the last midpoint would round to 1.
    return torch.from_numpy(((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)


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
    words = _philox("permutation", seed, stream, step, 0).random_raw(_check("count", count))
    return torch.from_numpy(np.argsort(words, kind="stable").astype(np.int64))


def _philox(kind: str, seed: int, stream: str, step: int, index: int) -> np.random.Philox:
    # `kind` keeps, say, uniforms and normals of one stream apart.
    digest = hashlib.blake2b(f"{kind}:{stream}".encode(), digest_size=8).digest()
    key = np.array([_check("seed", seed), int.from_bytes(digest, "little")], dtype=np.uint64)
    counter = np.array([0, 0, _check("index", index), _check("step", step)], dtype=np.uint64)
    return np.random.Philox(key=key, counter=counter)


def _check(name: str, value: int) -> int:
    if not 0 <= value < _WORD:
        raise UserError(f"{name} = {value} is out of range: it must be at least 0 and below 2**64")
    return int(value)
