"""Latents that SimpleTuner caches on disk: one `.pt` for each image, below the VAE cache folder.

Format, read at commit bc8e6ab (simpletuner/helpers/caching/vae.py, data_backend/local.py): `torch.save` of
one tensor (C, H, W) in the dtype of the autoencoder, already shifted and scaled; or of a dict that holds it
as `latents`; the file is gzip-compressed if the cache was configured so.
"""

from __future__ import annotations

import gzip
import io
import pickle
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flowtempo.data.latents import cache_files, checked
from flowtempo.errors import UserError

# What torch.load raises on bytes that are no saved tensor.
_DAMAGED = (
    RuntimeError,
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    AssertionError,
    OverflowError,
    MemoryError,
)


def read_simpletuner(folder: Path, progress: Callable[[float], None] | None = None) -> Iterator[np.ndarray]:
    """Every cached latent below a folder, in the order of the files' names.

    Only tensors are unpickled (`weights_only`). Files without latents (cached text) are left out.

    Args:
        folder: The VAE cache folder (`cache_dir_vae`), searched with its subfolders.
        progress: Called with the fraction of the files read.

    Yields:
        (C, H, W) float32.

    Raises:
        UserError: If a file is damaged, holds Python objects or other than finite latents, or there are
            no latents.
    """
    files = found = 0
    for _, file in cache_files(folder, ".pt", progress):
        files += 1
        content = _read(file)
        latent = content.get("latents") if isinstance(content, dict) else content
        if not isinstance(latent, Tensor):
            continue
        if latent.layout != torch.strided or not latent.is_floating_point():
            raise UserError(f"{file}: latents must be a dense tensor of floats, got {latent.dtype}")
        found += 1
        yield checked(file, latent.detach().float().numpy())
    if not found:
        raise UserError(
            f"{folder}: no latents of SimpleTuner: looked for tensors, or dicts with latents, in the {files} "
            ".pt files in it and below (give the folder that cache_dir_vae names)"
        )


def _read(file: Path) -> Any:
    try:
        content = file.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (zlib.error, gzip.BadGzipFile, EOFError) as error:
        raise UserError(f"{file}: damaged or cut short ({error or 'empty'}): cache it again") from error
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror or error}") from error
    except _DAMAGED as error:
        if isinstance(error, pickle.UnpicklingError) and "Unsupported" in str(error):
            raise UserError(f"{file}: holds Python objects, which are never loaded: save tensors") from error
        reason = str(error).split(". ")[0] or type(error).__name__  # PyTorch adds its guesses
        raise UserError(f"{file}: damaged, or not a saved tensor ({reason}): cache it again") from error
