"""Probing a model on fixed images: which ones, whether it was trained on them, and what is written down."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flowtempo import randomness
from flowtempo.data import ArrayData
from flowtempo.errors import UserError
from flowtempo.objectives import Objective
from flowtempo.runtime import Runtime
from flowtempo.variance import Probe, Share
from flowtempo.variance import probe as measure
from flowtempo.variance.probe import MIN_SAMPLES, probe_times

PROBES = "probes"
_SEED = 0
_CHUNK = 1024


class ProbeSet:
    """A fixed random choice of images; that of fewer images is part of that of more.

    Args:
        data: The images to choose from.
        count: How many.
        trained_on: The images that the model was trained on; None if they are not known.
        condition: (N,) what the model is given beside each image in place of `data`'s labels.

    Raises:
        UserError: There are too few images, or more are asked for than there are.

    Attributes:
        indices: (count,) int64, the rows of `data`.
        seen: How many of the chosen images are equal to one of `trained_on`; None if that is not known.
    """

    def __init__(
        self,
        data: ArrayData,
        count: int,
        trained_on: ArrayData | None,
        condition: Tensor | None = None,
    ) -> None:
        if not MIN_SAMPLES <= count <= len(data):
            raise UserError(
                f"{count} images to probe: there must be {MIN_SAMPLES} to {len(data)}, the number of images"
                f" of {data.name}"
            )
        self.data = data
        self.indices = randomness.permutation(_SEED, "probe images", 0, len(data))[:count]
        self.seen = None if trained_on is None else self._count_seen(trained_on)
        self._condition = condition

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def held_out(self) -> bool:
        """Whether the model is known to have been trained on none of the images."""
        return self.seen == 0

    def batch(self, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        """Images and what the model is given beside them, by position in the choice."""
        rows = self.indices[positions.cpu()]
        x1, labels = self.data.batch(rows)
        return x1, labels if self._condition is None else self._condition[rows]

    def probe(
        self,
        model: nn.Module,
        objective: Objective,
        *,
        times: int,
        batch_size: int = 32,
        group: Callable[[str], str] | None = None,
        share: Share | None = None,
        progress: Callable[[float], None] | None = None,
        setting: dict[str, Any] | None = None,
    ) -> Probe:
        """Measure `model` on the images; every process must call this and gets the whole.

        The data-prediction error is left out unless the images are held out: on training images it is no
        upper bound of the posterior variance. Parameters are those that require a gradient.

        Args:
            model: forward(x, t, y) in float32, not compiled.
            objective: What the model is trained for.
            times: Number of times.
            batch_size: Images per pass.
            group: Names the group of a parameter; by default its block.
            share: This process's part of the work.
            progress: Called with the fraction done.
            setting: What the record says of the model.

        Raises:
            UserError: As `flowtempo.variance.probe` does.
        """
        measured = measure(
            model,
            objective,
            self.batch,
            len(self),
            t=probe_times(times),
            group=group,
            batch_size=batch_size,
            share=share,
            progress=progress,
            data={**self.data.describe(), "held_out": self.held_out},
            setting=setting,
        )
        return measured if self.held_out else dataclasses.replace(measured, denoiser=None)

    def _count_seen(self, trained_on: ArrayData) -> int:
        if trained_on.fingerprint == self.data.fingerprint:
            return len(self)
        if trained_on.shape != self.data.shape:
            return 0
        # By content: a subset or another order of the training images has another fingerprint.
        chosen = list(_digests(self.data, self.indices))
        return sum(map(set(_digests(trained_on, torch.arange(len(trained_on)))).__contains__, chosen))


def share_of(runtime: Runtime) -> Share:
    """This process's part of the work among those of `runtime`."""
    return Share(
        runtime.rank,
        runtime.world_size,
        lambda tensor: runtime.sum(tensor.to(runtime.device)).to(tensor.device),
    )


def probe_path(run: Path, step: int) -> Path:
    """Where the probe of a step of training is."""
    return run / PROBES / f"step-{step:08d}.json"


def drop_later(run: Path, step: int) -> None:
    """Remove the probes of steps after `step`, which will be done again."""
    for path in (run / PROBES).glob("step-*.json"):
        if int(path.stem.removeprefix("step-")) > step:
            path.unlink()


def probe_record(probe: Probe, objective: Objective, step: int, track: str) -> dict[str, Any]:
    """The line for metrics.jsonl: which file of the run folder, and the curves' means over uniform t."""
    curves = probe.profiles
    t = objective.interpolant.time(curves["loss"].log_snr)
    means: dict[str, Any] = {
        name: float(torch.trapezoid(curves[name].mean, t) / (t[-1] - t[0])) for name in curves
    }
    path = probe_path(Path(), step).as_posix()
    return {"kind": "probe", "step": step, "track": track, "path": path, **means}


def _digests(data: ArrayData, rows: Tensor) -> Iterator[bytes]:
    for part in rows.split(_CHUNK):
        for image in data.batch(part)[0].numpy():
            yield hashlib.blake2b(image.tobytes(), digest_size=16).digest()
