"""The linear bound: time against its floor, memory at d = 262,144, and what the stationary denoiser gains.

    python benchmarks/measure/spectral.py (FLOWTEMPO_BENCH_QUICK=1 for a small form)

The floor is the products that a cross-fit cannot do without (half of the scatter matrix, and the points
times the directions, in float32) at this machine's rate measured in the same run, and the eigenvectors.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from ending import QUICK, finish
from torch import Tensor

from flowtempo.data import DataConfig, load
from flowtempo.variance.estimate import average, by_fold
from flowtempo.variance.linear import SHRINKAGES, spectral_errors
from flowtempo.variance.points import DEFAULT_LOG_SNR, Points, prepare

SIZES = ((2000, 196), (2000, 512)) if QUICK else ((60_000, 784), (20_000, 4096))
LATENTS = ((1, 16, 16, 16),) if QUICK else ((1, 64, 64, 64), (4, 256, 256), (32, 64, 64))
FEW = (16, 100) if QUICK else (16, 100, 1000, 10_000)
LOG_SNR = torch.tensor([-4.0, -2.0, 0.0, 2.0, 4.0, 6.0], dtype=torch.float64)


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def timed(count: int, dim: int) -> dict[str, float]:
    """Seconds of the whole bound, of its floor, and of the part that is eigenvectors."""
    generator = torch.Generator().manual_seed(0)
    scales = (1 + torch.arange(dim)) ** -0.5
    points = prepare(torch.randn(count, dim, generator=generator) * scales, seed=0)
    taken = seconds(lambda: spectral_errors(points, DEFAULT_LOG_SNR))
    square = torch.randn(2048, 2048, generator=generator)
    rate = 2 * 2048**3 / sorted(seconds(lambda: square @ square) for _ in range(5))[2]
    covariance = torch.cov(points.rows(slice(0, dim + dim // 4)).T)
    eigenvectors = 2 * seconds(lambda: torch.linalg.eigh(covariance))
    products = (2 * count * dim**2 + count * dim**2) / rate
    return {
        "points": count,
        "dim": dim,
        "seconds": taken,
        "floor_products": products,
        "floor_eigenvectors": eigenvectors,
        "floor_fraction": (products + eigenvectors) / taken,
        "float32_gflops": rate / 1e9,
    }


def extra_mib(shape: tuple[int, ...]) -> int:
    """Peak of the memory beyond 64 points of this shape, in a process of its own."""
    words = [sys.executable, __file__, "--memory", *map(str, shape)]
    return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def memory(shape: tuple[int, ...]) -> int:
    points = prepare(torch.randn(64, *shape, generator=torch.Generator().manual_seed(0)), seed=0)
    with open("/proc/self/statm") as file:
        before = int(file.read().split()[1]) * resource.getpagesize() // 1024
    spectral_errors(points, DEFAULT_LOG_SNR)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024


def gain(images: Tensor, count: int) -> dict[str, list[float]]:
    """The bounds of some images by log-SNR: the least of the covariance's, and of the stationary ones."""
    points: Points = prepare(images[:count], seed=0)
    curves = [
        average(points, by_fold(points, estimate)).mean for estimate in spectral_errors(points, LOG_SNR)
    ]
    dense = torch.stack(curves[: len(SHRINKAGES)]).amin(0)
    stationary = torch.stack(curves[len(SHRINKAGES) :]).amin(0)
    return {
        "covariance": dense.tolist(),
        "stationary": stationary.tolist(),
        "ratio": (dense / stationary).tolist(),
    }


def fashion() -> Tensor:
    data = load(DataConfig("idx", "/usr/share/datasets/fashion-mnist", limit=max(FEW)))
    mixed = np.random.default_rng(0).permutation(len(data.images))
    return torch.from_numpy(data.images[mixed].astype(np.float32)) / 127.5 - 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory"]:
        print(memory(tuple(int(size) for size in sys.argv[2:])))
        raise SystemExit
    times = [timed(*size) for size in SIZES]
    extra = {"x".join(map(str, shape)): extra_mib(shape) for shape in LATENTS}
    images = fashion()
    gains = {str(count): gain(images, count) for count in FEW}
    figures = {f"spectral_{each['dim']:.0f}_seconds": each["seconds"] for each in times}
    figures |= {f"spectral_{each['dim']:.0f}_floor_fraction": each["floor_fraction"] for each in times}
    figures |= {f"spectral_extra_mib_{shape}": float(mib) for shape, mib in extra.items()}
    figures |= {f"spectral_stationary_gain_{count}": max(each["ratio"]) for count, each in gains.items()}
    result = {"log_snr": LOG_SNR.tolist(), "times": times, "extra_mib": extra, "fashion_mnist": gains}
    finish("spectral", result, figures)
