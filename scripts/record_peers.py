"""Run the public code of methods and keep what it draws and weighs in tests/golden/peers.json.

    FLOWTEMPO_PEERS=FOLDER python scripts/record_peers.py

FOLDER holds a checkout for each repository: SiT, LightningDiT, SpeeD, Min-SNR-Diffusion-Training, edm2.
Times are turned into flowtempo's (t = 1 is data); a discrete index i of T becomes t = 1 - (i + 1) / T. Each
quantile is of 2^20 draws, so that its standard error in probability is at most 0.0005.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

OUTPUT = Path(__file__).parent.parent / "tests" / "golden" / "peers.json"
DRAWS = 1 << 20
LEVELS = [0.001, 0.01, 0.05, *(k / 10 for k in range(1, 10)), 0.95, 0.99, 0.999]
STEPS = 1000
INDICES = [0, 1, 5, 20, 50, 100, 200, 300, 500, 699, 700, 900, 999]


@contextmanager
def checkout(name: str) -> Iterator[dict[str, str]]:
    """Import from a checkout, and forget its modules afterwards: several call a package `transport`."""
    folder = Path(os.environ["FLOWTEMPO_PEERS"]) / name
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True
    )
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield {"repository": name, "commit": commit.stdout.strip()}
    finally:
        sys.path.remove(str(folder))
        for module in set(sys.modules) - before:
            file = getattr(sys.modules[module], "__file__", None)
            if file is None or str(folder) in file:
                del sys.modules[module]


def quantiles(t: Tensor | np.ndarray) -> dict[str, list[float]]:
    values = np.quantile(np.asarray(t, dtype=np.float64), LEVELS)
    return {"level": LEVELS, "t": values.tolist()}


def transport(name: str, **settings: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 (what their code draws from)
    with checkout(name) as source:
        made = importlib.import_module("transport").create_transport(**settings)
        t, _, _ = made.sample(torch.zeros(DRAWS, 1))
    return {**source, "quantiles": quantiles(t)}


def index_weights(weights: np.ndarray) -> dict[str, list[float]]:
    return {"index": INDICES, "weight": [float(weights[i]) for i in INDICES]}


def speed(schedule: str, weighting: str = "ours") -> dict[str, Any]:
    torch.manual_seed(0)
    with checkout("SpeeD") as source:
        # The package's own __init__ imports its data sets, which need much that is not needed here.
        for package in ("speed", "speed.diffusion"):
            module = types.ModuleType(package)
            module.__path__ = [str(Path(os.environ["FLOWTEMPO_PEERS"]) / "SpeeD" / package.replace(".", "/"))]
            sys.modules[package] = module
        kind = importlib.import_module("speed.diffusion.speed").Speed_IDDPM
        # Its recipe; the constructor's defaults are others.
        made = kind("", noise_schedule=schedule, weighting=weighting, k=5, lam=0.6, tau=700)
        drawn = {}
        for sampling in ("no_dual", "ours"):
            made.sampling = sampling
            index = made._sample_time(DRAWS)
            drawn[sampling] = {"below_tau": float((index < 700).double().mean())}
        result = {
            **source,
            "meaningful_steps": int(made.meaningful_steps),
            "drawn": drawn,
            "weights": index_weights(np.asarray(made.weights)),
        }
    for package in ("speed", "speed.diffusion"):
        sys.modules.pop(package, None)
    return result


def min_snr(kind: str, mean_type: str) -> dict[str, Any]:
    with checkout("Min-SNR-Diffusion-Training") as source:
        gd = importlib.import_module("guided_diffusion.gaussian_diffusion")
        losses = {}
        for weighting in ("constant", kind):
            made = gd.GaussianDiffusion(
                betas=gd.get_named_beta_schedule("cosine", STEPS),
                model_mean_type=gd.ModelMeanType[mean_type],
                model_var_type=gd.ModelVarType.FIXED_LARGE,
                loss_type=gd.LossType.MSE,
                rescale_timesteps=False,
                mse_loss_weight_type=weighting,
            )
            torch.manual_seed(0)
            x = torch.randn(len(INDICES), 1, 2, 2)
            terms = made.training_losses(lambda x, t, **_: torch.zeros_like(x), x, torch.tensor(INDICES))
            losses[weighting] = terms["loss"].double()
        weight = losses[kind] / losses["constant"]
    return {**source, "prediction": mean_type, "weights": {"index": INDICES, "weight": weight.tolist()}}


def edm2() -> dict[str, Any]:
    torch.manual_seed(0)
    seen: list[Tensor] = []

    def network(x: Tensor, sigma: Tensor, labels: Any, return_logvar: bool) -> tuple[Tensor, Tensor]:
        seen.append(sigma.flatten().double())
        return torch.zeros_like(x), torch.zeros_like(sigma)

    with checkout("edm2") as source:
        loss = importlib.import_module("training.training_loop").EDM2Loss()
        loss(network, torch.zeros(DRAWS, 1, 1, 1))
    # x = y + sigma n is the linear path at t = 1 / (1 + sigma), scaled.
    return {**source, "quantiles": quantiles(1 / (1 + seen[0]))}


def diffusers(scheme: str) -> dict[str, Any]:
    import diffusers
    from diffusers.training_utils import compute_density_for_timestep_sampling as draw

    settings = {"logit_mean": 0.0, "logit_std": 1.0, "mode_scale": 1.29}
    generator = torch.Generator().manual_seed(0)
    noise_level = draw(scheme, DRAWS, **settings, generator=generator).double()
    return {
        "repository": "diffusers",
        "commit": diffusers.__version__,
        "quantiles": quantiles(1 - noise_level),
    }


def sd3_weights(scheme: str) -> dict[str, Any]:
    import diffusers
    from diffusers.training_utils import compute_loss_weighting_for_sd3 as weigh

    t = torch.tensor([0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999], dtype=torch.float64)
    weight = weigh(scheme, sigmas=1 - t)
    return {
        "repository": "diffusers",
        "commit": diffusers.__version__,
        "weights": {"t": t.tolist(), "weight": weight.tolist()},
    }


METHODS: dict[str, Callable[[], dict[str, Any]]] = {
    "uniform": lambda: transport("SiT"),
    "lightningdit": lambda: transport("LightningDiT", use_lognorm=True, use_cosine_loss=True),
    "sd3-logit-normal": lambda: diffusers("logit_normal"),
    "sd3-mode": lambda: diffusers("mode"),
    "edm2": edm2,
    "speed": lambda: speed("linear"),
    "speed-cosine": lambda: speed("cosine"),
    "p2": lambda: speed("linear", "p2"),
    "sd3-cosmap": lambda: sd3_weights("cosmap"),
    "sigma-sqrt": lambda: sd3_weights("sigma_sqrt"),
    "min-snr noise": lambda: min_snr("min_snr_5", "EPSILON"),
    "min-snr data": lambda: min_snr("min_snr_5", "START_X"),
    "min-snr v": lambda: min_snr("vmin_snr_5", "VELOCITY"),
}


def main() -> None:
    recorded = {name: record() for name, record in METHODS.items()}
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")
    print(f"recorded {len(recorded)} methods in {OUTPUT}")


if __name__ == "__main__":
    main()
