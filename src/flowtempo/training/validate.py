"""The reference loss: a measure of a model that no training choice can move.

Training losses under different densities of t average different things and cannot be compared. This one is
the objective's mean over uniform t, on fixed images, times and noise, in float32, whatever the run's
density, weights, batch size, precision and seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flowtempo import randomness
from flowtempo.data import ArrayData
from flowtempo.objectives import Objective
from flowtempo.runtime import Runtime

BANDS = 10
_SEED = 0
_CHUNK = 256


@dataclass(frozen=True)
class ReferenceLoss:
    """Mean losses with standard errors over images.

    Attributes:
        loss: Mean over uniform t in [0, 1].
        stderr: Its standard error as an estimate for the distribution that the images come from. Between
            runs the images, times and noise are the same, so differences are far more certain than this.
        bands: (BANDS,) float64 mean loss in equal bands of t.
        band_stderr: (BANDS,) float64.
    """

    loss: float
    stderr: float
    bands: Tensor
    band_stderr: Tensor

    def record(self, step: int, track: str) -> dict[str, Any]:
        """The line for metrics.jsonl."""
        bands = [
            {"low": i / BANDS, "high": (i + 1) / BANDS, "loss": loss, "stderr": stderr}
            for i, (loss, stderr) in enumerate(
                zip(self.bands.tolist(), self.band_stderr.tolist(), strict=True)
            )
        ]
        return {
            "kind": "reference",
            "step": step,
            "track": track,
            "loss": self.loss,
            "stderr": self.stderr,
            "bands": bands,
        }


class Reference:
    """Fixed images, each with one (t, noise) in every band of t; within a band t is stratified over images.

    Args:
        data: The images to choose from.
        count: How many; all if there are fewer.
    """

    def __init__(self, data: ArrayData, count: int) -> None:
        self.count = min(count, len(data))
        self.data = data
        self._chosen = randomness.permutation(_SEED, "reference images", 0, len(data))[: self.count]
        times = []
        for band in range(BANDS):
            offset = randomness.uniform(_SEED, "reference times", band, self.count)
            stratum = randomness.permutation(_SEED, "reference times", band, self.count)
            times.append((band + (stratum + offset) / self.count) / BANDS)
        self._t = torch.stack(times).to(torch.float32)

    @torch.no_grad()
    def loss(
        self, model: nn.Module, objective: Objective, runtime: Runtime, *, chunk: int = _CHUNK
    ) -> ReferenceLoss:
        """Evaluate `model`; with several processes each takes a part and all return the whole.

        Args:
            model: forward(x, t, y), in float32.
            objective: Its total loss is what is averaged.
            runtime: This process.
            chunk: Images per forward pass.
        """
        training = model.training
        model.eval()
        table = torch.zeros(BANDS, self.count, dtype=torch.float64)
        pieces = [
            (band, start) for band in range(BANDS) for start in range(0, self.count, min(chunk, self.count))
        ]
        for band, start in pieces[runtime.rank :: runtime.world_size]:
            rows = slice(start, min(start + chunk, self.count))
            table[band, rows] = self._losses(model, objective, runtime.device, band, rows)
        model.train(training)
        table = runtime.sum(table.to(runtime.device)).cpu()
        per_image = table.mean(0)
        return ReferenceLoss(
            float(per_image.mean()), float(_stderr(per_image)), table.mean(1), _stderr(table)
        )

    def _losses(
        self, model: nn.Module, objective: Objective, device: torch.device, band: int, rows: slice
    ) -> Tensor:
        x1, y = self.data.batch(self._chosen[rows])
        x0 = randomness.normal(_SEED, "reference noise", band, range(rows.start, rows.stop), self.data.shape)
        x1, x0, t = x1.to(device), x0.to(device), self._t[band, rows].to(device)
        output = model(objective.interpolant.mix(x1, x0, t), t, None if y is None else y.to(device))
        return objective.loss(output.float(), x1, x0, t).total.cpu().double()


def _stderr(values: Tensor) -> Tensor:
    """Standard error of the mean over the last dimension; 0 for a single value, which says nothing."""
    count = values.shape[-1]
    if count < 2:
        return torch.zeros(values.shape[:-1], dtype=values.dtype)
    return values.std(-1) / count**0.5
