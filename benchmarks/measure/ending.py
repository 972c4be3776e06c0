"""How every measuring benchmark ends: its figures printed, and its result file written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch

from flowtempo.files import atomic_write

RESULTS = Path(__file__).parents[1] / "results"
QUICK = os.environ.get("FLOWTEMPO_BENCH_QUICK") == "1"
"""Whether to run a small form that only shows that the script works; it writes no result."""


def finish(name: str, result: dict[str, Any], figures: dict[str, float]) -> None:
    """Write benchmarks/results/measure_NAME.json and print the figures.

    Args:
        name: The script's name.
        result: What was measured; anything JSON can hold.
        figures: Printed as `FIGURE key value`, and kept in the result.
    """
    machine = {"cores": os.cpu_count(), "threads": torch.get_num_threads(), "torch": torch.__version__}
    if not QUICK:
        with atomic_write(RESULTS / f"measure_{name}.json") as file:
            json.dump({"machine": machine, "figures": figures, **result}, file, indent=1)
            file.write("\n")
    for key, value in figures.items():
        print(f"FIGURE {key} {value:.4g}", flush=True)
