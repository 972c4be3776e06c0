"""Losses per sample: each maps a batch (B, ...) to (B,), in float32 at least."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.linalg import vector_norm


def mse(output: Tensor, target: Tensor) -> Tensor:
    """Mean squared error over all but the batch dimension.

    Args:
        output: (B, ...).
        target: The shape of `output`.

    Returns:
        (B,).

    Raises:
        ValueError: If the shapes differ or there is nothing to average.
    """
    output, target = _pair(output, target)
    return (output - target).square().flatten(1).mean(1)


def direction(output: Tensor, target: Tensor, eps: float = 1e-8) -> Tensor:
    """1 - cosine between output and target over the channels, averaged over sites.

    FasterDiT's velocity-direction loss (Yao et al., arXiv 2410.10356). A site where either vector is not
    longer than `eps` has no direction: it counts as 1 and sends no gradient.

    Args:
        output: (B, C, ...), dimension 1 holds the channels.
        target: The shape of `output`.
        eps: Shortest vector that has a direction.

    Returns:
        (B,) between 0 and 2.

    Raises:
        ValueError: If the shapes differ or there is no channel dimension.
    """
    output, target = _pair(output, target)
    has_direction = (vector_norm(output, dim=1) > eps) & (vector_norm(target, dim=1) > eps)
    keep = has_direction.unsqueeze(1)
    # The inner `where` keeps 0 / 0 out of the backward pass too.
    cosine = (_unit(torch.where(keep, output, 1.0)) * _unit(torch.where(keep, target, 1.0))).sum(1)
    return (1 - torch.where(has_direction, cosine, 0.0)).reshape(len(output), -1).mean(1)


def weighted(values: Tensor, weight: Tensor) -> Tensor:
    """Multiply per-sample losses by per-sample weights; average the result over the batch size.

    Args:
        values: (B,).
        weight: (B,). Another shape raises instead of broadcasting.

    Returns:
        (B,).

    Raises:
        ValueError: If one is not (B,).
    """
    if values.ndim != 1 or values.shape != weight.shape:
        raise ValueError(
            f"losses and weights are one number per sample, shape (B,),"
            f" not {tuple(values.shape)} and {tuple(weight.shape)}"
        )
    return values * weight


def _pair(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    if output.shape != target.shape:
        raise ValueError(f"output {tuple(output.shape)} and target {tuple(target.shape)} differ in shape")
    if output.ndim < 2:
        raise ValueError(f"expected a batch (B, C, ...), not shape {tuple(output.shape)}")
    dtype = torch.promote_types(torch.promote_types(output.dtype, target.dtype), torch.float32)
    return output.to(dtype), target.to(dtype)


def _unit(x: Tensor) -> Tensor:
    length: Tensor = vector_norm(x, dim=1, keepdim=True)
    return x / length
