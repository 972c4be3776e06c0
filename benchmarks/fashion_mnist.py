"""The README's Fashion-MNIST run: measure, design, train 1,000 steps, generate, evaluate.

    make bench-fashion-mnist

Calls the commands that a person would type, in a temporary folder, and writes what they measured to
benchmarks/results/fashion_mnist.json, with the plot of the bracket and a grid of images beside it. One seed
of one recipe: it shows that the job runs and how long it takes, and compares nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import torch

from flowtempo.cli.main import main
from flowtempo.design import Design
from flowtempo.files import atomic_write
from flowtempo.metrics import Evaluation
from flowtempo.variance import Bracket

RESULTS = Path(__file__).parent / "results"
COUNT = 2000
SOLVER_STEPS = 25


def run(*words: str) -> float:
    """Run one command and return its seconds."""
    print(f"$ flowtempo {' '.join(words)}", flush=True)
    start = time.perf_counter()
    status = main(words)
    if status:
        raise SystemExit(status)
    return time.perf_counter() - start


def benchmark(folder: Path) -> dict[str, object]:
    profile, plot, density = folder / "profile.json", folder / "profile.png", folder / "density.json"
    arm = folder / "run"
    seconds = {
        "measure": run("measure", "fashion-mnist", "--output", str(profile), "--plot", str(plot)),
        "design": run("design", str(profile), "--output", str(density)),
        "train": run("train", "fashion-mnist", "--run", str(arm)),
        "generate": run("generate", str(arm), "--count", str(COUNT), "--steps", str(SOLVER_STEPS)),
        "evaluate": run("evaluate", str(arm)),
    }
    bracket, fit = Bracket.load(profile), Design.load(density).fit
    evaluation = Evaluation.load(next((arm / "evaluations").glob("*.json")))
    records = [json.loads(line) for line in (arm / "metrics.jsonl").read_text().splitlines()]
    header = records[0]
    reference = [r for r in records if r["kind"] == "reference" and r["track"] == "ema"][-1]
    scale = bracket.upper.second_moment
    RESULTS.mkdir(exist_ok=True)
    shutil.copy(plot, RESULTS / "fashion_mnist_profile.png")
    shutil.copy(next((arm / "samples").glob("*.png")), RESULTS / "fashion_mnist_samples.png")
    return {
        "machine": {"cores": os.cpu_count(), "threads": torch.get_num_threads(), "torch": torch.__version__},
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "parameters": header["model"]["parameters"],
        "bracket": {
            "counts": {edge.method: edge.counts for edge in bracket.candidates},
            "second_moment": scale,
            "rows": [
                {
                    "log_snr": float(bracket.upper.log_snr[index]),
                    "lower": float(bracket.lower.mean[index]) / scale,
                    "lower_stderr": float(bracket.lower.stderr[index]) / scale,
                    "upper": float(bracket.upper.mean[index]) / scale,
                    "upper_stderr": float(bracket.upper.stderr[index]) / scale,
                }
                for index in range(0, len(bracket.upper.log_snr), 8)
            ],
        },
        "nearest_logit_normal": {"mean": fit.mean, "std": fit.std, "distance": fit.distance},
        "steps": evaluation.step,
        "frechet": evaluation.frechet,
        "stderr": evaluation.stderr,
        "card": evaluation.card.to_dict(),
        "reference_loss": reference["loss"],
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        result = benchmark(Path(temporary))
    with atomic_write(RESULTS / "fashion_mnist.json") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    for name, value in result["seconds"].items():  # type: ignore[attr-defined]
        print(f"FIGURE {name}_seconds {value}")
    print(f"FIGURE frechet {result['frechet']:.4g}")
