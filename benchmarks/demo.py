"""What `make demo` measures, kept: both arms' Frechet distances and how long the whole takes.

    make bench-demo

Runs `flowtempo demo` in a temporary folder and writes benchmarks/results/demo.json. One seed for each arm:
a lead and no verdict.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path

import torch

from flowtempo.cli.main import main
from flowtempo.design import Design
from flowtempo.files import atomic_write
from flowtempo.metrics import Evaluation
from flowtempo.report import read_run

RESULT = Path(__file__).parent / "results" / "demo.json"


def arm(run: Path) -> dict[str, object]:
    records = [Evaluation.load(path) for path in sorted((run / "evaluations").glob("*.json"))]
    told = read_run(run)
    reference = told.final_reference()
    assert reference is not None
    return {
        "frechet": {record.step: [record.frechet, record.stderr] for record in records},
        "reference_loss": reference.loss,
        "training_seconds": told.seconds,
        "card": records[-1].card.to_dict(),
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "demo"
        start = time.perf_counter()
        if status := main(["demo", "--output", str(folder)]):
            raise SystemExit(status)
        seconds = time.perf_counter() - start
        fit = Design.load(folder / "density.json").fit
        result = {
            "machine": {
                "cores": os.cpu_count(),
                "threads": torch.get_num_threads(),
                "torch": torch.__version__,
            },
            "seconds": round(seconds, 1),
            "nearest_logit_normal": {"mean": fit.mean, "std": fit.std, "distance": fit.distance},
            "arms": {name: arm(folder / name) for name in ("uniform", "designed")},
        }
    with atomic_write(RESULT) as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    print(f"FIGURE demo_seconds {seconds:.1f}")
    for name, measured in result["arms"].items():  # type: ignore[attr-defined]
        print(f"FIGURE demo_frechet_{name} {list(measured['frechet'].values())[-1][0]:.4g}")
