"""`flowtempo measure fashion-mnist` in its default setting: all 60,000 images as references, 65 log-SNRs."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from ending import QUICK, RESULTS, finish

from flowtempo.cli.main import main
from flowtempo.variance import Bracket
from flowtempo.variance.bracket import gaussian_shape

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "profile.json"
        picture = str(RESULTS / "measure_fashion_mnist.png")
        words = ["--data.limit", "1000"] if QUICK else ["--plot", picture]
        start = time.perf_counter()
        if status := main(["measure", "fashion-mnist", "--output", str(output), *words]):
            raise SystemExit(status)
        seconds = time.perf_counter() - start
        bracket = Bracket.load(output)
    scale = bracket.lower.second_moment
    shape = gaussian_shape(scale, bracket.lower.log_snr)
    edges = {
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
    figures = {
        "fashion_mnist_measure_seconds": seconds,
        "fashion_mnist_largest_stderr": max(edge["largest_stderr"] for edge in edges.values()),  # type: ignore[type-var]
    }
    finish("fashion_mnist", {"second_moment": scale, "edges": edges}, figures)
