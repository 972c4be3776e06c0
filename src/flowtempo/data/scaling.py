"""The standard deviation of the images that a model sees, and the way back to their own units."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from torch import Tensor

from flowtempo.errors import UserError

Standardise = Literal["whole", "channel"]


@dataclass(frozen=True)
class Scaling:
    """Images to model units, x -> (x - shift) factor in each channel, with the statistics of training data.

    Another standard deviation shifts all log-SNRs by 2 ln of the ratio (FasterDiT, arXiv 2410.10356: one
    factor for all channels). A mean and a factor for each channel also make the channels alike (LightningDiT,
    arXiv 2501.01423, for latents).

    Attributes:
        target_std: The standard deviation in model units; None leaves images as they are.
        standardise: "whole" multiplies all channels by one factor, target_std over the root of their mean
            variance, and leaves the mean; "channel" gives each the mean 0 and the std target_std.
        shift: One number, or one for each channel, in the units of the images.
        factor: One number, or one for each channel.
    """

    target_std: float | None = None
    standardise: Standardise = "whole"
    shift: tuple[float, ...] = (0.0,)
    factor: tuple[float, ...] = (1.0,)

    @classmethod
    def measured(
        cls, target_std: float, standardise: Standardise, mean: np.ndarray, std: np.ndarray, name: str
    ) -> Scaling:
        """The scaling that gives data of these statistics the standard deviation `target_std`.

        Args:
            target_std: In model units, above 0.
            standardise: See the class.
            mean: (C,) of the data.
            std: (C,) of the data.
            name: Of the data, for the error.

        Raises:
            UserError: If what is to be scaled is constant.
        """
        if standardise == "whole":
            shift, scale = np.zeros(1), np.atleast_1d(whole_std(std))
        else:
            shift, scale = mean, std
        if not np.all(scale > 0):
            constant = [str(channel) for channel in np.flatnonzero(std <= 0)]
            remedy = "leave out data.target_std" if np.all(std <= 0) else "use data.standardise=whole"
            raise UserError(
                f"{name}: channel {', '.join(constant)} is constant and cannot be given "
                f"data.target_std={target_std}: {remedy}"
            )
        return cls(target_std, standardise, tuple(shift.tolist()), tuple((target_std / scale).tolist()))

    @classmethod
    def of_record(cls, data: Mapping[str, Any]) -> Scaling:
        """The scaling that a record of the data (`ArrayData.describe`) speaks of.

        Raises:
            UserError: If it has another form.
        """
        record = data.get("scaling")
        if record is None:
            return cls()
        try:
            shift, factor = (tuple(float(value) for value in record[key]) for key in ("shift", "factor"))
            scaling = cls(float(record["target_std"]), record["standardise"], shift, factor)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{data.get('name')}: the record of its scaling is damaged: {record}") from error
        if not all(math.isfinite(value) for value in shift) or not all(0 < f < math.inf for f in factor):
            raise UserError(f"{data.get('name')}: the record of its scaling is damaged: {record}")
        return scaling

    def record(self) -> dict[str, Any] | None:
        """What `of_record` reads under "scaling"; None for images as they are."""
        if self.target_std is None:
            return None
        return {
            "target_std": self.target_std,
            "standardise": self.standardise,
            "shift": list(self.shift),
            "factor": list(self.factor),
        }

    def apply_(self, x: Tensor) -> Tensor:
        """Turn images (B, C, H, W) to model units, in place."""
        if self.target_std is None:
            return x
        if any(self.shift):
            x.sub_(_per_channel(self.shift, x))
        return x.mul_(_per_channel(self.factor, x))

    def undo(self, x: Tensor) -> Tensor:
        """Turn model units (B, C, H, W) back to those of the images."""
        if self.target_std is None:
            return x
        return x / _per_channel(self.factor, x) + _per_channel(self.shift, x)

    def mean(self, mean: np.ndarray) -> np.ndarray:
        """The mean in model units, (C,), of data with this mean."""
        return (mean - np.array(self.shift)) * np.array(self.factor)

    def std(self, std: np.ndarray) -> np.ndarray:
        """The standard deviation in model units, (C,), of data with this one."""
        return std * np.array(self.factor)


def whole_std(channel_std: np.ndarray | Sequence[float]) -> float:
    """One standard deviation for all channels: the root of their mean variance."""
    return float(np.sqrt(np.mean(np.square(channel_std))))


def _per_channel(values: tuple[float, ...], x: Tensor) -> Tensor:
    if len(values) not in (1, x.shape[1]):
        raise ValueError(f"the scaling is of {len(values)} channels and the images have {x.shape[1]}")
    return x.new_tensor(values)[:, None, None]
