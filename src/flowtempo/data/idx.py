"""IDX files, the format of MNIST and Fashion-MNIST, plain or gzip-compressed.

Format: two zero bytes, a type code (8 = uint8), the number of axes, each axis as a big-endian uint32,
then the values in C order.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from flowtempo.errors import UserError

_PREFIX = {"train": "train", "test": "t10k"}
_TYPES = {8: "uint8", 9: "int8", 11: "int16", 12: "int32", 13: "float32", 14: "float64"}
_DEFLATE_LIMIT = 1032  # no deflate stream grows by more: bounds what a false header can make us allocate


def load_idx(path: Path, labels: Path | None, split: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Images and labels from a folder in the MNIST layout, or from one image file and one label file.

    Args:
        path: A folder with `train-images-idx3-ubyte`, `t10k-labels-idx1-ubyte` and so on, each plain or
            `.gz` (the plain file wins); or one image file.
        labels: The label file of a single image file; None for no labels. Not allowed with a folder.
        split: `"train"` or `"test"`, for a folder.

    Returns:
        (N, 1, H, W) uint8 (memory-mapped when not compressed) and (N,) int64 or None.

    Raises:
        UserError: If a file is missing, damaged, of the wrong kind, or the counts differ.
    """
    if path.is_dir():
        if labels is not None:
            raise UserError(f"{path}: a folder already names its label files: leave out labels={labels}")
        labels = _member(path, f"{_PREFIX[split]}-labels-idx1-ubyte")
        path = _member(path, f"{_PREFIX[split]}-images-idx3-ubyte")
    elif split != "train":
        raise UserError(f"{path}: split={split} needs a folder; a single file has no splits")
    images = read_idx(path, axes=3)
    if labels is None:
        return images[:, None], None
    classes = read_idx(labels, axes=1)
    if len(classes) != len(images):
        raise UserError(f"{labels}: {len(classes)} labels for the {len(images)} images of {path}")
    return images[:, None], classes.astype(np.int64)


def read_idx(path: Path, axes: int) -> np.ndarray:
    """One uint8 IDX file with the given number of axes (3 for images, 1 for labels).

    Raises:
        UserError: If the file is missing, unreadable, not IDX, not uint8, has other axes, is cut short,
            or goes on after the last value.
    """
    try:
        with open(path, "rb") as file:
            compressed = file.read(2) == b"\x1f\x8b"
        stored = path.stat().st_size
        if not compressed:
            with open(path, "rb") as file:
                shape, offset = _header(file, path, axes)
            _check_size(path, math.prod(shape), stored - offset)
            return np.memmap(path, dtype=np.uint8, mode="r", offset=offset, shape=shape)
        with gzip.open(path, "rb") as unpacked:
            shape, _ = _header(unpacked, path, axes)
            size = math.prod(shape)
            if size > stored * _DEFLATE_LIMIT:
                raise UserError(
                    f"{path}: cut short: its header announces {size} values, too many for its size"
                )
            content = unpacked.read(size + 1)  # the byte after the end makes gzip check its checksum
        _check_size(path, size, len(content))
        return np.frombuffer(content, dtype=np.uint8).reshape(shape)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: damaged gzip file ({error}): copy or download it again") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error


def _header(file: IO[bytes] | gzip.GzipFile, path: Path, axes: int) -> tuple[tuple[int, ...], int]:
    length = 4 + 4 * axes
    head = file.read(length)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _TYPES:
        raise UserError(f"{path}: not an IDX file (starts with {head[:4].hex() or 'nothing'})")
    if head[2] != 8:
        raise UserError(f"{path}: holds {_TYPES[head[2]]} values; only uint8 IDX files are read")
    if head[3] != axes:
        kind = "images" if axes == 3 else "labels"
        raise UserError(f"{path}: has {head[3]} axes where {kind} have {axes}: is it the right file?")
    if len(head) < length:
        raise UserError(f"{path}: ends inside its header: copy or download it again")
    shape = struct.unpack(f">{axes}I", head[4:])
    if 0 in shape:
        raise UserError(f"{path}: holds no values (axes {shape})")
    return shape, length


def _check_size(path: Path, announced: int, found: int) -> None:
    if found < announced:
        raise UserError(
            f"{path}: cut short: its header announces {announced} values, {found} are there: "
            "copy or download it again"
        )
    if found > announced:
        raise UserError(f"{path}: goes on after the {announced} values that its header announces")


def _member(folder: Path, name: str) -> Path:
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    raise UserError(f"{folder}: has no {name} or {name}.gz")
