"""Cached text embeddings and other conditioning: one row for each latent, by keyword of the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from flowtempo.data.arrays import read_members
from flowtempo.errors import UserError

_CHUNK_ELEMENTS = 1 << 22


def load_embeddings(path: str | Path, count: int) -> dict[str, Tensor]:
    """The conditioning of `count` latents, such as `encoder_hidden_states` (N, L, D) for diffusers.

    Args:
        path: A `.safetensors` or `.npz` file. Each array is one keyword argument of the model and has one
            row for each latent, in the order of the latents. No pickle is read.
        count: N.

    Returns:
        Each array by its name, in memory: floats as float32, integers and booleans (masks, positions) as
        they are stored.

    Raises:
        UserError: If the file is missing, damaged, of another format or empty, an array has another number
            of rows, holds NaN or infinity, or its name cannot be a keyword. Names the file and the array.
    """
    path = Path(path).expanduser()
    if path.suffix not in (".safetensors", ".npz"):
        raise UserError(f"{path}: embeddings are read from a .safetensors or .npz file: save them as one")
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    found = _read_safetensors(path) if path.suffix == ".safetensors" else _read_npz(path)
    if not found:
        raise UserError(f"{path}: holds no arrays: save one for each keyword, such as encoder_hidden_states")
    return {name: _checked(path, name, found.pop(name), count) for name in sorted(found)}


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except SafetensorError as error:
        raise UserError(
            f"{path}: damaged, or not a safetensors file ({error}): write or copy it again"
        ) from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


def _read_npz(path: Path) -> dict[str, Tensor]:
    found = {}
    for name, array in read_members(path, list).items():
        if array.dtype.kind not in "fiub" or not array.dtype.isnative:
            raise UserError(f"{path}: {name} holds {array.dtype}: save floats, integers or booleans")
        found[name] = torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))
    return found


def _checked(path: Path, name: str, values: Tensor, count: int) -> Tensor:
    if not name.isidentifier():
        raise UserError(f"{path}: {name!r} cannot be a keyword argument of the model: rename the array")
    if values.ndim == 0 or len(values) != count:
        raise UserError(
            f"{path}: {name} has shape {tuple(values.shape)}: its first axis must be the {count} latents, "
            "one row for each"
        )
    if not values.is_floating_point():
        if values.is_complex():
            raise UserError(f"{path}: {name} holds complex numbers: save floats")
        return values
    values = values.to(torch.float32)
    rows = max(1, _CHUNK_ELEMENTS // max(1, values[:1].numel()))
    for start, part in zip(range(0, count, rows), values.split(rows), strict=True):
        finite = part.isfinite().reshape(len(part), -1).all(1)
        if not bool(finite.all()):
            bad = start + int(finite.int().argmin())
            raise UserError(f"{path}: {name} holds NaN or infinity in row {bad}: encode that text again")
    return values
