"""How the time of a measurement grows with M, K, d and the number of log-SNRs."""

from __future__ import annotations

import math
import time

import torch
from ending import QUICK, RESULTS, finish

from flowtempo.report import style
from flowtempo.variance import in_sample, leave_one_out, spectral

SHRINK = 8 if QUICK else 1
BASE = {"M": 4000 // SHRINK, "K": 16, "d": 512, "L": 16}
SWEEPS = {
    "M": [1000 // SHRINK, 2000 // SHRINK, 4000 // SHRINK, 8000 // SHRINK, 16000 // SHRINK],
    "K": [4, 8, 16, 32, 64],
    "d": [128, 256, 512, 1024, 2048],
    "L": [4, 8, 16, 32, 64],
}
NAMES = {"M": "data points M", "K": "noises K", "d": "dimensions d", "L": "log-SNRs L"}
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


def exponent(sizes: list[int], taken: list[float]) -> float:
    """Slope between the first and the last in logarithms."""
    return math.log(taken[-1] / taken[0]) / math.log(sizes[-1] / sizes[0])


def draw(measured: dict[str, dict[str, list[float]]]) -> None:
    with style.styled():
        figure = style.new_figure(11, 3.4)
        axes = figure.subplots(1, len(SWEEPS), sharey=True)
        for axis, panel in zip(SWEEPS, axes, strict=True):
            for index, (estimator, sweeps) in enumerate(measured.items()):
                if axis in sweeps:
                    look = {"marker": style.marker(index), **style.line(index)}
                    panel.plot(SWEEPS[axis], sweeps[axis], label=estimator, **look)
            panel.set_xscale("log")
            panel.set_xticks(SWEEPS[axis], [f"{size:,}" for size in SWEEPS[axis]])
            panel.minorticks_off()
            panel.set_xlabel(NAMES[axis])
        axes[0].set_yscale("log")
        axes[0].set_yticks([0.1, 1, 10], ["0.1", "1", "10"])
        axes[0].set_ylabel("seconds")
        style.legend(figure, axes[0], columns=3)
        style.to_png(figure, RESULTS / "measure_growth.png")


if __name__ == "__main__":
    measured: dict[str, dict[str, list[float]]] = {}
    for estimator in ("in-sample", "leave-one-out", "spectral"):
        measured[estimator] = {
            axis: [seconds(estimator, **{**BASE, axis: value}) for value in values]
            for axis, values in SWEEPS.items()
            if estimator != "spectral" or axis != "K"
        }
    exponents = {
        f"{estimator} {axis}": exponent(SWEEPS[axis][-3:], taken[-3:])
        for estimator, sweeps in measured.items()
        for axis, taken in sweeps.items()
    }
    if not QUICK:
        draw(measured)
    for name, value in exponents.items():
        print(f"{name}: time grows as its power {value:.2f}")
    result = {"base": BASE, "sweeps": SWEEPS, "queries": QUERIES, "seconds": measured, "exponents": exponents}
    finish("growth", result, {"growth_largest_exponent": max(exponents.values())})
