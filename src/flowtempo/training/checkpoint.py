"""Checkpoints: folders that are whole or absent, verified when read, with no pickle that can run code."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import flowtempo
from flowtempo.errors import UserError
from flowtempo.files import atomic_folder

SCHEMA = 1
STATE = "state.json"
WEIGHTS = {"raw": "model.safetensors", "ema": "ema.safetensors"}
OPTIMIZER = "optimizer.pt"
_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on the disk whose `state.json` has been read.

    Attributes:
        folder: Where.
        step: Optimizer steps done.
        state: The contents of `state.json`.
    """

    folder: Path
    step: int
    state: dict[str, Any]

    def weights(self, track: str) -> dict[str, Tensor]:
        """The weights of one track, on the CPU.

        Raises:
            UserError: An unknown track, or a damaged file.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        if track not in WEIGHTS:
            raise UserError(f"unknown track {track!r}; known tracks: {', '.join(WEIGHTS)}")
        path = self._verified(WEIGHTS[track])
        try:
            return load_file(path)
        except SafetensorError as error:
            raise self.unusable(path.name) from error

    def optimizer(self) -> dict[str, Any]:
        """What was saved beside the weights.

        Raises:
            UserError: A damaged file.
        """
        path = self._verified(OPTIMIZER)
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, MemoryError):
            raise
        except Exception as error:  # whatever unpickling makes of bytes that are no pickle
            raise self.unusable(OPTIMIZER) from error
        if not isinstance(content, dict):
            raise self.unusable(OPTIMIZER)
        return content

    def unusable(self, name: str) -> UserError:
        """What is told of a file that is as it was written, but not what this version writes for the run."""
        return UserError(
            f"{self.folder / name}: its content is not that of a checkpoint of this run; {self._remedy()}"
        )

    def _verified(self, name: str) -> Path:
        path = self.folder / name
        try:
            found = _sha256(path)
        except FileNotFoundError as error:
            raise UserError(f"{path}: missing from the checkpoint; {self._remedy()}") from error
        if found != self.state["files"].get(name):
            raise UserError(f"{path}: damaged (its SHA-256 is not the one in {STATE}); {self._remedy()}")
        return path

    def _remedy(self) -> str:
        return f"delete the folder {self.folder.name} to use the checkpoint before it"


def save(
    checkpoints: Path,
    step: int,
    *,
    weights: Mapping[str, Mapping[str, Tensor]],
    optimizer: Mapping[str, Any],
    state: Mapping[str, Any],
) -> Path:
    """Write the checkpoint of `step` beside the others and put it in place once it is on the disk.

    Args:
        checkpoints: The run's folder of checkpoints.
        step: Optimizer steps done.
        weights: State dict of each track, "raw" and "ema".
        optimizer: What `Checkpoint.optimizer` gives back; tensors and plain values.
        state: Further fields of `state.json`.

    Returns:
        The new folder.

    Raises:
        OSError: It cannot be written, as on a full disk; names the new folder. Earlier ones stay.
    """
    from safetensors.torch import save_file

    final = checkpoints / f"step-{step:08d}"
    with atomic_folder(final) as folder:
        for track, tensors in weights.items():
            content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
            with _told_as_os_error(final):
                save_file(content, folder / WEIGHTS[track])
        with _told_as_os_error(final):
            torch.save(dict(optimizer), folder / OPTIMIZER)
        files = {path.name: _sha256(path) for path in sorted(folder.iterdir())}
        versions = {
            "flowtempo": flowtempo.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
        full = {"schema": SCHEMA, "step": step, **state, "versions": versions, "files": files}
        (folder / STATE).write_text(json.dumps(full, indent=1, allow_nan=False), encoding="utf-8")
    return final


def steps(checkpoints: Path) -> list[int]:
    """The steps that have a checkpoint, ascending by number."""
    if not checkpoints.is_dir():
        return []
    names = (_NAME.fullmatch(path.name) for path in checkpoints.iterdir())
    return sorted(int(match[1]) for match in names if match)


def find(checkpoints: Path, step: int | None = None) -> Checkpoint:
    """The checkpoint of `step`, or the newest by step number.

    Raises:
        UserError: There is none, or its `state.json` cannot be read.
    """
    known = steps(checkpoints)
    if not known:
        raise UserError(f"{checkpoints}: no checkpoint there")
    if step is not None and step not in known:
        raise UserError(
            f"{checkpoints}: no checkpoint of step {step}; there are {', '.join(map(str, known))}"
        )
    chosen = known[-1] if step is None else step
    folder = checkpoints / f"step-{chosen:08d}"
    path = folder / STATE
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        if state["schema"] != SCHEMA:
            raise UserError(
                f"{path}: schema {state['schema']} was written by another version (this is {SCHEMA})"
            )
        if state["step"] != chosen or not _is_whole(state):
            raise ValueError("fields contradict the folder")
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{path}: missing or damaged; delete the folder {folder.name} to use the checkpoint before it"
        ) from error
    return Checkpoint(folder, chosen, state)


def prune(checkpoints: Path, keep: int | None) -> None:
    """Remove all but the `keep` newest checkpoints, and what interrupted writes left behind."""
    if not checkpoints.is_dir():
        return
    if keep is not None:
        for step in steps(checkpoints)[:-keep]:
            folder = checkpoints / f"step-{step:08d}"
            # Renamed first, so that an interruption leaves no half-deleted checkpoint.
            os.replace(folder, checkpoints / f".{folder.name}.old")
    for path in checkpoints.glob(".step-*"):
        shutil.rmtree(path, ignore_errors=True)


def _is_whole(state: dict[str, Any]) -> bool:
    data, shape = state["data"], state["data"]["shape"]
    seconds = state["seconds"]
    return (
        isinstance(data, dict)
        and isinstance(shape, list)
        and len(shape) == 3
        and all(_is_count(side) and side > 0 for side in shape)
        and isinstance(data["name"], str)
        and isinstance(data["fingerprint"], str)
        and _is_count(state["num_classes"])
        and isinstance(state["proposal"], dict)
        and type(seconds) in (int, float)
        and math.isfinite(seconds)
        and isinstance(state["files"], dict)
    )


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


@contextlib.contextmanager
def _told_as_os_error(path: Path) -> Iterator[None]:
    """Around a write by a library that has its own exceptions for the operating system's errors."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    except RuntimeError as error:
        # torch's writer says which of its own checks failed, but not why.
        if not re.search(r"inline_container|PytorchStreamWriter|iostream", str(error)):
            raise
        raise OSError(errno.ENOSPC, "cannot be written (is the disk full?)", str(path)) from error


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
