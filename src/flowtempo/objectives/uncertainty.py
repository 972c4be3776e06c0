"""EDM2's learned uncertainty: the weighting that makes all noise levels count the same."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from flowtempo import randomness
from flowtempo.errors import UserError


class LearnedUncertainty(nn.Module):
    """Turn a loss l into l / e^u + u with a learned u of the noise level.

    At its minimum over u, e^u is the mean loss at that noise level, so that every level contributes a loss of
    1 and the gradient of the network is divided by the mean loss there (Karras et al., "Analyzing and
    Improving the Training Dynamics of Diffusion Models", arXiv 2312.02696, equations 14 to 16 and 21). u is
    linear in random Fourier features of ln(sigma / alpha) / 4 and starts at 0: the loss begins as it is.

    Args:
        channels: Number of features, at least 1; 128 in the paper.

    Raises:
        UserError: If there are no channels.
    """

    frequencies: Tensor
    phases: Tensor

    def __init__(self, channels: int = 128) -> None:
        super().__init__()
        if channels < 1:
            raise UserError(f"learned uncertainty: channels = {channels} must be at least 1")
        drawn = randomness.normal(0, "uncertainty frequencies", 0, [0], (channels,))[0]
        phases = randomness.uniform(0, "uncertainty phases", 0, channels)
        self.register_buffer("frequencies", 2 * math.pi * drawn)
        self.register_buffer("phases", 2 * math.pi * phases.float())
        self.weight = nn.Parameter(torch.zeros(channels))

    def uncertainty(self, log_snr: Tensor) -> Tensor:
        """u at these log-SNRs, any shape, float32. Beyond +-40 it is that of +-40."""
        # ln(sigma / alpha) / 4 = -log_snr / 8
        level = log_snr.float().clamp(-40, 40) / -8
        features = torch.cos(level[..., None] * self.frequencies + self.phases)
        return features @ self.weight * math.sqrt(2 / len(self.weight))

    def forward(self, loss: Tensor, log_snr: Tensor) -> Tensor:
        """Return l / e^u + u.

        Args:
            loss: (B,), with its weighting, before importance weights.
            log_snr: (B,) log-SNR of each sample.

        Returns:
            (B,).

        Raises:
            ValueError: If the shapes differ.
        """
        if loss.ndim != 1 or loss.shape != log_snr.shape:
            raise ValueError(f"shapes differ: {tuple(loss.shape)} and {tuple(log_snr.shape)}")
        u = self.uncertainty(log_snr)
        return loss * torch.exp(-u) + u
