"""Exponential moving average of the weights."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


def ema_decay(step: int, limit: float) -> float:
    """Decay at 0-based step k: min(limit, (1 + k) / (10 + k)).

    The warm-up keeps the average of a short run from being mostly its random initial weights.
    """
    return min(limit, (1 + step) / (10 + step))


def initial_weight(steps: int, limit: float) -> float:
    """The share of the initial weights that is left in the average after `steps` updates."""
    share = 1.0
    for step in range(steps):
        share *= ema_decay(step, limit)
        if share < 1e-12:
            return 0.0
    return share


class EMA:
    """Keeps a second copy of a model whose parameters follow the first.

    Args:
        model: The model being trained; its parameters are read at every update.
        limit: The decay that the warm-up rises to.

    Attributes:
        model: The averaged model, in evaluation mode, without gradients.
    """

    def __init__(self, model: nn.Module, limit: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.limit = limit
        # The parameters themselves: DistributedDataParallel gives them new storage, which aliases would miss.
        self._source: list[Tensor] = list(model.parameters())
        self._average: list[Tensor] = list(self.model.parameters())
        self._buffers = list(zip(self.model.buffers(), model.buffers(), strict=True))

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move the average towards the weights after 0-based optimizer step `step`. Buffers are copied."""
        weight = 1 - ema_decay(step, self.limit)
        torch._foreach_lerp_(self._average, self._source, weight)
        for average, source in self._buffers:
            average.copy_(source)
