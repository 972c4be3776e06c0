"""A density at shifted times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from flowtempo.densities.base import Density
from flowtempo.errors import UserError
from flowtempo.forms import number
from flowtempo.interpolants.shifts import check_shift, shift


@final
@dataclass(frozen=True)
class Shifted(Density):
    """The density of shift(t, s) when t follows `base`: more noise for a shift above 1.

    On the linear path it moves the log-SNR of every draw by -2 log s (Esser et al., arXiv 2403.03206,
    section 5.3.2). A density is shifted once: shifts multiply.

    Attributes:
        base: The density before the shift.
        shift: The shift, above 0 and not 1.

    Raises:
        UserError: If the shift is out of range or 1, or the base is shifted already.
    """

    base: Density
    shift: float

    def __post_init__(self) -> None:
        check_shift(self.shift)
        if self.shift == 1:
            raise UserError(f"shifted: a shift of 1 has no effect: write {self.base}")
        if isinstance(self.base, Shifted):
            raise UserError(
                f"{self.base} is shifted already: for both write shifted({self.base.base},"
                f" {number(self.base.shift * self.shift)}), the product"
            )
        object.__setattr__(self, "low", self._moved(self.base.low))
        object.__setattr__(self, "high", self._moved(self.base.high))

    def _moved(self, t: float) -> float:
        return t / (t + self.shift * (1 - t))

    def _pdf(self, t: Tensor) -> Tensor:
        s = 1 / self.shift
        # The slope of the shift back.
        return self.base.pdf(shift(t, s)) * (s / (t + s * (1 - t)) ** 2)

    def _cdf(self, t: Tensor) -> Tensor:
        return self.base.cdf(shift(t, 1 / self.shift))

    def _quantile(self, u: Tensor) -> Tensor:
        return shift(self.base.quantile(u), self.shift)

    def gaps(self) -> list[tuple[float, float]]:
        """Intervals of [0, 1] with zero density, in order."""
        return [(self._moved(lo), self._moved(hi)) for lo, hi in self.base.gaps()]

    def edges(self) -> list[float]:
        """Times in (0, 1) where the pdf is not smooth, in order."""
        return [self._moved(t) for t in self.base.edges()]

    def __str__(self) -> str:
        return f"shifted({self.base}, {number(self.shift)})"
