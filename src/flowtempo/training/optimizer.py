"""AdamW and its learning rate."""

from __future__ import annotations

import math

import torch
from torch import nn

from flowtempo.training.sections import OptimizerConfig


def learning_rate(config: OptimizerConfig, step: int, steps: int) -> float:
    """Learning rate of 0-based optimizer step `step` of `steps`: linear warm-up, then constant or cosine."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    if config.lr_schedule == "constant":
        return config.lr
    done = (step - config.warmup_steps) / max(1, steps - config.warmup_steps)
    return config.lr * 0.5 * (1 + math.cos(math.pi * done))


def build_optimizer(config: OptimizerConfig, model: nn.Module) -> torch.optim.AdamW:
    """Fused AdamW over all parameters of `model`."""
    return torch.optim.AdamW(
        model.parameters(), lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, fused=True
    )
