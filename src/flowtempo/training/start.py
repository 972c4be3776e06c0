"""What is checked before the first step, so that a mistake neither makes nor spoils a run folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from flowtempo.data import ArrayData
from flowtempo.errors import UserError
from flowtempo.runtime import Runtime
from flowtempo.training import checkpoint
from flowtempo.training.checkpoint import Checkpoint
from flowtempo.training.config import TrainConfig, check_resumable, load_config
from flowtempo.training.lock import LOCK, busy, is_busy
from flowtempo.training.records import strict
from flowtempo.training.run import CHECKPOINTS, CONFIG, check_match


def check_folder(folder: Path, resume: bool) -> None:
    """Check that a run can start, or be resumed, in `folder`.

    Raises:
        UserError: It cannot; names the folder and the remedy.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: name a folder for the run")
    # A process that was killed leaves its lock file behind, which holds nothing.
    empty = not folder.exists() or all(path.name == LOCK for path in folder.iterdir())
    if resume and (empty or not (folder / CONFIG).is_file()):
        raise UserError(f"{folder}: nothing to resume (no {CONFIG} there); start the run without --resume")
    if not resume and not empty:
        if is_busy(folder):
            raise busy(folder)
        raise UserError(f"{folder} is not empty: continue that run with --resume, or name another folder")


def resolve(config: TrainConfig, data: ArrayData, runtime: Runtime) -> TrainConfig:
    """Fill in what depends on the data and the machine, so that config.yaml says what was done.

    Raises:
        UserError: A setting has no effect on these data.
    """
    if config.label_dropout and data.num_classes == 0:
        raise UserError(
            f"label_dropout is {config.label_dropout} but {data.name} has no labels: leave it out"
        )
    coupling = config.objective.build_coupling()
    if coupling is not None and coupling.by_label and data.num_classes == 0:
        raise UserError(
            f"objective.coupling is {coupling}, but {data.name} has no labels: use optimal_transport"
        )
    if config.label_dropout is None:
        config = dataclasses.replace(config, label_dropout=0.1 if data.num_classes else 0.0)
    if config.compile is None:
        config = dataclasses.replace(config, compile=runtime.device.type == "cuda")
    return config


def checkpoint_to_resume(folder: Path, config: TrainConfig, data: ArrayData) -> Checkpoint | None:
    """The newest checkpoint of a run, once nothing that it depends on has changed; None if it has none yet.

    Raises:
        UserError: Settings, data or densities are not those that the run was started with.
    """
    check_resumable(load_config(folder / CONFIG), config, folder)
    if not checkpoint.steps(folder / CHECKPOINTS):
        return None
    found = checkpoint.find(folder / CHECKPOINTS)
    state = found.state
    if found.step > config.steps:
        raise UserError(
            f"steps is {config.steps}, but {folder} has already done {found.step}: resume with steps "
            f"{found.step} or more, or start a new run folder"
        )
    check_match(folder, tuple(state["data"]["shape"]), state["num_classes"], data)
    if state["data"]["fingerprint"] != data.fingerprint:
        raise UserError(
            f"{folder} was trained on {state['data']['name']} ({state['data']['fingerprint'][:12]}), but the "
            f"data is now {data.name} ({data.fingerprint[:12]}): resume with the same data, or start a new "
            "run folder"
        )
    if state["proposal"] != strict(config.timesteps.build(config.steps).describe()):
        raise UserError(
            f"{folder}: the density file that timesteps names has changed since the run was started: "
            "put the old one back, or start a new run folder"
        )
    return found
