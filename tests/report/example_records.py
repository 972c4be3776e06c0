"""Records as measuring, designing, training and evaluating leave them, without training anything."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import yaml
from PIL import Image

from flowtempo.design import design
from flowtempo.interpolants import Linear
from flowtempo.metrics import Card, Evaluation
from flowtempo.variance import VarianceProfile, measure
from flowtempo.variance.probe import Probe, probe_times

FINGERPRINT = "ab" * 32


def card(**changes) -> Card:
    fields = {
        "features": "digits",
        "features_checksum": "5e" * 32,
        "dim": 64,
        "samples": 1000,
        "reference": 1500,
        "reference_name": "digits",
        "reference_fingerprint": FINGERPRINT,
        "solver": "heun",
        "steps": 25,
        "nfe": 50,
        "guidance": 1.0,
        "ema": "ema",
        "seed": 0,
        "checkpoint": "step-00000800",
    }
    return Card(**(fields | changes))


def reference_line(step: int, track: str, level: float, tilt: float) -> str:
    bands = [
        {
            "low": k / 10,
            "high": (k + 1) / 10,
            "loss": level * (0.4 + (k / 10 - 0.6) ** 2 * 3 + tilt * (k - 4.5)),
        }
        for k in range(10)
    ]
    loss = sum(band["loss"] for band in bands) / 10
    return (
        json.dumps({"kind": "reference", "step": step, "track": track, "loss": loss, "bands": bands}) + "\n"
    )


def write_run(
    folder: Path,
    *,
    target: str = "uniform",
    spacing: str = "independent",
    gain: float = 1.0,
    tilt: float = 0.0,
    steps: int = 800,
    every: int = 200,
    seed: int = 0,
    **card_changes,
) -> Path:
    """A run with a config, a log, evaluations at every quarter and sample grids."""
    folder.mkdir(parents=True)
    config = {
        "data": {"kind": "digits", "path": None},
        "model": {"name": "sit", "size": "micro/2"},
        "objective": {"interpolant": "linear", "prediction": "velocity", "direction": 0.0},
        "timesteps": {"target": target, "density": None, "spacing": spacing},
        "optimizer": {"lr": 0.001, "betas": [0.9, 0.999]},
        "steps": steps,
        "batch_size": 128,
        "seed": seed,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    (folder / "samples").mkdir()
    bands = [{"low": k / 10, "high": (k + 1) / 10, "target": 0.1, "density": 0.1} for k in range(10)]
    header = {
        "kind": "header",
        "step": 0,
        "data": {"name": "digits", "fingerprint": FINGERPRINT, "count": 1500, "shape": [1, 8, 8]},
        "model": {"name": "sit", "size": "micro/2", "parameters": 312_345},
        "proposal": {"target": target, "density": target, "spacing": spacing, "bands": bands},
    }
    lines = [json.dumps(header) + "\n"]
    for step in range(every // 4, steps + 1, every // 4):
        loss = 0.5 + 1.2 * math.exp(-step / 120)
        lines.append(
            json.dumps({"kind": "train", "step": step, "loss": loss, "lr": 1e-3, "grad_norm": 0.5,
                        "seconds": step * 0.06, "images": step * 128, "skipped": 0}) + "\n"
        )  # fmt: skip
        if step % every == 0:
            level = (1 + 1.5 * math.exp(-step / 250)) / math.sqrt(gain)
            lines.append(reference_line(step, "raw", level, tilt))
            name = f"step-{step:08d}"
            lines.append(reference_line(step, "ema", level * (1 + math.exp(-step / 100)), tilt))
            frechet = (4 + 60 * math.exp(-step / 220)) / gain
            evaluation = Evaluation(step, frechet, 0.04 * frechet, card(checkpoint=name, **card_changes))
            evaluation.save(folder / "evaluations" / f"{name}.json")
            write_grid(folder / "samples" / f"{name}.png", seed=step)
    (folder / "metrics.jsonl").write_text("".join(lines))
    return folder


def write_grid(path: Path, *, seed: int = 0, cells: int = 8, size: int = 8) -> None:
    """A grid of smooth random glyphs."""
    noise = np.random.default_rng(seed).normal(size=(cells, cells, size, size))
    spectrum = np.fft.fft2(noise)
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(size), np.fft.fftfreq(size)))
    smooth = np.fft.ifft2(spectrum * np.exp(-((frequency / 0.18) ** 2))).real
    smooth /= abs(smooth).max(axis=(2, 3), keepdims=True)
    pixels = (127.5 * (1 + smooth)).astype(np.uint8).transpose(0, 2, 1, 3).reshape(cells * size, cells * size)
    Image.fromarray(pixels).save(path)


def make_probe(groups=("attention", "mlp"), **told) -> Probe:
    """A probe on the linear path with E|g|^2 = 5 + 20 (t - 1/2)^2, a fifth of it |E g|^2, loss 2 - t."""
    t = probe_times(9)
    model = {"interpolant": "linear", "prediction": "velocity", "step": 800, "track": "ema"} | told
    moment = 5 + 20 * (t - 0.5).square()

    def curve(quantity, mean):
        return VarianceProfile(
            quantity, "probe", "estimate", Linear().log_snr(t), mean, 0.05 * mean, 16, 1.0, {"images": 64},
            model={key: value for key, value in model.items() if value is not None},
        )  # fmt: skip

    def gradients(share):
        return {
            "gradient_second_moment": curve("gradient_second_moment", share * moment),
            "gradient_variance": curve("gradient_variance", 0.8 * share * moment),
            "gradient_norm": curve("gradient_norm", (0.2 * share * moment).sqrt()),
        }

    losses = {
        "loss": curve("loss", 2 - t),
        "loss_second_moment": curve("loss_second_moment", 2 * (2 - t) ** 2),
    }
    total = sum(range(1, len(groups) + 1))
    return Probe(gradients(1.0) | losses, {name: gradients((i + 1) / total) for i, name in enumerate(groups)})


@dataclass(frozen=True)
class Example:
    profile: Path
    density: Path
    runs: tuple[Path, ...]


def build_example(folder: Path) -> Example:
    """Two arms on 8x8 images, with the profile and the density that the second one trains with."""
    profile, density = folder / "profile.json", folder / "density.json"
    scale = torch.logspace(0, -1.5, 16)
    x = torch.randn(200, 16, generator=torch.Generator().manual_seed(0)) * scale
    data = {"name": "digits", "fingerprint": FINGERPRINT, "count": 200, "shape": [1, 4, 4]}
    bracket = measure(x, log_snr=torch.linspace(-10, 10, 21, dtype=torch.float64), noises=32, data=data)
    bracket.save(profile)
    design(bracket, Linear(), rule="paper").save(density)
    runs = (
        write_run(folder / "runs" / "uniform"),
        write_run(folder / "runs" / "designed", target="density.json", gain=1.15, tilt=0.01),
    )
    make_probe().save(runs[1] / "probes" / "step-00000800.json")
    return Example(profile, density, runs)
