"""Folders of cached latents, one file per image: finding them, checking them, and one array per size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from flowtempo.errors import UserError

_TAKEN = np.empty(0, np.float32)


def cache_files(
    folder: Path, suffix: str, progress: Callable[[float], None] | None = None
) -> Iterator[tuple[str, Path]]:
    """Every file below `folder` with this suffix, in the order of its name relative to the folder.

    Yields:
        The relative name and the path.

    Raises:
        UserError: If `folder` is none.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: not a folder: name the folder that holds the cached {suffix} files")
    found = sorted((file.relative_to(folder).as_posix(), file) for file in folder.rglob(f"*{suffix}"))
    files = [entry for entry in found if entry[1].is_file()]
    for done, entry in enumerate(files, 1):
        yield entry
        if progress is not None:
            progress(done / len(files))


def checked(file: Path, latent: np.ndarray) -> np.ndarray:
    """One latent as (C, H, W) float32, still images in video form (C, 1, H, W) included.

    Raises:
        UserError: If it has other axes, is empty, is no float, or holds NaN or infinity; names the file.
    """
    if latent.ndim == 4 and latent.shape[1] == 1:
        latent = latent[:, 0]
    if latent.ndim == 4:
        raise UserError(
            f"{file}: holds {latent.shape[1]} video frames, {latent.shape}: only the latents of still images "
            "are read from a cache; save videos as one .npy (N, C T, H, W) and use kind=array"
        )
    if latent.ndim != 3 or latent.size == 0 or latent.dtype.kind != "f":
        raise UserError(f"{file}: latents must be floats (C, H, W), got {latent.dtype} {latent.shape}")
    latent = latent.astype(np.float32, order="C", copy=False)
    if not np.isfinite(latent).all():
        raise UserError(f"{file}: its latents hold NaN or infinity: remove the file and cache it again")
    return latent


def shape_text(shape: Iterable[int]) -> str:
    """`16x64x96`."""
    return "x".join(str(axis) for axis in shape)


def by_shape(latents: list[np.ndarray]) -> list[np.ndarray]:
    """One (N, C, H, W) float32 array for each shape, the one with most latents first.

    Empties `latents` on the way, so that memory holds each of them once.
    """
    members: dict[tuple[int, ...], list[int]] = {}
    for index, latent in enumerate(latents):
        members.setdefault(latent.shape, []).append(index)
    buckets = []
    for shape, chosen in sorted(members.items(), key=lambda item: (-len(item[1]), item[0])):
        bucket = np.empty((len(chosen), *shape), np.float32)
        for row, index in enumerate(chosen):
            bucket[row] = latents[index]
            latents[index] = _TAKEN
        buckets.append(bucket)
    latents.clear()
    return buckets
