"""From a configuration to a data set."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from flowtempo.data.arrays import Layout, load_arrays
from flowtempo.data.dataset import ArrayData
from flowtempo.data.digits import load_digits
from flowtempo.data.emoji import DEBIAN_FONT, load_emoji
from flowtempo.data.idx import load_idx
from flowtempo.data.latents import Buckets, shape_text
from flowtempo.data.scaling import Scaling, Standardise
from flowtempo.data.sd_scripts import read_sd_scripts
from flowtempo.data.simpletuner import read_simpletuner
from flowtempo.errors import UserError

Kind = Literal["digits", "idx", "array", "emoji", "sd-scripts", "simpletuner"]
Split = Literal["train", "test"]
Size = Literal[32, 64]
Progress = Callable[[float], None]

_PACKAGES = {
    "/usr/share/datasets/fashion-mnist": "dataset-fashion-mnist",
    DEBIAN_FONT: "fonts-noto-color-emoji",
}
# The keys besides kind and limit that have an effect.
_OPTIONS: dict[str, tuple[str, ...]] = {
    "digits": ("split",),
    "idx": ("path", "labels", "split"),
    "array": ("path", "labels", "layout"),
    "emoji": ("path", "split", "size"),
    "sd-scripts": ("path", "bucket", "scale"),
    "simpletuner": ("path", "bucket"),
}
_NEED_PATH = ("idx", "array", "sd-scripts", "simpletuner")
# Kinds that are read image by image: that takes most of the time, and checking the array little.
_ONE_BY_ONE = ("emoji", "sd-scripts", "simpletuner")
_READING = 0.9


@dataclass
class DataConfig:
    """Which images to use.

    Attributes:
        kind: `digits` (scikit-learn's, needs the `demo` extra), `emoji` (those of a font, needs the `demo`
            extra), `idx` (MNIST's file format), `array` (a `.npy` or `.npz` file), or the latents that
            `sd-scripts` or `simpletuner` cached.
        path: For `idx` a folder such as /usr/share/datasets/fashion-mnist, or one image file; for `array`
            the file; for `emoji` the font (null is that of Debian's fonts-noto-color-emoji); for cached
            latents the folder, searched with its subfolders.
        labels: Label file that goes with a single `idx` file or an `array` without labels.
        split: Part of `digits`, of `emoji` or of an `idx` folder.
        limit: Use only so many images: a fixed random choice, in the order of the source. The choice
            for a smaller limit is part of that for a larger one.
        layout: Axis order of an `array` whose channel axis is unclear.
        size: Height and width of `emoji`, 32 or 64.
        bucket: The one size of cached latents to use, `HxW` in latent pixels; null is all.
        scale: Factor from the latents that `sd-scripts` cached to those it trains on; null takes that of the
            model in the files' names.
        target_std: Scale the images so that their standard deviation is this where the model sees them;
            generated images are scaled back. null leaves it as it is.
        standardise: What target_std holds for: `whole` multiplies all channels by one factor, `channel`
            gives each channel the mean 0 and that standard deviation.
    """

    kind: Kind = "digits"
    path: str | None = None
    labels: str | None = None
    split: Split = "train"
    limit: int | None = None
    layout: Layout | None = None
    size: Size = 32
    bucket: str | None = None
    scale: float | None = None
    target_std: float | None = None
    standardise: Standardise = "whole"


@dataclass(frozen=True)
class _Images:
    """Images of one shape as they were read."""

    images: np.ndarray
    labels: np.ndarray | None
    num_classes: int
    name: str


def load(
    config: DataConfig, progress: Progress | None = None, *, scaling: Scaling | None = None
) -> ArrayData:
    """Read and check the data, all of one shape.

    Args:
        config: Which.
        progress: Called with the fraction done.
        scaling: That of the data a model was trained on, for images that it is to see as it saw those; None
            takes `target_std` and the statistics of the images that are read.

    Raises:
        UserError: On an unknown name, an option without effect on this kind, a missing or damaged file,
            wrong dtypes or shapes, NaN, a limit outside 1..N, latents of several shapes, constant images
            that are to be scaled, or another target_std than that of `scaling`. The message is one line
            with the file.
    """
    read = _read(config, progress)
    if len(read) > 1:
        shapes = ", ".join(f"{shape_text(part.images.shape[1:])} ({len(part.images)})" for part in read)
        raise UserError(
            f"{config.path}: holds latents of several shapes, C x H x W (count): {shapes}: choose one size "
            f"with data.bucket, such as {shape_text(read[0].images.shape[2:])}"
        )
    return _checked(config, read, progress, scaling)[0]


def load_buckets(config: DataConfig, progress: Progress | None = None) -> list[ArrayData]:
    """Read and check the data, one set for each shape of image, the set with most images first.

    Only cached latents come in several shapes. A limit counts the images of all shapes together, and so do
    the statistics that `target_std` scales by.

    Args:
        config: Which.
        progress: Called with the fraction done.

    Raises:
        UserError: As `load`, but for latents of several shapes.
    """
    return _checked(config, _read(config, progress), progress, None)


def _read(config: DataConfig, progress: Progress | None) -> list[_Images]:
    _check(config)
    reading = _within(progress, 0.0, _READING)
    labels: np.ndarray | None = None
    if config.kind == "digits":
        images, labels = load_digits(config.split)
        return [_limited(config, images, labels, f"digits/{config.split}")]
    path, label_file = _files(config)
    name = f"{path.name}/{config.split}" if config.kind == "emoji" or path.is_dir() else str(path)
    if config.kind == "sd-scripts":
        return _buckets(config, read_sd_scripts(path, config.scale, reading), path)
    if config.kind == "simpletuner":
        return _buckets(config, read_simpletuner(path, reading), path)
    if config.kind == "emoji":
        images = load_emoji(path, config.size, config.split, reading)
    elif config.kind == "idx":
        images, labels = load_idx(path, label_file, config.split)
    else:
        images, labels = load_arrays(path, label_file, config.layout)
    return [_limited(config, images, labels, name)]


def _limited(config: DataConfig, images: np.ndarray, labels: np.ndarray | None, name: str) -> _Images:
    # classes that the limit leaves out still count
    num_classes = 0 if labels is None else int(labels.max(initial=-1)) + 1
    if config.limit is not None:
        keep = _choose(len(images), config.limit, name)
        images, labels = images[keep], None if labels is None else labels[keep]
    return _Images(images, labels, num_classes, name)


def _buckets(config: DataConfig, latents: Iterable[np.ndarray], folder: Path) -> list[_Images]:
    buckets = Buckets(config.bucket)
    for latent in latents:
        buckets.add(latent)
    if len(buckets) == 0:
        known = ", ".join(sorted(buckets.left_out))
        raise UserError(f"data.bucket={config.bucket}: {folder} has latents of {known} only")
    keep = None if config.limit is None else _choose(len(buckets), config.limit, str(folder))
    arrays = buckets.arrays(keep)
    several = len(arrays) > 1
    names = [f"{folder} ({shape_text(array.shape[1:])})" if several else str(folder) for array in arrays]
    return [_Images(array, None, 0, name) for array, name in zip(arrays, names, strict=True)]


def _checked(
    config: DataConfig, read: list[_Images], progress: Progress | None, scaling: Scaling | None
) -> list[ArrayData]:
    before = _READING if config.kind in _ONE_BY_ONE else 0.0
    total = sum(part.images.size for part in read)
    sets = []
    for part in read:
        # an empty array is refused in ArrayData
        after = before + (1 - before) * part.images.size / max(1, total)
        total -= part.images.size
        scanning = _within(progress, before, after)
        sets.append(ArrayData(part.images, part.labels, part.num_classes, part.name, scanning))
        before = after
    if scaling is None:
        scaling = _scaling(config, sets)
    elif config.target_std is not None and (config.target_std, config.standardise) != (
        scaling.target_std,
        scaling.standardise,
    ):
        trained = "as they are" if scaling.target_std is None else f"with target_std={scaling.target_std}"
        raise UserError(
            f"data.target_std={config.target_std} has no effect on {sets[0].name}: the model was trained on "
            f"images {trained} and sees these in the same way: leave it out"
        )
    return [part.scaled(scaling) for part in sets]


def _scaling(config: DataConfig, sets: list[ArrayData]) -> Scaling:
    """The scaling by the statistics of all sets together."""
    if config.target_std is None:
        return Scaling()
    if len({part.shape[0] for part in sets}) > 1:
        raise UserError(
            f"data.target_std={config.target_std}: the latents of {config.path} differ in their number of "
            "channels: choose one size with data.bucket"
        )
    share = np.array([[part.images.size] for part in sets], dtype=np.float64)
    share /= share.sum()
    means = np.array([part.channel_mean for part in sets])
    mean = (share * means).sum(0)
    variance = (share * (np.array([part.channel_std for part in sets]) ** 2 + (means - mean) ** 2)).sum(0)
    return Scaling.measured(config.target_std, config.standardise, mean, np.sqrt(variance), sets[0].name)


def _within(progress: Progress | None, low: float, high: float) -> Progress | None:
    """Progress of the part from `low` to `high` of the whole."""
    return None if progress is None else lambda fraction: progress(low + (high - low) * fraction)


def _files(config: DataConfig) -> tuple[Path, Path | None]:
    """The data, which is there, and the label file."""
    path = Path(config.path or DEBIAN_FONT).expanduser()
    labels = None if config.labels is None else Path(config.labels).expanduser()
    if not path.exists():
        package = _PACKAGES.get(str(path))
        hint = "" if package is None else f" (apt install {package})"
        raise UserError(f"{path}: no such file or folder{hint}")
    for file in (path, labels):
        if file is not None and file.exists() and not (file.is_file() or file.is_dir()):
            raise UserError(f"{file}: not a regular file: save the data to a file and give its name")
    return path, labels


def _check(config: DataConfig) -> None:
    choices: dict[str, tuple[object, ...]] = {
        "kind": get_args(Kind),
        "split": get_args(Split),
        "layout": (None, *get_args(Layout)),
        "size": get_args(Size),
        "standardise": get_args(Standardise),
    }
    for key, known in choices.items():
        value = getattr(config, key)
        if value not in known:
            listed = ", ".join(str(choice) for choice in known if choice is not None)
            raise UserError(f"data.{key}: unknown {value!r}; known: {listed}")
    for key in ("path", "labels", "split", "layout", "size", "bucket", "scale"):
        value = getattr(config, key)
        if key not in _OPTIONS[config.kind] and value != getattr(DataConfig, key):
            raise UserError(f"data.{key}={value} has no effect with kind={config.kind}: leave it out")
    if config.kind in _NEED_PATH and config.path is None:
        raise UserError(f"data.path is missing: kind={config.kind} reads a file or folder")
    if config.bucket is not None and not re.fullmatch(r"[1-9]\d*x[1-9]\d*", config.bucket):
        raise UserError(f"data.bucket={config.bucket}: give height and width of the latents, such as 64x96")
    if config.scale is not None and not (math.isfinite(config.scale) and config.scale > 0):
        raise UserError(f"data.scale={config.scale}: give a positive number")
    if config.target_std is not None and not (math.isfinite(config.target_std) and config.target_std > 0):
        raise UserError(f"data.target_std={config.target_std}: give a positive number")
    if config.target_std is None and config.standardise != DataConfig.standardise:
        raise UserError(
            f"data.standardise={config.standardise} has no effect without data.target_std: set that too, or "
            "leave it out"
        )


def _choose(count: int, limit: int, name: str) -> np.ndarray:
    if not 1 <= limit <= count:
        raise UserError(f"data.limit={limit} is outside 1..{count}, the images of {name}")
    # random and not the first or every k-th: files are often sorted by class or cycle through them
    key = np.random.Philox(key=0).random_raw(count)
    return np.sort(np.argsort(key, kind="stable")[:limit])
