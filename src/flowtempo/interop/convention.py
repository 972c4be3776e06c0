"""The two directions of time, and the way between them.

flowtempo counts t = 0 as noise and t = 1 as data. Others count the noise level tau = 1 - t: the same noisy
image stands at 1 - t, and its velocity, the derivative by time, has the other sign.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

from torch import Tensor

from flowtempo.errors import UserError

Convention = Literal["data_time", "noise_time"]
"""`data_time`: t = 1 is data (flowtempo, SiT, flow_matching, torchcfm); `noise_time`: t = 1 is noise
(diffusers, SD3, Flux, REPA)."""


def convert_time(t: Tensor, source: Convention, to: Convention) -> Tensor:
    """A time of one convention as the other counts it: t, or 1 - t.

    Raises:
        UserError: If a convention is unknown.
    """
    return 1 - t if _differ(source, to) else t


def convert_velocity(velocity: Tensor, source: Convention, to: Convention) -> Tensor:
    """A velocity of one convention as the other counts it: itself, or its negative.

    Raises:
        UserError: If a convention is unknown.
    """
    return -velocity if _differ(source, to) else velocity


def convert_velocity_model(
    model: Callable[..., Tensor], source: Convention, to: Convention
) -> Callable[..., Tensor]:
    """A velocity model of one convention as a model of the other.

    Args:
        model: Called with (x_t, t, ...), t in `source`, (B,); returns the velocity, the shape of x_t.
        source: The model's own convention.
        to: The convention of the times that the result is given, and of the velocities it returns.

    Raises:
        UserError: If a convention is unknown.
    """
    if not _differ(source, to):
        return model

    def converted(x: Tensor, t: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return -model(x, 1 - t, *args, **kwargs)

    return converted


def _differ(source: Convention, to: Convention) -> bool:
    for name in (source, to):
        if name not in get_args(Convention):
            raise UserError(f"unknown time convention {name!r}; known: {', '.join(get_args(Convention))}")
    return source != to
