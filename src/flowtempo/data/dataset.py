"""The one in-memory form of a data set, and the rule that turns pixels into model units and back."""

from __future__ import annotations

import copy
import mmap
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flowtempo.data.scaling import Scaling, whole_std
from flowtempo.data.scan import Scan, scan
from flowtempo.errors import UserError

MOST_CLASSES = 1 << 20
"""More classes than this are a mistake: labels that are identifiers, hashes or another column."""

_REMEDY = {
    "f": "save array.astype('float32')",
    "i": "save pixels 0..255 as array.astype('uint8'), anything else as float32 in the units of the model",
}
_REMEDY["u"] = _REMEDY["i"]


@dataclass(frozen=True, eq=False)
class ArrayData:
    """Images (or latents) in one array, with optional labels.

    Model units: uint8 pixels v become v / 127.5 - 1, in [-1, 1]; floats are used as they are. `scaled` gives
    either another standard deviation.
    Construction reads the images once, in bounded memory, for the fingerprint and the statistics; later
    only the rows of a batch are read. The array must not change in the meantime.

    Attributes:
        images: (N, C, H, W) uint8, float16 or float32, possibly memory-mapped.
        labels: (N,) int64 in [0, num_classes), or None.
        num_classes: Number of classes; 0 without labels.
        name: For records and errors.
        fingerprint: SHA-256 (hex) of dtype, shape and contents of images and labels, whatever the scaling.
        scaling: From those units to model units.
        progress: Called with the fraction that construction has read.

    Raises:
        UserError: On a wrong dtype or shape, no images, NaN or infinity, or labels out of range.
    """

    images: np.ndarray
    labels: np.ndarray | None = None
    num_classes: int = 0
    name: str = "array"
    progress: InitVar[Callable[[float], None] | None] = None
    fingerprint: str = field(init=False)
    scaling: Scaling = field(init=False, default=Scaling())
    _scan: Scan = field(init=False, repr=False)
    _mapping: tuple[mmap.mmap, int] | None = field(init=False, repr=False)

    def __post_init__(self, progress: Callable[[float], None] | None) -> None:
        images, name = self.images, self.name
        if images.dtype not in (np.uint8, np.float16, np.float32):
            raise UserError(
                f"{name}: images must be uint8, float16 or float32 of this machine, got {images.dtype}: "
                f"{_REMEDY.get(images.dtype.kind, 'save numbers')}"
            )
        if images.ndim != 4 or 0 in images.shape:
            raise UserError(f"{name}: images must be (N, C, H, W) with no empty axis, got {images.shape}")
        self._check_labels()
        # np.asarray drops the memmap subclass (whose slices are slow), not the mapping
        object.__setattr__(self, "images", np.asarray(images))
        object.__setattr__(self, "_mapping", _mapping(images))
        object.__setattr__(self, "_scan", scan(self.images, self.labels, name, self._check_file, progress))
        object.__setattr__(self, "fingerprint", self._scan.fingerprint)

    def _check_labels(self) -> None:
        labels, name = self.labels, self.name
        if labels is None:
            if self.num_classes:
                raise UserError(f"{name}: num_classes is {self.num_classes} but there are no labels")
            return
        if labels.dtype != np.int64 or labels.shape != (len(self.images),):
            raise UserError(
                f"{name}: labels must be int64 ({len(self.images)},), got {labels.dtype} {labels.shape}"
            )
        if labels.min() < 0:
            raise UserError(
                f"{name}: labels run from {labels.min()} to {labels.max()}: they must be numbered from 0"
            )
        if self.num_classes > MOST_CLASSES:
            raise UserError(f"{name}: {self.num_classes} classes are more than {MOST_CLASSES}")
        if labels.max() >= self.num_classes:
            raise UserError(
                f"{name}: labels run from {labels.min()} to {labels.max()}, outside 0..{self.num_classes - 1}"
            )

    def _check_file(self) -> None:
        """Refuse a mapped file that became shorter, since reading past its end kills the process."""
        if self._mapping is not None:
            mapped, needed = self._mapping
            if mapped.size() < needed:
                raise UserError(
                    f"{self.name}: was cut short while in use, to {mapped.size()} of {needed} bytes: "
                    "leave the file alone until the command is done"
                )

    def __len__(self) -> int:
        return len(self.images)

    def scaled(self, scaling: Scaling) -> ArrayData:
        """The same images in other model units; they are not read again."""
        other = copy.copy(self)
        object.__setattr__(other, "scaling", scaling)
        return other

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image."""
        return self.images.shape[1], self.images.shape[2], self.images.shape[3]

    @property
    def channel_mean(self) -> np.ndarray:
        """(C,) float64 mean per channel, in model units."""
        mean = self._scan.mean
        return self.scaling.mean(mean / 127.5 - 1 if self.images.dtype == np.uint8 else mean)

    @property
    def channel_std(self) -> np.ndarray:
        """(C,) float64 population standard deviation per channel, in model units."""
        std = self._scan.std
        return self.scaling.std(std / 127.5 if self.images.dtype == np.uint8 else std)

    @property
    def std(self) -> float:
        """One standard deviation for all channels, in model units: the root of their mean variance."""
        return whole_std(self.channel_std)

    def batch(self, indices: Sequence[int] | np.ndarray | Tensor) -> tuple[Tensor, Tensor | None]:
        """Images and labels at `indices`, in model units.

        Args:
            indices: (B,) integers in [0, N), in any order, repeats allowed.

        Returns:
            (B, C, H, W) float32 and (B,) int64, or None without labels.

        Raises:
            IndexError: If an index is out of range or not an integer.
            UserError: If the file that holds the images was cut short in the meantime.
        """
        index = np.asarray(indices)
        if index.size == 0:
            index = index.astype(np.int64)
        if index.ndim != 1 or index.dtype.kind not in "iu":
            raise IndexError(f"indices must be a vector of integers, got {index.dtype} {index.shape}")
        if index.size and (index.min() < 0 or index.max() >= len(self)):
            raise IndexError(f"indices run from {index.min()} to {index.max()}, outside 0..{len(self) - 1}")
        self._check_file()
        x = torch.from_numpy(self.images[index])
        if x.dtype == torch.uint8:
            x = x.to(torch.float32).div_(127.5).sub_(1)
        x = self.scaling.apply_(x.to(torch.float32))
        y = None if self.labels is None else torch.from_numpy(self.labels[index])
        return x, y

    def to_uint8(self, x: Tensor) -> np.ndarray:
        """Pixels from model units: unscaled, (x + 1) 127.5, rounded half to even, clipped to 0..255.

        The exact inverse of `batch` on uint8 data.

        Args:
            x: (B, C, H, W) floats in model units.

        Raises:
            UserError: If `x` holds NaN, or if these data are not pixels (float values outside [-1, 1]).
        """
        if self.images.dtype != np.uint8 and (self._scan.low < -1 or self._scan.high > 1):
            raise UserError(
                f"{self.name}: values run from {self._scan.low:.4g} to {self._scan.high:.4g}, "
                "not [-1, 1]: these are not pixels and have no uint8 form"
            )
        pixels = (self.scaling.undo(x.detach().to("cpu", torch.float32)) + 1) * 127.5
        if bool(pixels.isnan().any()):
            raise UserError("images hold NaN and cannot become pixels: the model has diverged")
        return pixels.round_().clamp_(0, 255).to(torch.uint8).numpy()

    def describe(self) -> dict[str, Any]:
        """What a record says about the data: name, fingerprint, count, shape, channel mean and std.

        The last two are in model units; "scaling" says how these were reached, if they are not the images'.
        """
        scaling = self.scaling.record()
        return {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "count": len(self),
            "shape": list(self.shape),
            "channel_mean": self.channel_mean.tolist(),
            "channel_std": self.channel_std.tolist(),
            **({} if scaling is None else {"scaling": scaling}),
        }


def _mapping(array: np.ndarray) -> tuple[mmap.mmap, int] | None:
    """The file mapping under an array, and the size in bytes that the file must keep; None in memory."""
    mapped: Any = array
    while isinstance(mapped, np.ndarray):
        whole, mapped = mapped, mapped.base
    if not isinstance(mapped, mmap.mmap) or not isinstance(whole, np.memmap):
        return None
    return mapped, whole.offset + whole.nbytes
