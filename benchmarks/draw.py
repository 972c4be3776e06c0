"""What drawing the times of a step costs: 256, stratified, on one thread of the CPU.

Every density is drawn through a `Proposal`, with and without importance weights (then the target is uniform),
beside LightningDiT's way (its `Transport.sample_logit_normal`, from the checkout in
$FLOWTEMPO_PEERS/LightningDiT) and diffusers' `compute_density_for_timestep_sampling`, which both draw
independently and give no weights. All take turns, so that other work on the machine slows all of them alike;
medians of many rounds. The first draw of a proposal, which also prepares it, is timed apart.

    FLOWTEMPO_PEERS=FOLDER make bench-draw
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from flowtempo.densities import Density, Mixture, Shifted, Tabulated, Uniform, parse
from flowtempo.files import atomic_write
from flowtempo.timesteps import Proposal

RESULT = Path(__file__).parent / "results" / "draw.json"
QUICK = os.environ.get("FLOWTEMPO_BENCH_QUICK") == "1"
ROUNDS = 20 if QUICK else 2000
BATCH = 256
GRID = torch.linspace(0, 1, 65, dtype=torch.float64)

# The densities that are to take under 60 microseconds ...
FAST: dict[str, Density] = {
    text: parse(text)
    for text in (
        "uniform",
        "logit_normal(-0.75, 1)",
        "cosmap",
        "edm(-1.2, 1.2)",
        "edm(-1.2, 1.2, variance_preserving)",
        "shifted(uniform, 3)",
        "shifted(logit_normal(0, 1), 3)",
        "shifted(cosmap, 3)",
        "mixture(logit_normal(-0.75, 1), 0.1)",
        "mixture(cosmap, 0.1)",
        "mixture(edm(-1.2, 1.2), 0.1)",
        "mixture(shifted(logit_normal(0, 1), 3), 0.1)",
    )
}
_TABLE = Tabulated(GRID, 1 / (GRID**2 + (1 - GRID) ** 2 / 4))
FAST["a table of 65 points"] = _TABLE
FAST["shifted(table, 3)"] = Shifted(_TABLE, 3)
FAST["mixture(table, 0.1)"] = Mixture(_TABLE, 0.1)
# ... and those that may take 300.
OTHER: dict[str, Density] = {
    text: parse(text)
    for text in (
        "mode(1.29)",
        "beta(2, 5)",
        "piecewise([0, 0.2, 0.6, 1], [1, 2, 1])",
        "speed(5, ddpm_linear)",
        "truncated(logit_normal(0, 1), 0.1, 0.9)",
        "power(logit_normal(0, 1), 2)",
        "blend(beta(2, 5), logit_normal(0, 1), 0.5)",
        "truncated(shifted(mixture(logit_normal(0, 1), 0.1), 3), 0.02, 0.98)",
    )
}
Draw = Callable[[int], object]


def ours(density: Density, weighted: bool) -> Draw:
    """Draw from a density; weighted, for the uniform objective."""
    proposal = (
        Proposal(Uniform(), density, "stratified") if weighted else Proposal(density, None, "stratified")
    )
    return lambda step: proposal.draw(BATCH, step=step, seed=0)


def lightningdit() -> Draw | None:
    """LightningDiT's own function, or None and a line that says why not."""
    folder = Path(os.environ.get("FLOWTEMPO_PEERS", "")) / "LightningDiT"
    if "FLOWTEMPO_PEERS" not in os.environ or not folder.is_dir():
        print("LightningDiT: skipped (set FLOWTEMPO_PEERS to a folder that holds its checkout)", flush=True)
        return None
    sys.path.insert(0, str(folder))
    from transport import create_transport  # type: ignore[import-not-found]

    np.random.seed(0)  # noqa: NPY002 (what their code draws from)
    transport = create_transport("Linear", "velocity")
    return lambda step: transport.sample_logit_normal(0, 1, size=BATCH)


def diffusers() -> Draw | None:
    """diffusers' function, or None and a line that says why not."""
    try:
        from diffusers.training_utils import compute_density_for_timestep_sampling
    except ImportError as error:
        print(f"diffusers: skipped ({error})", flush=True)
        return None
    return lambda step: compute_density_for_timestep_sampling("logit_normal", BATCH, 0.0, 1.0)


def measured(draws: dict[str, Draw]) -> dict[str, dict[str, float]]:
    """Microseconds of the first draw, and the median and the least of the later ones."""
    first: dict[str, float] = {}
    for name, draw in draws.items():
        start = time.perf_counter()
        draw(0)
        first[name] = time.perf_counter() - start
    for name, draw in draws.items():
        for step in range(20):
            draw(step)
    seconds: dict[str, list[float]] = {name: [] for name in draws}
    for step in range(ROUNDS):
        for name, draw in draws.items():
            # Once for the caches: a step of training draws once, but is not followed by thirty others' code.
            draw(2 * step)
            start = time.perf_counter()
            draw(2 * step + 1)
            seconds[name].append(time.perf_counter() - start)
    return {
        name: {
            "first_us": first[name] * 1e6,
            "median_us": float(np.median(values)) * 1e6,
            "least_us": min(values) * 1e6,
        }
        for name, values in seconds.items()
    }


def main() -> None:
    torch.set_num_threads(1)
    draws: dict[str, Draw] = {}
    groups: dict[str, list[str]] = {"fast": [], "other": []}
    for group, densities in (("fast", FAST), ("other", OTHER)):
        for text, density in densities.items():
            for weighted in (False, True):
                if weighted and (density.gaps() or density == Uniform()):
                    continue
                name = f"{text}, weighted" if weighted else text
                draws[name] = ours(density, weighted)
                groups[group].append(name)
    peers = {"LightningDiT": lightningdit(), "diffusers": diffusers()}
    draws |= {name: draw for name, draw in peers.items() if draw is not None}

    load_before = os.getloadavg()[0]
    result = measured(draws)
    load = max(load_before, os.getloadavg()[0])
    for name, row in result.items():
        print(f"{name:70s} {row['median_us']:7.1f} us (least {row['least_us']:.1f})", flush=True)
    print(f"load average {load:.1f} on {os.cpu_count()} cores", flush=True)

    logit_normal = result["logit_normal(-0.75, 1)"]["median_us"]
    figures = {
        "draw_256_us": max(result[name]["median_us"] for name in groups["fast"]),
        "draw_256_other_us": max(result[name]["median_us"] for name in groups["other"]),
    }
    # How many times longer the peer takes for logit-normal times.
    for key, name in (("draw_vs_scipy", "LightningDiT"), ("draw_vs_diffusers", "diffusers")):
        if name in result:
            figures[key] = result[name]["median_us"] / logit_normal
    if not QUICK:
        machine = {
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "load": load,
        }
        content = {
            "machine": machine,
            "figures": figures,
            "batch": BATCH,
            "rounds": ROUNDS,
            "groups": groups,
            "draws": result,
        }
        with atomic_write(RESULT) as file:
            json.dump(content, file, indent=1)
            file.write("\n")
    for key, value in figures.items():
        print(f"FIGURE {key} {value:.4g}", flush=True)


if __name__ == "__main__":
    main()
