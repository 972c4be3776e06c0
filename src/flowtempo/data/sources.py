"""From a configuration to a data set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from flowtempo.data.arrays import Layout, load_arrays
from flowtempo.data.dataset import ArrayData
from flowtempo.data.digits import load_digits
from flowtempo.data.idx import load_idx
from flowtempo.errors import UserError

Kind = Literal["digits", "idx", "array"]
Split = Literal["train", "test"]

_DEBIAN_FOLDER = "/usr/share/datasets/fashion-mnist"


@dataclass
class DataConfig:
    """Which images to use.

    Attributes:
        kind: `digits` (scikit-learn's, needs the `demo` extra), `idx` (MNIST's file format) or `array`
            (a `.npy` or `.npz` file).
        path: For `idx` a folder such as /usr/share/datasets/fashion-mnist, or one image file; for `array`
            the file.
        labels: Label file that goes with a single `idx` file or an `array` without labels.
        split: Part of `digits` or of an `idx` folder.
        limit: Use only so many images: a fixed random choice, in the order of the source. The choice
            for a smaller limit is part of that for a larger one.
        layout: Axis order of an `array` whose channel axis is unclear.
    """

    kind: Kind = "digits"
    path: str | None = None
    labels: str | None = None
    split: Split = "train"
    limit: int | None = None
    layout: Layout | None = None


def load(config: DataConfig) -> ArrayData:
    """Read and check the data.

    Raises:
        UserError: On an unknown name, an option without effect on this kind, a missing or damaged file,
            wrong dtypes or shapes, NaN, or a limit outside 1..N. The message is one line with the file.
    """
    _check(config)
    path = None if config.path is None else Path(config.path).expanduser()
    labels = None if config.labels is None else Path(config.labels).expanduser()
    images: np.ndarray
    classes: np.ndarray | None
    if path is None:
        images, classes = load_digits(config.split)
        name = f"digits/{config.split}"
    else:
        if not path.exists():
            hint = " (apt install dataset-fashion-mnist)" if str(path) == _DEBIAN_FOLDER else ""
            raise UserError(f"{path}: no such file or folder{hint}")
        for file in (path, labels):
            if file is not None and file.exists() and not (file.is_file() or file.is_dir()):
                raise UserError(f"{file}: not a regular file: save the data to a file and give its name")
        if config.kind == "idx":
            images, classes = load_idx(path, labels, config.split)
            name = f"{path.name}/{config.split}" if path.is_dir() else str(path)
        else:
            images, classes = load_arrays(path, labels, config.layout)
            name = str(path)
    num_classes = 0 if classes is None else int(classes.max(initial=-1)) + 1
    if config.limit is not None:
        keep = _choose(len(images), config.limit, name)
        images, classes = images[keep], None if classes is None else classes[keep]
    return ArrayData(images, classes, num_classes, name)


def _check(config: DataConfig) -> None:
    choices = {"kind": get_args(Kind), "split": get_args(Split), "layout": (None, *get_args(Layout))}
    for key, known in choices.items():
        value = getattr(config, key)
        if value not in known:
            raise UserError(f"data.{key}: unknown {value!r}; known: {', '.join(filter(None, known))}")
    unused = {"digits": ("path", "labels", "layout"), "idx": ("layout",), "array": ("split",)}[config.kind]
    for key in unused:
        value = getattr(config, key)
        if value != getattr(DataConfig, key):
            raise UserError(f"data.{key}={value} has no effect with kind={config.kind}: leave it out")
    if config.kind != "digits" and config.path is None:
        raise UserError(f"data.path is missing: kind={config.kind} reads a file")


def _choose(count: int, limit: int, name: str) -> np.ndarray:
    if not 1 <= limit <= count:
        raise UserError(f"data.limit={limit} is outside 1..{count}, the images of {name}")
    # random and not the first or every k-th: files are often sorted by class or cycle through them
    key = np.random.Philox(key=0).random_raw(count)
    return np.sort(np.argsort(key, kind="stable")[:limit])
