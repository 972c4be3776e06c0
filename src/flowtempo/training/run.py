"""Run folders, from the side of those who use what was trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from flowtempo.data import ArrayData, Scaling, whole_std
from flowtempo.errors import UserError
from flowtempo.models import SiT, build
from flowtempo.objectives import Objective
from flowtempo.training import checkpoint
from flowtempo.training.checkpoint import Checkpoint
from flowtempo.training.config import TrainConfig, load_config

CONFIG = "config.yaml"
CHECKPOINTS = "checkpoints"
Track = Literal["ema", "raw"]


@dataclass(frozen=True)
class LoadedRun:
    """A trained model with what is needed to use it.

    Attributes:
        folder: The run folder.
        step: Optimizer steps done.
        track: Whether the weights are averaged ("ema") or not ("raw").
        config: The run's settings.
        model: The model, in evaluation mode, without gradients.
        shape: (C, H, W) of its images.
        num_classes: Its classes; 0 if unconditional.
        data: Name, fingerprint, count, shape and channel statistics of the training images.
    """

    folder: Path
    step: int
    track: str
    config: TrainConfig
    model: SiT
    shape: tuple[int, int, int]
    num_classes: int
    data: dict[str, Any]

    @property
    def scaling(self) -> Scaling:
        """How the model saw its training images."""
        return Scaling.of_record(self.data)

    @property
    def objective(self) -> Objective:
        """What the model was trained for, with its interpolant and prediction."""
        return self.config.objective.build()

    def check_data(self, data: ArrayData) -> None:
        """Check that `data` has images of the model's shape and as many classes.

        Raises:
            UserError: It does not; names the run, the data and both shapes or counts.
        """
        check_match(self.folder, self.shape, self.num_classes, data)

    def check_guidance(self, scale: float) -> None:
        """Check that the unconditional half of guidance was trained.

        Raises:
            UserError: It was not, because the run never dropped a label; names the run.
        """
        if scale != 1 and self.num_classes and not self.config.label_dropout:
            raise UserError(
                f"guidance is {scale}, but {self.folder} was trained with label_dropout 0 and does not know "
                "the null label: leave guidance at 1, or train with label_dropout"
            )


def load_run(
    run_folder: str | Path,
    step: int | None = None,
    track: Track = "ema",
    device: str | torch.device = "cpu",
) -> LoadedRun:
    """Load the model of a run folder.

    Args:
        run_folder: What `train` wrote.
        step: Which checkpoint; the newest by default.
        track: "ema" for the averaged weights, "raw" for the last ones.
        device: Where the model goes.

    Raises:
        UserError: No such run or checkpoint, or a damaged file; names it.
    """
    folder = Path(run_folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such run folder")
    config = load_config(folder / CONFIG)
    found, weights = _weights(folder / CHECKPOINTS, step, track)
    channels, height, width = found.state["data"]["shape"]
    shape, num_classes = (channels, height, width), found.state["num_classes"]
    data_std = whole_std(found.state["data"]["channel_std"])
    path = config.objective.build().interpolant
    model = build(config.model, shape, num_classes, interpolant=path, data_std=data_std)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(
            f"{found.folder / checkpoint.WEIGHTS[track]}: its weights are not those of the model "
            f"{config.model.size} that {folder / CONFIG} describes"
        ) from error
    model = model.to(device).eval().requires_grad_(False)
    return LoadedRun(folder, found.step, track, config, model, shape, num_classes, found.state["data"])


def newest_step(run_folder: str | Path) -> int:
    """The step of a run's newest checkpoint.

    Raises:
        UserError: There is none.
    """
    return checkpoint.find(Path(run_folder) / CHECKPOINTS).step


def _weights(checkpoints: Path, step: int | None, track: Track) -> tuple[Checkpoint, dict[str, Tensor]]:
    found = checkpoint.find(checkpoints, step)
    try:
        return found, found.weights(track)
    except UserError:
        # A run that is being trained may have removed what was its newest checkpoint a moment ago.
        if step is not None or checkpoint.find(checkpoints).step == found.step:
            raise
        return _weights(checkpoints, step, track)


def check_match(run: Path, shape: tuple[int, int, int], num_classes: int, data: ArrayData) -> None:
    """Check that `data` fits a model for images of `shape` and `num_classes` classes.

    Raises:
        UserError: It does not; names the run, the data and both shapes or counts.
    """
    if tuple(shape) != data.shape:
        raise UserError(
            f"the model of {run} takes {shape[0]}-channel images of shape {tuple(shape)}, but {data.name} "
            f"has {data.shape[0]}-channel images of shape {data.shape}: use the data that it was trained on"
        )
    if num_classes != data.num_classes:
        raise UserError(
            f"the model of {run} knows {num_classes} classes, but {data.name} has {data.num_classes}: "
            "use the data that it was trained on"
        )
