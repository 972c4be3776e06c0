"""What per-sample gradient norms cost: over one ordinary forward and backward pass of the same batch.

    python benchmarks/measure/gradient_cost.py

Both are timed in turns in one process and the ratio is that of the medians. The optimizer's step, which
training also pays, is in neither. Writes benchmarks/results/measure_gradient_cost.json.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from flowtempo.files import atomic_write
from flowtempo.interpolants import Linear
from flowtempo.models import ModelConfig, build
from flowtempo.objectives import Objective
from flowtempo.variance.gradients import Batch, SampleGradients

RESULT = Path(__file__).parents[1] / "results" / "measure_gradient_cost.json"
ROUNDS = 5
OBJECTIVE = Objective(Linear())


class ConvNet(nn.Module):
    """Down and up again with residual blocks: 0.5M parameters."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, width, 3, padding=1)
        self.high = self._block(width)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.low = self._block(2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.last = nn.Conv2d(2 * width, channels, 3, padding=1)

    @staticmethod
    def _block(width: int) -> nn.Module:
        layers = [nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)]
        return nn.Sequential(
            *layers, nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)
        )

    def forward(self, x: Tensor, t: Tensor, y: Tensor | None) -> Tensor:
        x = self.first(x) + t[:, None, None, None]
        x = x + self.high(x)
        h = self.down(x)
        h = self.up(h + self.low(h))
        return self.last(torch.cat([x, h], 1))


def loss(model: nn.Module, batch: Batch) -> Tensor:
    x1, x0, t, y = batch
    assert x1 is not None
    assert x0 is not None
    assert t is not None
    output = model(OBJECTIVE.interpolant.mix(x1, x0, t), t, y)
    return OBJECTIVE.loss(output, x1, x0, t).total


def seconds(work: Callable[[], object], device: torch.device) -> float:
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def cost(model: nn.Module, shape: tuple[int, ...], count: int, classes: int) -> dict[str, object]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device)
    for parameter in model.parameters():  # a fresh SiT has zeros that stop the gradients
        nn.init.normal_(parameter, std=0.05)
    y = torch.randint(classes, (count,), device=device) if classes else None
    batch: Batch = (
        torch.randn(count, *shape, device=device),
        torch.randn(count, *shape, device=device),
        torch.rand(count, device=device),
        y,
    )
    engine = SampleGradients(model, loss)
    parameters = list(model.parameters())

    def ordinary() -> object:
        return torch.autograd.grad(loss(model, batch).mean(), parameters)

    times: dict[str, list[float]] = {"ordinary": [], "norms": []}
    ordinary(), engine(batch), ordinary(), engine(batch)
    for _ in range(ROUNDS):
        times["ordinary"].append(seconds(ordinary, device))
        times["norms"].append(seconds(lambda: engine(batch), device))
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "parameters": sum(p.numel() for p in parameters),
        "batch": [count, *shape],
        "rounds": ROUNDS,
        "seconds": medians,
        "ratio": medians["norms"] / medians["ordinary"],
    }


def main() -> None:
    torch.manual_seed(0)
    cases = {
        "sit_tiny": (build(ModelConfig(size="tiny/2"), (1, 28, 28), 10), (1, 28, 28), 64, 10),
        "sit_s": (build(ModelConfig(size="S/2"), (4, 32, 32), 10), (4, 32, 32), 8, 10),
        "convnet": (ConvNet(3, 64), (3, 32, 32), 16, 0),
    }
    machine = {"cores": os.cpu_count(), "threads": torch.get_num_threads(), "torch": torch.__version__}
    if torch.cuda.is_available():
        machine["device"] = torch.cuda.get_device_name()
    result: dict[str, object] = {"machine": machine}
    for name, case in cases.items():
        result[name] = figure = cost(*case)
        print(f"FIGURE gradient_cost_{name} {figure['ratio']:.2f}", flush=True)
    with atomic_write(RESULT) as file:
        json.dump(result, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
