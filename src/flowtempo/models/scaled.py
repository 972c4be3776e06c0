"""A backbone that sees its input at unit variance, whatever the path and the time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flowtempo.interpolants import Interpolant, per_sample
from flowtempo.models.sit import SiT


class UnitInputSiT(SiT):
    """A SiT that divides x_t by its standard deviation sqrt(alpha^2 s^2 + sigma^2) for data of std s.

    EDM's c_in on the path with alpha = 1 (Karras et al., arXiv 2206.00364, table 1); Chen (arXiv 2301.10972)
    does the same for scaled data. On a path with alpha^2 + sigma^2 = 1 and data of std 1 nothing changes.
    The parameters are a SiT's, by the same names.

    Args:
        shape: (C, H, W) of the images.
        interpolant: The path that x_t is on.
        data_std: s, above 0.
        settings: As `SiT`.
    """

    def __init__(
        self, shape: tuple[int, int, int], *, interpolant: Interpolant, data_std: float, **settings: Any
    ) -> None:
        super().__init__(shape, **settings)
        if not data_std > 0:
            raise ValueError(f"the standard deviation of the data must be above 0, not {data_std}")
        self.interpolant = interpolant
        self.data_std = data_std

    def forward(self, x: Tensor, t: Tensor, y: Tensor | None = None) -> Tensor:
        """As `SiT.forward`; `x` is x_t as the path has it."""
        return super().forward(x / per_sample(noisy_std(self.interpolant, t, self.data_std), x), t, y)


def noisy_std(interpolant: Interpolant, t: Tensor, data_std: float) -> Tensor:
    """Standard deviation of x_t for data of std `data_std`, the shape of `t`, float32 at least."""
    return torch.hypot(interpolant.alpha(t) * data_std, interpolant.sigma(t))
