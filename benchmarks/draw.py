"""What a draw of 256 stratified times costs, beside LightningDiT's way (SciPy) and diffusers' function.

    make bench-draw

One thread; everything is measured in turn, many times over, in one run; the median of the repeats' means is
kept, and the least. The floor is measured too: 512 words of Philox and one sort of 256 numbers, without which
there is no counter-based stratified draw; beside it one polynomial for each value. The peers' draws are
independent: neither stratified nor the same on every process.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
import timeit
from collections.abc import Callable
from pathlib import Path

import torch

from flowtempo.densities import Tabulated, Uniform, parse
from flowtempo.files import atomic_write
from flowtempo.randomness import permutation_rows, uniform_rows
from flowtempo.timesteps import Proposal

BATCH = 256
REPEATS, CALLS = 15, 64
QUICK = [
    "uniform",
    "logit_normal(0, 1)",
    "cosmap",
    "edm(-1.2, 1.2)",
    "shifted(uniform, 3)",
    "shifted(logit_normal(0, 1), 3)",
    "mixture(logit_normal(0, 1), 0.1)",
    "mixture(cosmap, 0.1)",
]
OTHER = [
    "mode(1.29)",
    "beta(2, 5)",
    "speed(5, ddpm_linear)",
    "piecewise([0, 0.2, 1], [1, 2])",
    "blend(logit_normal(-1, 0.5), logit_normal(1, 0.5), 0.3)",
    "truncated(logit_normal(0, 1), 0.1, 0.9)",
    "power(logit_normal(0, 1), 2)",
    "edm(-0.4, 1, variance_preserving)",
]


def drawing(proposal: Proposal) -> Callable[[], object]:
    """Draws the times of one step after another."""
    steps = iter(range(1 << 40))
    return lambda: proposal.draw(BATCH, step=next(steps), seed=0)


def cases() -> dict[str, Callable[[], object]]:
    """Everything that is measured, by name; what is missing is said and left out."""
    t = torch.linspace(0, 1, 65)
    table = Tabulated(t, 1 / (t**2 + 0.01))
    named = {"table": table, **{text: parse(text) for text in [*QUICK, *OTHER]}}
    found: dict[str, Callable[[], object]] = {}
    for name, density in named.items():
        found[name] = drawing(Proposal(density, spacing="stratified"))
        if density != Uniform() and not density.gaps():
            found[f"{name}, weighted"] = drawing(Proposal(Uniform(), density, "stratified"))
    peers = os.environ.get("FLOWTEMPO_PEERS")
    if peers is None or not (Path(peers) / "LightningDiT").is_dir():
        print("FIGURE draw_vs_scipy skipped (no LightningDiT under FLOWTEMPO_PEERS)")
    else:
        sys.path.insert(0, str(Path(peers) / "LightningDiT"))
        transport = importlib.import_module("transport").create_transport(use_lognorm=True)
        found["scipy"] = lambda: transport.sample_logit_normal(0, 1, size=BATCH)
    try:
        draw = importlib.import_module("diffusers.training_utils").compute_density_for_timestep_sampling
        found["diffusers"] = lambda: draw("logit_normal", BATCH, logit_mean=0.0, logit_std=1.0)
    except ImportError:
        print("FIGURE draw_vs_diffusers skipped (diffusers is not installed)")
    found["floor"] = floor
    return found


def floor() -> object:
    """Uniforms and a permutation of one step."""
    step = range(7, 8)
    return uniform_rows(0, "floor", step, BATCH), permutation_rows(0, "floor", step, BATCH)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/draw.json"))
    output = parser.parse_args().output
    torch.set_num_threads(1)
    calls = cases()
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    before = os.getloadavg()[0]
    for _ in range(REPEATS):
        for name, call in calls.items():
            times[name].append(timeit.timeit(call, number=CALLS) / CALLS * 1e6)
    rows = {name: {"median_us": statistics.median(v), "least_us": min(v)} for name, v in times.items()}
    for name, row in rows.items():
        print(f"{name:66} median {row['median_us']:7.1f} us, least {row['least_us']:7.1f} us")

    def worst(names: list[str], key: str) -> float:
        return max(rows[n + w][key] for n in names for w in ("", ", weighted") if n + w in rows)

    least = rows["floor"]["median_us"]
    own = rows["logit_normal(0, 1)"]["median_us"]
    figures = {
        "draw_256_us": worst([*QUICK, "table"], "median_us"),
        "draw_256_us_least": worst([*QUICK, "table"], "least_us"),
        "draw_256_other_us": worst(OTHER, "median_us"),
        "draw_floor_us": least,
        "draw_over_floor": worst([*QUICK, "table"], "median_us") / least,
    }
    for peer in ("scipy", "diffusers"):
        if peer in rows:
            figures[f"draw_vs_{peer}"] = rows[peer]["median_us"] / own
    record = {"batch": BATCH, "load": [before, os.getloadavg()[0]], "rows": rows, "figures": figures}
    with atomic_write(output) as file:
        file.write(json.dumps(record, indent=1) + "\n")
    print(f"load average {before:.1f} before: above 1 other work shared the cores")
    for name, value in figures.items():
        print(f"FIGURE {name} {value:.4g}")


if __name__ == "__main__":
    main()
