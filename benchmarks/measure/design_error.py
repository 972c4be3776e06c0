"""How far the designed density is from the true one, by number of data points and of noises.

Rule `paper` on the linear path, without a floor, for data whose least mean squared error is known:
Gaussians with a power-law spectrum in 16 and 256 dimensions, and a mixture of two Gaussians. The error
is the Wasserstein-1 distance in t. It is measured for the published in-sample estimate at M points and K
noises that all points share, and for both edges of the bracket of the same points, whose noises (16 for
each block of points) are not K. Seeds 0 to 4: fresh data and noises for each.

Up to 200 points the in-sample estimate is the published expression with all points as queries. Above,
where that takes minutes, it is the tower form of it, which has the same expectation, with 200 queries;
the bracket takes at most 512. Gaussian data favours the upper edge, whose linear denoiser is then the best
one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
import torch
from common import print_table
from ending import QUICK, RESULTS, finish
from torch import Tensor

from flowtempo.densities import Density
from flowtempo.design import design
from flowtempo.report import style
from flowtempo.variance import VarianceProfile, in_sample, measure

POINTS, NOISES, SEEDS = ((50, 100), (10, 50), 2) if QUICK else ((50, 200, 1000, 5000), (10, 100, 500), 5)
LOG_SNR = torch.linspace(-10, 10, 9 if QUICK else 21, dtype=torch.float64)
FINE = torch.linspace(-14, 14, 561, dtype=torch.float64)
PUBLISHED_UP_TO, QUERIES, BRACKET_QUERIES = 200, 200, 512


@dataclass(frozen=True)
class Gaussian:
    """N(0, diag(k^-1.5))."""

    dim: int

    @property
    def values(self) -> Tensor:
        return (1 + torch.arange(self.dim, dtype=torch.float64)) ** -1.5

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.randn(count, self.dim, generator=generator) * self.values.sqrt().float()

    def mmse(self, log_snr: Tensor) -> Tensor:
        """Per dimension: the mean of v / (1 + SNR v)."""
        return (self.values / (1 + log_snr.exp()[:, None] * self.values)).mean(1)

    @property
    def second_moment(self) -> float:
        return float(self.values.mean())


@dataclass(frozen=True)
class Mixture:
    """Two equal Gaussians N(+-c e1, s^2 I)."""

    dim: int
    centre: float = 2.0
    std: float = 0.3

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        x = self.std * torch.randn(count, self.dim, generator=generator)
        x[:, 0] += self.centre * (2 * torch.randint(0, 2, (count,), generator=generator) - 1)
        return x

    def mmse(self, log_snr: Tensor) -> Tensor:
        """Per dimension.

        Noise of variance n = 1 / SNR leaves s^2 n / (s^2 + n) in each direction. Along e1 the doubt between
        the two centres adds (c n / (s^2 + n))^2 E[1 - tanh(c z / (s^2 + n))^2] with z = c + N(0, s^2 + n).
        """
        nodes, weights = (torch.from_numpy(each) for each in np.polynomial.hermite_e.hermegauss(301))
        noise = (-log_snr).exp()
        spread = self.std**2 + noise
        rest = self.std**2 * noise / spread
        z = self.centre + spread.sqrt()[:, None] * nodes
        doubt = 1 - torch.tanh(self.centre * z / spread[:, None]) ** 2 @ weights / math.sqrt(2 * math.pi)
        return rest + (self.centre * noise / spread) ** 2 * doubt / self.dim

    @property
    def second_moment(self) -> float:
        return self.std**2 + self.centre**2 / self.dim


DATA: dict[str, Gaussian | Mixture] = {
    "gaussian_16": Gaussian(16),
    "gaussian_256": Gaussian(256),
    "mixture_16": Mixture(16),
}


def designed(profile: VarianceProfile) -> Density:
    return design(profile, rule="paper", floor=0, resamples=0).density


def distance(first: Density, second: Density) -> float:
    """Wasserstein-1 in t: the area between the CDFs."""
    t = (torch.arange(4096, dtype=torch.float64) + 0.5) / 4096
    return float((first.cdf(t) - second.cdf(t)).abs().mean())


def truth(data: Gaussian | Mixture, log_snr: Tensor) -> Density:
    mean = data.mmse(log_snr)
    return designed(
        VarianceProfile(
            quantity="posterior_variance",
            method="closed form",
            bound="estimate",
            log_snr=log_snr,
            mean=mean,
            stderr=torch.zeros_like(mean),
            dim=data.dim,
            second_moment=data.second_moment,
        )
    )


def published(x: Tensor, noises: int, generator: torch.Generator) -> VarianceProfile:
    e = torch.randn(noises, x.shape[1], generator=generator)
    if len(x) <= PUBLISHED_UP_TO:
        return in_sample(x, LOG_SNR, e, form="quadratic")
    return in_sample(x, LOG_SNR, e, form="tower", queries=min(len(x), QUERIES))


def errors(data: Gaussian | Mixture, points: int, seed: int, true: Density) -> dict[str, float]:
    generator = torch.Generator().manual_seed(seed)
    x = data.draw(points, generator)
    bracket = measure(x, log_snr=LOG_SNR, queries=min(points, BRACKET_QUERIES), seed=seed)
    found = {f"published, K = {noises}": published(x, noises, generator) for noises in NOISES}
    found |= {"lower edge": bracket.lower, "upper edge": bracket.upper}
    return {name: distance(designed(profile), true) for name, profile in found.items()}


def plot(rows: list[dict[str, object]]) -> None:
    with style.styled():
        figure = style.new_figure(9.6, 3.3)
        panels = figure.subplots(1, len(DATA), sharey=True)
        for axes, name in zip(panels, DATA, strict=True):
            for index, estimator in enumerate(dict.fromkeys(row["estimator"] for row in rows)):
                of = [row for row in rows if row["data"] == name and row["estimator"] == estimator]
                axes.errorbar(
                    [row["points"] for row in of],
                    [row["error"] for row in of],
                    [row["stderr"] for row in of],
                    label=estimator,
                    marker=style.marker(index),
                    **style.line(index),
                )
            axes.set_xscale("log")
            axes.set_xticks(POINTS, [f"{points:,}" for points in POINTS])
            axes.minorticks_off()
            style.scale_to(axes, [float(row["error"]) for row in rows])  # type: ignore[arg-type]
            axes.set_title(name.replace("_", ", d = "), fontsize=10)
            axes.set_xlabel("points M")
        panels[0].set_ylabel("error of the density (Wasserstein-1 in t)")
        style.legend(figure, panels[0], columns=5)
        style.to_png(figure, RESULTS / "measure_design_error.png")


if __name__ == "__main__":
    print(f"Error of the designed density over M and K, {SEEDS} seeds; mean ± standard error", flush=True)
    rows: list[dict[str, object]] = []
    table: list[list[str]] = []
    for name, data in DATA.items():
        true = truth(data, FINE)
        grid_alone = distance(truth(data, LOG_SNR), true)
        print(f"{name}: the truth at the {len(LOG_SNR)} log-SNRs alone is {grid_alone:.1e} away", flush=True)
        for points in POINTS:
            measured = [errors(data, points, seed, true) for seed in range(SEEDS)]
            cells = []
            for estimator in measured[0]:
                values = [each[estimator] for each in measured]
                error, stderr = fmean(values), stdev(values) / math.sqrt(SEEDS)
                row = {"data": name, "points": points, "estimator": estimator, "error": error}
                rows.append(row | {"stderr": stderr})
                cells.append(f"{error:.4f} ± {stderr:.4f}")
            table.append([f"{name}, M = {points}", *cells])
            print(f"  M = {points} done", flush=True)
    print_table(["data", *measured[0]], table)
    if not QUICK:
        plot(rows)
    figures = {
        f"design_error_{row['data']}_m{row['points']}_{key}": float(row["error"])  # type: ignore[arg-type]
        for row in rows
        for key, estimator in (
            ("published", f"published, K = {NOISES[-1]}"),
            ("lower", "lower edge"),
            ("upper", "upper edge"),
        )
        if row["points"] in (200, POINTS[-1]) and row["estimator"] == estimator
    }
    setting = {
        "rule": "paper",
        "interpolant": "linear",
        "prediction": "velocity",
        "floor": 0,
        "log_snr": LOG_SNR.tolist(),
        "seeds": list(range(SEEDS)),
        "published_form_up_to": PUBLISHED_UP_TO,
        "queries": {"in_sample": QUERIES, "bracket": BRACKET_QUERIES},
    }
    finish("design_error", {"setting": setting, "rows": rows}, figures)
