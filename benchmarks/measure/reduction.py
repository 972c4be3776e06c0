"""How much each way to reduce the variance helps: shared noises, antithetic noises, the linear control.

Ratios of variances, plain over reduced (more than 1 is a gain), on Gaussian data with a power-law spectrum.
"""

from __future__ import annotations

import torch
from ending import QUICK, finish
from torch import Tensor

from flowtempo.variance.bracket import _controlled
from flowtempo.variance.estimate import average, everywhere
from flowtempo.variance.factorised import in_sample_estimate
from flowtempo.variance.held_out import leave_one_out_estimate
from flowtempo.variance.linear import spectral_errors
from flowtempo.variance.points import prepare

REPETITIONS = 10 if QUICK else 200
LOG_SNR = torch.tensor([-8.0, -6, -4, -3, -2, -1, 0, 1, 2], dtype=torch.float64)
ESTIMATORS = {"in-sample": in_sample_estimate, "leave-one-out": leave_one_out_estimate}


def data(count: int, dim: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    spectrum = (1 + torch.arange(dim)) ** -1.0
    return torch.randn(count, dim, generator=generator) * (spectrum / spectrum.mean()).sqrt()


def antithetic(name: str) -> list[float]:
    """The same data throughout: 8 independent noises against 4 and their negatives."""
    points = prepare(data(400, 64, 0), seed=0)
    generator = torch.Generator().manual_seed(1)
    plain, mirrored = [], []
    for _ in range(REPETITIONS):
        noises = torch.randn(8, 64, generator=generator, dtype=torch.float64)
        half = noises[:4]
        for found, used in ((plain, noises), (mirrored, torch.cat([half, -half]))):
            found.append(ESTIMATORS[name](points, 64, LOG_SNR, used, seed=0).value.mean(0))
    return (torch.stack(plain).var(0) / torch.stack(mirrored).var(0)).tolist()


def control(name: str) -> list[float]:
    """New data each time: 64 queries of 2,000 points, with and without the linear denoiser's known error."""
    plain, controlled = [], []
    for seed in range(max(3, REPETITIONS // 8)):
        points = prepare(data(2000, 64, seed), seed=seed)
        estimate = ESTIMATORS[name](points, 64, LOG_SNR, 1, seed=seed)
        linear = spectral_errors(points, LOG_SNR)[0]
        plain.append(estimate.over(points, everywhere(points)).stderr.square())
        controlled.append(average(points, _controlled(points, estimate, linear)).stderr.square())
    return (torch.stack(plain).mean(0) / torch.stack(controlled).mean(0)).tolist()


def common(name: str) -> list[float]:
    """Variance of the step between neighbours on a grid of 0.25, noises of each against the same for both."""
    grid = torch.stack([LOG_SNR, LOG_SNR + 0.25], 1).flatten()
    points = prepare(data(400, 64, 0), seed=0)
    generator = torch.Generator().manual_seed(2)
    found = []
    for _ in range(REPETITIONS):
        noises = torch.randn(8, 64, generator=generator, dtype=torch.float64)
        found.append(ESTIMATORS[name](points, 64, grid, noises, seed=0).value.mean(0))
    curve = torch.stack(found).unflatten(1, (-1, 2))
    return (curve.var(0).sum(1) / (curve[..., 1] - curve[..., 0]).var(0)).tolist()


if __name__ == "__main__":
    result = {
        kind: {name: function(name) for name in ESTIMATORS}
        for kind, function in (
            ("antithetic noises", antithetic),
            ("common noises over log-SNR, for differences", common),
            ("linear control", control),
        )
    }
    figures = {}
    for kind, ratios in result.items():
        for name, row in ratios.items():
            print(f"{kind}, {name}: " + ", ".join(f"{value:.2f}" for value in row))
            figures[f"{kind.split()[0]}_{name}_median"] = float(torch.tensor(row).median())
    finish("reduction", {"log_snr": LOG_SNR.tolist(), "repetitions": REPETITIONS, "gain": result}, figures)
