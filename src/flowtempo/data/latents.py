"""Folders of cached latents, one file per image: finding them, checking them, and one array per size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from flowtempo.errors import UserError

_FIRST_ROWS = 16
_GROWTH = 8


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


class Buckets:
    """Latents in one array for each shape, in the order in which they are added.

    The arrays grow in place, so that memory holds each latent once.

    Args:
        size: Keep only latents of this height and width, `HxW`; None keeps all.
    """

    def __init__(self, size: str | None = None) -> None:
        self.size = size
        self.left_out: set[str] = set()
        self._arrays: dict[tuple[int, ...], np.ndarray] = {}
        self._positions: dict[tuple[int, ...], list[int]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, latent: np.ndarray) -> None:
        """Add a (C, H, W) float32 latent, or note its size if that is not wanted."""
        size = shape_text(latent.shape[1:])
        if self.size not in (None, size):
            self.left_out.add(size)
            return
        if latent.shape not in self._arrays:
            self._arrays[latent.shape] = np.empty((_FIRST_ROWS, *latent.shape), np.float32)
            self._positions[latent.shape] = []
        array, positions = self._arrays[latent.shape], self._positions[latent.shape]
        row = len(positions)
        if row == len(array):
            # realloc moves the pages of a large array and not what they hold
            array.resize((row + row // _GROWTH, *latent.shape), refcheck=False)
        array[row] = latent
        positions.append(self._count)
        self._count += 1

    def arrays(self, keep: np.ndarray | None = None) -> list[np.ndarray]:
        """(N, C, H, W) for each shape, the one with most latents first.

        Args:
            keep: Rising positions, among all that were added, of those that are wanted; None is all.
        """
        chosen = []
        for shape, array in self._arrays.items():
            positions = self._positions[shape]
            if keep is None:
                array.resize((len(positions), *shape), refcheck=False)
            else:
                array = array[: len(positions)][np.isin(positions, keep)]
            chosen.append(array)
        return sorted(filter(len, chosen), key=lambda array: (-len(array), array.shape))
