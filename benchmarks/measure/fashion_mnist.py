"""`flowtempo measure fashion-mnist`: all 60,000 images as references, 65 log-SNRs.

In its default setting (standard errors below 1%), and with half of that standard error.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from ending import QUICK, RESULTS, finish

from flowtempo.cli.main import main
from flowtempo.variance import Bracket
from flowtempo.variance.bracket import DEFAULT_TARGET, gaussian_shape


def measured(*options: str) -> tuple[float, Bracket]:
    """Seconds of the whole command, and what it wrote."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "profile.json"
        start = time.perf_counter()
        if status := main(["measure", "fashion-mnist", "--output", str(output), *options]):
            raise SystemExit(status)
        return time.perf_counter() - start, Bracket.load(output)


def told(bracket: Bracket) -> dict[str, Any]:
    scale = bracket.lower.second_moment
    shape = gaussian_shape(scale, bracket.lower.log_snr)
    return {
        name: {
            "counts": edge.counts,
            "log_snr": edge.log_snr.tolist(),
            "mean": (edge.mean / scale).tolist(),
            "stderr": (edge.stderr / scale).tolist(),
            "largest_stderr": float((edge.stderr / scale).max()),
            "largest_stderr_of_shape": float((edge.stderr / shape).max()),
        }
        for name, edge in (("lower", bracket.lower), ("upper", bracket.upper))
    }


if __name__ == "__main__":
    limit = ["--data.limit", "1000"] if QUICK else []
    picture = [] if QUICK else ["--plot", str(RESULTS / "measure_fashion_mnist.png")]
    seconds, bracket = measured(*limit, *picture)
    half = DEFAULT_TARGET / 2
    seconds_half, finer = measured(*limit, "--target-stderr", str(half))
    edges, edges_half = told(bracket), told(finer)
    figures = {
        "fashion_mnist_measure_seconds": seconds,
        "fashion_mnist_largest_stderr": max(edge["largest_stderr"] for edge in edges.values()),
        "fashion_mnist_half_target_seconds": seconds_half,
        "fashion_mnist_half_target_largest_stderr": max(
            edge["largest_stderr"] for edge in edges_half.values()
        ),
    }
    result = {"target": DEFAULT_TARGET, "edges": edges, "half_target": half, "half_target_edges": edges_half}
    finish("fashion_mnist", {"second_moment": bracket.lower.second_moment, **result}, figures)
