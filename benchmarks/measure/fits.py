"""The logit-normal nearest to the designed density, by interpolant, data set and dimension.

Rule `paper`, floor 0.05, from both edges of the bracket, each image size in full and with 2x2 pixels
averaged; and on the linear path from the gradient variance of a small model (micro, 400 steps, uniform
times, seed 0) on 128 test images. The variance-preserving path ends at t = 0.999, where its velocity is
still finite. Fashion-MNIST is 10,000 of its images, chosen at random, to keep the run short; the target
standard error is 1%.
"""

from __future__ import annotations

import torch
from common import PICTURES, halved, pictures, print_table, probed, trained
from ending import QUICK, finish

from flowtempo.data import ArrayData
from flowtempo.design import Design, design
from flowtempo.interpolants import interpolant
from flowtempo.variance import Bracket, measure
from flowtempo.variance.probe import probe_times

LIMIT = 300 if QUICK else 10_000
HIGH = {"linear": 1.0, "trigonometric": 1.0, "variance_preserving": 0.999}
STEPS, IMAGES = (4, 8) if QUICK else (400, 128)
PATCH = {8: 2, 28: 4, 32: 4}


def row(source: str, designed: Design) -> dict[str, object]:
    fit = designed.fit
    return {
        "interpolant": designed.interpolant,
        "from": source,
        "mean": fit.mean,
        "mean_stderr": fit.mean_stderr,
        "std": fit.std,
        "std_stderr": fit.std_stderr,
        "distance": fit.distance,
        "collapsed_mass": None if designed.collapsed is None else designed.collapsed.mass,
    }


def from_bracket(bracket: Bracket) -> list[dict[str, object]]:
    return [
        row(f"{edge} edge", design(bracket, interpolant(name), edge=edge, high=high, resamples=50))
        for name, high in HIGH.items()
        for edge in ("upper", "lower")
    ]


def from_gradients(data: ArrayData, held_out: ArrayData) -> list[dict[str, object]]:
    size = f"micro/{PATCH[data.shape[1]]}"
    for _, model in trained(data, size, [STEPS], seed=0):
        probe = probed(model, held_out, IMAGES, probe_times(17), seed=0)
        return [row("gradient variance", design(probe, rule="paper", resamples=50))]
    return []


def described(value: object) -> str:
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    rows: list[dict[str, object]] = []
    for name in PICTURES:
        data, held_out = pictures(name, limit=LIMIT), pictures(name, "test")
        if data is None or held_out is None:
            rows.append({"data": name, "from": "skipped"})
            continue
        for version in (data, halved(data)):
            bracket = measure(version, target_stderr=0.01)
            found = from_bracket(bracket)
            if version is data:
                found += from_gradients(data, held_out)
            dim = torch.tensor(version.shape).prod().item()
            rows += [{"data": name, "count": len(version), "dim": dim, **each} for each in found]
            print(f"{version.name}: done", flush=True)
    columns = ("data", "dim", "interpolant", "from", "mean", "mean_stderr", "std", "std_stderr", "distance")
    print_table(columns, [[described(each.get(column)) for column in columns] for each in rows])
    upper = [
        float(each["mean"])  # type: ignore[arg-type]
        for each in rows
        if each["from"] == "upper edge" and each["interpolant"] == "linear"
    ]
    finish(
        "fits",
        {"rows": rows, "seed": 0},
        {"fits_linear_upper_mean_least": min(upper), "fits_linear_upper_mean_most": max(upper)},
    )
