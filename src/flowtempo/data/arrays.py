"""NumPy files: `.npy` (memory-mapped) and `.npz`. No pickle is ever read."""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np

from flowtempo.data.dataset import MOST_CLASSES
from flowtempo.errors import UserError

Layout = Literal["nchw", "nhwc"]

_IMAGE_KEYS = ("images", "x", "arr_0")
_LABEL_KEYS = ("labels", "y", "arr_1")
_PIXEL_CHANNELS = (1, 3, 4)
# What NumPy and zipfile raise on bytes that are no array; their headers are Python text.
_DAMAGED = (
    ValueError,
    EOFError,
    SyntaxError,
    tokenize.TokenError,
    TypeError,
    KeyError,
    OverflowError,
    MemoryError,
    RuntimeError,
    struct.error,
)


def load_arrays(
    path: Path, labels: Path | None, layout: Layout | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Images and labels from a `.npy` or `.npz` file.

    Args:
        path: `.npy` with the images, or `.npz` with `images`, `x` or `arr_0` and, optionally, `labels`,
            `y` or `arr_1`.
        labels: A `.npy` file with the labels, if `path` holds none.
        layout: Order of the axes of a four-axis array. None takes the axis of size 1, 3 or 4 as the
            channels and refuses an array where both or neither could be.

    Returns:
        (N, C, H, W) in the dtype of the file (not copied) and (N,) int64 or None.

    Raises:
        UserError: If a file is missing, damaged or pickled, lacks the images, has an unclear layout, or
            holds labels that are not N integers.
    """
    classes = None
    if path.suffix == ".npz":
        images, classes = _read_npz(path)
    elif path.suffix == ".npy":
        images = _read_npy(path)
    else:
        raise UserError(f"{path}: not a .npy or .npz file")
    images = _channels_first(path, images, layout)
    if labels is not None:
        if classes is not None:
            raise UserError(f"{path}: holds labels already: leave out labels={labels}")
        path, classes = labels, _read_npy(labels)
    if classes is None:
        return images, None
    if classes.dtype.kind not in "iu" or classes.shape != (len(images),):
        raise UserError(
            f"{path}: labels must be {len(images)} integers, one per image, "
            f"got {classes.dtype} {classes.shape}"
        )
    if len(classes) and int(classes.max()) >= MOST_CLASSES:
        raise UserError(
            f"{path}: labels run up to {classes.max()}, more than {MOST_CLASSES} classes: number them from 0"
        )
    return images, classes.astype(np.int64)


def _read_npy(path: Path) -> np.ndarray:
    try:
        with open(path, "rb") as file:
            if file.read(6) != b"\x93NUMPY":
                raise UserError(f"{path}: not a .npy file: write it with numpy.save")
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    except _DAMAGED as error:
        if isinstance(error, UserError):
            raise
        raise UserError(_explain(path, error)) from error


def _read_npz(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    keys: list[str] = []

    def choose(held: list[str]) -> list[str]:
        images, labels = _only(path, held, _IMAGE_KEYS), _only(path, held, _LABEL_KEYS)
        if images is None:
            known, there = " or ".join(_IMAGE_KEYS), ", ".join(sorted(held)) or "nothing"
            raise UserError(f"{path}: holds {there}; the images must be named {known}")
        keys.extend(key for key in (images, labels) if key is not None)
        return keys

    found = read_members(path, choose)
    return found[keys[0]], found[keys[1]] if len(keys) > 1 else None


def read_members(path: Path, choose: Callable[[list[str]], list[str]]) -> dict[str, np.ndarray]:
    """Some of the arrays of a `.npz` file; the others are not read.

    Args:
        path: The file.
        choose: From the names of all arrays in the file to those that are wanted.

    Raises:
        UserError: If the file is missing, damaged or holds Python objects; names it.
    """
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise UserError(f"{path}: not a .npz file: write it with numpy.savez")
        with archive:
            found = {key: archive[key] for key in choose(archive.files)}
        for key, array in found.items():
            if not isinstance(array, np.ndarray):
                raise UserError(f"{path}: its member {key} is no array: write the file with numpy.savez")
        return found
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise UserError(f"{path}: damaged .npz file ({error}): write or copy it again") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    except _DAMAGED as error:
        if isinstance(error, UserError):
            raise
        raise UserError(_explain(path, error)) from error


def _only(path: Path, held: list[str], keys: tuple[str, ...]) -> str | None:
    found = [key for key in keys if key in held]
    if len(found) > 1:
        raise UserError(f"{path}: holds {' and '.join(found)}: which is meant? Keep one of them")
    return found[0] if found else None


def _explain(path: Path, error: Exception) -> str:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    if "allow_pickle" in reason or "Python objects" in reason:
        return f"{path}: holds Python objects (images of mixed shapes?): save one array of numbers"
    return f"{path}: damaged or cut short ({reason}): write or copy it again"


def _channels_first(path: Path, images: np.ndarray, layout: Layout | None) -> np.ndarray:
    if images.ndim == 3:
        if layout is not None:
            raise UserError(f"{path}: layout={layout} has no effect on {images.shape}, which is (N, H, W)")
        return images[:, None]
    if images.ndim != 4:
        raise UserError(f"{path}: images must be (N, H, W), (N, C, H, W) or (N, H, W, C), got {images.shape}")
    if layout is None:
        first, last = images.shape[1] in _PIXEL_CHANNELS, images.shape[3] in _PIXEL_CHANNELS
        if first == last:
            which = "either axis 1 or axis 3" if first else "no axis of size 1, 3 or 4"
            raise UserError(f"{path}: {images.shape} has {which} for channels: set layout to nchw or nhwc")
        layout = "nchw" if first else "nhwc"
    return images if layout == "nchw" else images.transpose(0, 3, 1, 2)
