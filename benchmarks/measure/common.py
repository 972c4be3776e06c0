"""Data sets, small models and tables that several measuring benchmarks share.

Models are trained without labels, with uniform times, on the linear path and for the velocity, so that the
bracket of the unlabelled data is about what they learn. They are probed on test images.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from flowtempo.data import ArrayData, DataConfig, load
from flowtempo.densities import Uniform
from flowtempo.errors import UserError
from flowtempo.interpolants import Linear
from flowtempo.models import ModelConfig, SiT, build
from flowtempo.objectives import Objective
from flowtempo.runtime import Runtime
from flowtempo.timesteps import Proposal
from flowtempo.training.batches import Batches
from flowtempo.training.config import OptimizerConfig, TrainConfig
from flowtempo.training.ema import EMA
from flowtempo.training.optimizer import build_optimizer
from flowtempo.training.step import TrainStep
from flowtempo.variance import Probe, probe

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
BATCH = 64
OBJECTIVE = Objective(Linear(), "velocity")

_SOURCES: dict[str, dict[str, str]] = {
    "digits": {"kind": "digits"},
    "fashion_mnist": {"kind": "idx", "path": str(FASHION_MNIST)},
    "emoji": {"kind": "emoji"},
}
PICTURES = tuple(_SOURCES)


def pictures(name: str, split: str = "train", limit: int | None = None) -> ArrayData | None:
    """The images of a data set without their labels; None, and a line that says why, if it is not there.

    Args:
        name: One of `PICTURES`.
        split: train or test.
        limit: At most so many images, chosen at random.
    """
    try:
        data = load(DataConfig(**_SOURCES[name], split=split))  # type: ignore[arg-type]
        if limit is not None and limit < len(data):
            data = load(DataConfig(**_SOURCES[name], split=split, limit=limit))  # type: ignore[arg-type]
    except UserError as error:
        print(f"{name}: skipped ({error})", flush=True)
        return None
    return ArrayData(data.images, name=data.name)


def halved(data: ArrayData) -> ArrayData:
    """The images with each 2x2 square of pixels averaged, float32."""
    parts = [
        avg_pool2d(data.batch(part)[0], 2).numpy() for part in torch.split(torch.arange(len(data)), 4096)
    ]
    return ArrayData(np.concatenate(parts), name=f"{data.name}, 2x2 averaged")


def trained(data: ArrayData, size: str, moments: Sequence[int], seed: int) -> Iterator[tuple[int, SiT]]:
    """Train a model and stop by at some steps.

    Args:
        data: Unlabelled images.
        size: Of the model, as in `ModelConfig`.
        moments: Numbers of steps, rising.
        seed: Of weights and draws.

    Yields:
        The step and the model, which goes on changing afterwards.
    """
    config = TrainConfig(
        steps=moments[-1], batch_size=BATCH, seed=seed, optimizer=OptimizerConfig(lr=1e-3, warmup_steps=50)
    )
    model = build(ModelConfig(size=size), data.shape, 0, seed=seed)
    runtime = Runtime()
    step = TrainStep(
        model,
        build_optimizer(config.optimizer, model),
        EMA(model, config.ema_decay),
        OBJECTIVE,
        config,
        runtime,
    )
    batches = Batches(data, Proposal(Uniform()), batch_size=BATCH, seed=seed)
    for done, batch in enumerate(batches.iterate(0, config.steps), 1):
        step(batch, done - 1)
        if done in moments:
            yield done, model


def probed(model: SiT, held_out: ArrayData, count: int, t: Tensor, seed: int) -> Probe:
    """The gradients and losses of a model on the first `count` test images, or all if there are fewer."""
    return probe(
        model, OBJECTIVE, held_out.batch, min(count, len(held_out)), t=t, seed=seed, data=held_out.describe()
    )


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table in columns as wide as their widest cell: the first to the left, the others to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, *rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join(cells), flush=True)
