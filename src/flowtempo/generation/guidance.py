"""Classifier-free guidance (Ho & Salimans, 2022, arXiv:2207.12598)."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from flowtempo.errors import UserError
from flowtempo.generation.ode import Field


class Model(Protocol):
    """What is needed of a network: how many classes it knows (0: unconditional) and its forward."""

    num_classes: int

    def __call__(self, x: Tensor, t: Tensor, y: Tensor | None) -> Tensor:
        """(B, C, H, W), (B,), (B,) or None -> (B, C, H, W); the label `num_classes` means no class."""
        ...


def check_guidance(model: Model, scale: float) -> None:
    """Check a guidance scale before anything is computed.

    Raises:
        UserError: The scale is negative or not finite, or has no effect because the model is unconditional.
    """
    if not (math.isfinite(scale) and scale >= 0):
        raise UserError(f"guidance is {scale}: it must be 0 or more (1 is the conditional model as it is)")
    if model.num_classes == 0 and scale != 1:
        raise UserError(
            f"guidance is {scale}, but the model is unconditional: it was trained without labels and has "
            "nothing to be guided to; leave guidance at 1"
        )


def guided(model: Model, y: Tensor | None, scale: float) -> Field:
    """The network's prediction for labels `y` under guidance, on all channels.

    unconditional + scale x (conditional - unconditional), both from one doubled batch. Scale 1 is the
    conditional model itself and scale 0 the unconditional one, at the cost of one plain batch.
    All predictions are affine in the velocity at a given x_t, so it does not matter which one is guided.

    Args:
        model: The network.
        y: (B,) int64 labels; None for an unconditional model.
        scale: Guidance scale.

    Returns:
        (x, t) -> prediction.
    """
    check_guidance(model, scale)
    if y is None or scale == 1:
        return lambda x, t: model(x, t, y)
    null = torch.full_like(y, model.num_classes)
    if scale == 0:
        return lambda x, t: model(x, t, null)
    both = torch.cat([y, null])

    def predict(x: Tensor, t: Tensor) -> Tensor:
        conditional, unconditional = model(torch.cat([x, x]), torch.cat([t, t]), both).chunk(2)
        return torch.lerp(unconditional, conditional, scale)

    return predict
