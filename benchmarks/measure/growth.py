"""How the time of a measurement grows with M, K, d and the number of log-SNRs."""

from __future__ import annotations

import time

import torch
from ending import QUICK, RESULTS, finish
from matplotlib import pyplot

from flowtempo.variance import in_sample, leave_one_out, spectral

SHRINK = 8 if QUICK else 1
BASE = {"M": 4000 // SHRINK, "K": 16, "d": 512, "L": 16}
SWEEPS = {
    "M": [1000 // SHRINK, 2000 // SHRINK, 4000 // SHRINK, 8000 // SHRINK, 16000 // SHRINK],
    "K": [4, 8, 16, 32, 64],
    "d": [128, 256, 512, 1024, 2048],
    "L": [4, 8, 16, 32, 64],
}
QUERIES = 64


def seconds(estimator: str, **size: int) -> float:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size["M"], size["d"], generator=generator)
    # Where the posterior is neither the prior nor collapsed.
    log_snr = torch.linspace(-6, -2, size["L"]) - 0.5 * torch.tensor(size["d"] / 512.0).log()
    start = time.perf_counter()
    if estimator == "in-sample":
        in_sample(x, log_snr, size["K"], queries=QUERIES)
    elif estimator == "leave-one-out":
        leave_one_out(x, log_snr, size["K"], queries=QUERIES)
    else:
        spectral(x, log_snr)
    return time.perf_counter() - start


if __name__ == "__main__":
    measured: dict[str, dict[str, list[float]]] = {}
    for estimator in ("in-sample", "leave-one-out", "spectral"):
        measured[estimator] = {
            axis: [seconds(estimator, **{**BASE, axis: value}) for value in values]
            for axis, values in SWEEPS.items()
            if estimator != "spectral" or axis != "K"
        }
    figure, axes = pyplot.subplots(1, 4, figsize=(13, 3.4), sharey=True, layout="constrained")
    exponents = {}
    for axis, panel in zip(SWEEPS, axes, strict=True):
        for estimator, sweeps in measured.items():
            if axis in sweeps:
                panel.loglog(SWEEPS[axis], sweeps[axis], "o-", label=estimator)
                last = torch.tensor([SWEEPS[axis][-3:], sweeps[axis][-3:]]).double().log()
                exponents[f"{estimator} {axis}"] = float(
                    (last[1, -1] - last[1, 0]) / (last[0, -1] - last[0, 0])
                )
        panel.set_xlabel(
            {"M": "data points M", "K": "noises K", "d": "dimensions d", "L": "log-SNRs L"}[axis]
        )
    axes[0].set_ylabel("seconds")
    axes[0].legend()
    figure.suptitle(
        f"{QUERIES} queries; elsewhere M = {BASE['M']:,}, K = {BASE['K']}, d = {BASE['d']}, L = {BASE['L']}"
    )
    if not QUICK:
        figure.savefig(RESULTS / "measure_growth.png", dpi=110)
    for name, value in exponents.items():
        print(f"{name}: time grows as its power {value:.2f}")
    result = {"base": BASE, "sweeps": SWEEPS, "queries": QUERIES, "seconds": measured, "exponents": exponents}
    finish("growth", result, {"growth_largest_exponent": max(exponents.values())})
