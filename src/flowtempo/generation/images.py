"""Image files: a PNG grid to look at and an .npz to evaluate."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flowtempo.errors import UserError
from flowtempo.files import atomic_write

Pixels = npt.NDArray[np.uint8]
_SMALLEST_CELL = 32
_GAP = 2


def save_grid(path: str | Path, images: Pixels, *, columns: int | None = None) -> None:
    """Write images side by side as one PNG, row by row.

    Args:
        path: The file.
        images: (N, C, H, W) uint8 with 1 or 3 channels. Small images are enlarged by a whole factor, each
            pixel to a square.
        columns: Images per row; by default about as many as rows.

    Raises:
        UserError: The images are not 1- or 3-channel pixels.
    """
    from PIL import Image

    _check(images)
    count, channels, height, width = images.shape
    if channels not in (1, 3):
        raise UserError(f"{path}: images with {channels} channels cannot be a PNG (1 or 3 can)")
    columns = min(count, columns or math.ceil(math.sqrt(count)))
    rows = math.ceil(count / columns)
    factor = max(1, _SMALLEST_CELL // max(height, width))
    height, width = height * factor, width * factor
    sheet = np.full(
        (rows * (height + _GAP) - _GAP, columns * (width + _GAP) - _GAP, channels), 255, dtype=np.uint8
    )
    for index, image in enumerate(images):
        top, left = (index // columns) * (height + _GAP), (index % columns) * (width + _GAP)
        large = image.transpose(1, 2, 0).repeat(factor, axis=0).repeat(factor, axis=1)
        sheet[top : top + height, left : left + width] = large
    with atomic_write(path, "wb") as file:
        Image.fromarray(sheet[:, :, 0] if channels == 1 else sheet).save(file, format="PNG")


def save_npz(path: str | Path, images: Pixels, labels: npt.NDArray[np.int64] | None = None) -> None:
    """Write images as `arr_0`, uint8 (N, H, W, C), as the ADM evaluator reads them, and labels as `labels`.

    Args:
        path: The file.
        images: (N, C, H, W) uint8.
        labels: (N,) or None.
    """
    _check(images)
    arrays: dict[str, npt.NDArray[np.generic]] = {"arr_0": np.ascontiguousarray(images.transpose(0, 2, 3, 1))}
    if labels is not None:
        arrays["labels"] = np.asarray(labels, dtype=np.int64)
    with atomic_write(path, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _check(images: Pixels) -> None:
    if images.dtype != np.uint8 or images.ndim != 4 or len(images) == 0:
        raise ValueError(f"images must be uint8 (N, C, H, W), got {images.dtype} {images.shape}")
