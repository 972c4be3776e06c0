"""The normal density, cut to [0, 1]."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from flowtempo.densities.base import Density
from flowtempo.errors import UserError
from flowtempo.forms import number

_LEAST_MASS = 1e-6


@final
@dataclass(frozen=True)
class Normal(Density):
    """Times around one time: a normal density given 0 <= t <= 1 (CLTS, Xu et al., arXiv 2404.07946).

    Attributes:
        mean: Mean before it is cut, finite.
        std: Standard deviation before it is cut, above 0.

    Raises:
        UserError: If a number is out of range, or less than a millionth of the normal lies in [0, 1].
    """

    mean: float
    std: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.mean) or not 0 < self.std < math.inf:
            raise UserError(
                f"normal: mean = {self.mean} must be finite and std = {self.std} finite and above 0"
            )
        if self._inside() < _LEAST_MASS:
            raise UserError(
                f"normal: only {self._inside():.3g} of normal({number(self.mean)}, {number(self.std)})"
                " lies in [0, 1]"
            )

    # In the half with fewer digits to lose: z is counted so that the middle of [0, 1] is at z <= 0.
    @property
    def _sign(self) -> float:
        return 1.0 if self.mean >= 0.5 else -1.0

    def _z(self, t: Tensor) -> Tensor:
        return self._sign * (t - self.mean) / self.std

    def _below(self, t: float) -> float:
        return math.erfc(-self._sign * (t - self.mean) / self.std * math.sqrt(0.5)) / 2

    def _inside(self) -> float:
        return abs(self._below(1.0) - self._below(0.0))

    def _pdf(self, t: Tensor) -> Tensor:
        scale = self.std * math.sqrt(2 * math.pi) * self._inside()
        return (-0.5 * self._z(t) ** 2).exp() / scale

    def _cdf(self, t: Tensor) -> Tensor:
        below: Tensor = torch.erfc(self._z(t) * -math.sqrt(0.5)) / 2
        return (below - self._below(0.0)).abs() / self._inside()

    def _quantile(self, u: Tensor) -> Tensor:
        start, end = self._below(0.0), self._below(1.0)
        z: Tensor = torch.special.ndtri(start + u * (end - start))
        return self.mean + self._sign * self.std * z

    def _mass(self, lo: float, hi: float) -> float:
        return abs(self._below(hi) - self._below(lo)) / self._inside()

    def __str__(self) -> str:
        return f"normal({number(self.mean)}, {number(self.std)})"
