"""A bracket at the size of a real data set: M = 50,000, d = 4,096, 64 log-SNRs, standard errors of 1%.

The floor is what the chosen form cannot do without, at this machine's own rates measured in the same run:
products with all references for leave-one-out, the in-sample products, inner products, the linear denoiser's
products and eigenvectors, and one exponential for each weight.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

import torch
from ending import QUICK, finish

from flowtempo.variance import Bracket, measure

POINTS, DIM, GRID = (3000, 128, 16) if QUICK else (50_000, 4096, 64)
TARGET = 0.01


def rate(function: Callable[[], object], amount: float) -> float:
    function()
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return amount / sorted(seconds)[2]


def floor(bracket: Bracket, rates: dict[str, float], eigenvectors: float) -> dict[str, float]:
    """Seconds that each part cannot do without."""
    inside, outside = bracket.candidates[0].counts, bracket.candidates[1].counts
    noises, pairs = inside["noises"], outside["noises"]
    weights = outside["evaluations"] * pairs * POINTS
    # Each block has noises of its own in every round of queries, which double from 64.
    rounds = max(inside["queries"] // 64, 1).bit_length()
    vectors = outside["queries"] * (1 + pairs) + inside["queries"] + rounds * 32 * noises
    return {
        "leave-one-out products": 2 * weights * DIM / rates["float32"],
        "leave-one-out exponentials": weights / rates["exponentials"],
        "in-sample products": 8 * inside["evaluations"] * noises * POINTS / rates["float32"],
        "in-sample exponentials": inside["evaluations"] * POINTS / rates["exponentials"],
        "inner products": 2 * vectors * POINTS * DIM / rates["float64"],
        # Half of the scatter matrix, which is symmetric, and every point along every direction.
        "linear denoiser products": 3 * POINTS * DIM**2 / rates["float32"],
        "linear denoiser eigenvectors": 2 * eigenvectors,
    }


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    generator = torch.Generator().manual_seed(0)
    # Images' spectra fall like this; a mixture of 10 makes the posterior no Gaussian.
    spectrum = (1 + torch.arange(DIM)) ** -1.0
    spectrum /= spectrum.mean()
    centres = torch.randn(10, DIM, generator=generator) * spectrum.sqrt()
    x = torch.empty(POINTS, DIM)
    for part in torch.split(torch.arange(POINTS), 5000):
        kind = torch.randint(0, 10, (len(part),), generator=generator)
        x[part] = 0.5 * centres[kind]
        x[part] += torch.randn(len(part), DIM, generator=generator) * spectrum.sqrt()
    n = 512 if QUICK else 2048
    a = torch.randn(n, n)
    b = a.double()
    rates = {
        "float32": rate(lambda: a @ a, 2 * n**3),
        "float64": rate(lambda: b @ b, 2 * n**3),
        "exponentials": rate(lambda: a.exp(), n * n),
    }
    print({key: f"{value / 1e9:.1f} G/s" for key, value in rates.items()}, flush=True)
    # Equal to the eigenvectors of a half's covariance, which the linear denoiser takes for both halves.
    square = torch.randn(DIM, 2 * DIM)
    square = square @ square.T
    start = time.perf_counter()
    torch.linalg.eigh(square)
    eigenvectors = time.perf_counter() - start
    del square
    print(f"eigenvectors of a {DIM} x {DIM} matrix: {eigenvectors:.1f} s", flush=True)

    before = peak_gib()
    start = time.perf_counter()
    bracket = measure(x, log_snr=torch.linspace(-14, 14, GRID), target_stderr=TARGET)
    seconds = time.perf_counter() - start
    extra = peak_gib() - before
    print(f"bracket: {seconds:.0f} s, {extra:.2f} GiB beyond the data")
    lower, upper = bracket.lower, bracket.upper
    shape = upper.second_moment / (1 + upper.second_moment * upper.log_snr.exp())
    parts = floor(bracket, rates, eigenvectors)
    figures = {
        "bracket_50k_floor_fraction": sum(parts.values()) / seconds,
        "bracket_50k_extra_gib": extra,
        "bracket_50k_seconds": seconds,
    }
    result = {
        "points": POINTS,
        "dim": DIM,
        "grid": GRID,
        "target_stderr": TARGET,
        "largest_stderr": {
            "lower": float((lower.stderr / lower.second_moment).max()),
            "upper": float((upper.stderr / upper.second_moment).max()),
            "upper_relative_to_shape": float((upper.stderr / shape).max()),
        },
        "queries": {"lower": lower.counts, "upper": upper.counts},
        "rates": rates,
        "floor_seconds": parts,
        "eigenvectors_seconds": eigenvectors,
    }
    finish("scale", result, figures)
