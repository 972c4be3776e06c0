"""The paper's curve: M = 200 data, K = 500 noises, d = 4,096, 131 times on the linear path.

Three ways on the same cores and the same noises: the published formula evaluated directly (for each noise
a `cdist`, a softmax and a product), our quadratic form, and our tower form, these two with standard errors.
The direct evaluation is timed at every 16th time and scaled to 131, for it costs the same at each.
"""

from __future__ import annotations

import time

import torch
from ending import QUICK, finish
from torch import Tensor

from flowtempo.interpolants import interpolant
from flowtempo.variance import VarianceProfile, in_sample

POINTS, NOISES, DIM, TIMES, EVERY = (50, 60, 256, 131, 43) if QUICK else (200, 500, 4096, 131, 16)


def direct(x: Tensor, noises: Tensor, log_snr: float) -> float:
    """E|x|^2/d - S with S = mean |D(x_i + e_l / r)|^2/d, as published."""
    r = torch.tensor(log_snr / 2).exp().item()
    total = 0.0
    for noise in noises:
        z = x + noise / r
        weight = (torch.cdist(z, x).square() * (-(r**2) / 2)).softmax(1)
        total += float((weight @ x).square().sum())
    return float(x.square().mean()) - total / (len(x) * len(noises) * x.shape[1])


def timed(x: Tensor, log_snr: Tensor, noises: Tensor, form: str) -> tuple[VarianceProfile, float]:
    seconds, profile = [], None
    for _ in range(5 if form == "tower" else 1):
        start = time.perf_counter()
        profile = in_sample(x, log_snr, noises, form=form)  # type: ignore[arg-type]
        seconds.append(time.perf_counter() - start)
    assert profile is not None
    return profile, sorted(seconds)[len(seconds) // 2]


if __name__ == "__main__":
    generator = torch.Generator().manual_seed(0)
    spectrum = (1 + torch.arange(DIM)) ** -1.0
    x = torch.randn(POINTS, DIM, generator=generator) * (spectrum / spectrum.mean()).sqrt()
    noises = torch.randn(NOISES, DIM, generator=generator)
    times = torch.linspace(0, 1, TIMES + 2, dtype=torch.float64)[1:-1]
    log_snr = interpolant("linear").log_snr(times)

    tower, tower_seconds = timed(x, log_snr, noises, "tower")
    print(f"tower form with standard errors: {tower_seconds:.3f} s for the curve", flush=True)
    quadratic, quadratic_seconds = timed(x, log_snr, noises, "quadratic")
    print(f"quadratic form with standard errors: {quadratic_seconds:.2f} s for the curve", flush=True)
    chosen = range(0, TIMES, EVERY)
    start = time.perf_counter()
    published = torch.tensor([direct(x, noises, float(log_snr[index])) for index in chosen]).double()
    direct_seconds = (time.perf_counter() - start) * TIMES / len(chosen)
    print(f"direct evaluation: {direct_seconds:.0f} s for the curve, from {len(chosen)} of its times")

    power = quadratic.second_moment
    apart = float((quadratic.mean[list(chosen)] - published.clamp(min=0)).abs().max()) / power
    alive = tower.mean > 1e-3 * power
    precision = (quadratic.stderr[alive] / tower.stderr[alive]).square()
    figures = {
        "quadratic_speedup": direct_seconds / quadratic_seconds,
        "tower_speedup": direct_seconds / tower_seconds,
        "equal_stderr_speedup": direct_seconds / tower_seconds * float(precision.median()),
        "tower_seconds": tower_seconds,
        "quadratic_difference": apart,
    }
    low, _ = tower.collapsed or (float("nan"), None)
    collapsed_from = float(interpolant("linear").time(torch.tensor([low], dtype=torch.float64)))
    result = {
        "points": POINTS,
        "noises": NOISES,
        "dim": DIM,
        "times": TIMES,
        "seed": 0,
        "direct_seconds": direct_seconds,
        "quadratic_seconds": quadratic_seconds,
        "collapsed_from_t": collapsed_from,
        "stderr_ratio_squared": {"min": float(precision.min()), "max": float(precision.max())},
    }
    print(f"the posterior has collapsed above t = {collapsed_from:.3f}")
    finish("paper", result, figures)
