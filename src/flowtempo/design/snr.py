"""Where on the axis of log-SNR a density looks: pdf, mass and quantiles there, and what losses weigh."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flowtempo.densities import (
    EDM,
    Beta,
    Blend,
    CosMap,
    Density,
    LogitNormal,
    Mixture,
    Mode,
    Power,
    Shifted,
    Tabulated,
    Truncated,
    Uniform,
)
from flowtempo.errors import UserError
from flowtempo.interpolants import Interpolant, Linear, Trigonometric
from flowtempo.interpolants import Shifted as ShiftedPath
from flowtempo.objectives import Weighting
from flowtempo.predictions import Prediction, check_prediction, error_factor

LOG_SNR_EDGES: tuple[float, ...] = tuple(range(-10, 11, 2))
"""Ends of the bands of log-SNR in which masses are told; what lies beyond them has no band."""

DECIBELS = 10 / math.log(10)
"""dB of one unit of log-SNR."""

# Where the path has a pole at t = 1, a log-SNR fixes log(1 - t), and some steps of Newton's method find it.
_STEEP, _POLISH_STEPS, _SETTLED, _NEAREST = 0.1, 6, 1e-13, 1e-100
# Points of the Gauss-Legendre rule in a panel, and panels of a band: exact to rounding for smooth densities.
_NODES, _PANELS = 8, 32


@dataclass(frozen=True)
class SnrPdf:
    """A density of t seen over log-SNR, for inputs of a given standard deviation.

    log_snr = log(alpha^2 std^2 / sigma^2) here, that of the interpolant plus 2 log std, so that another
    standard deviation translates everything (FasterDiT, Yao et al., arXiv 2410.10356, section 3, whose
    constant C(I) is 1 here). Near both ends all digits are kept: 1 - t is never computed from t.

    Attributes:
        density: What t is drawn from.
        interpolant: What t means.
        std: Standard deviation of the data that the model sees, above 0.
        prediction: What the network is trained to predict.
        weighting: Weight of the loss; None for the plain squared error of the prediction.
        target: What the objective is averaged over, if times are weighted by target / density; None if the
            weights are 1.

    Raises:
        UserError: If `std` or the prediction is wrong.
    """

    density: Density
    interpolant: Interpolant
    std: float = 1.0
    prediction: Prediction = "velocity"
    weighting: Weighting | None = None
    target: Density | None = None

    def __post_init__(self) -> None:
        check_prediction(self.prediction)
        if not 0 < self.std < math.inf:
            raise UserError(f"std = {self.std} must be a finite number above 0: 1 is the usual input")

    @property
    def shift(self) -> float:
        """What the standard deviation adds to the interpolant's log-SNR, 2 log std."""
        return 2 * math.log(self.std)

    def time(self, log_snr: Tensor) -> Tensor:
        """The time of a log-SNR, any shape, float64; outside [0, 1] where the path does not go."""
        return self.interpolant.time(log_snr.double() - self.shift)

    def pdf(self, log_snr: Tensor) -> Tensor:
        """Probability per unit of log-SNR, pdf(t) / log_snr'(t).

        Args:
            log_snr: Any shape; natural logarithms.

        Returns:
            The shape of `log_snr`, float64; 0 where the path does not go or stands still.
        """
        return self._over_log_snr(self.density, log_snr)

    def cdf(self, log_snr: Tensor) -> Tensor:
        """Probability below a log-SNR, any shape, float64."""
        return self.density.cdf(self.time(log_snr).clamp(0, 1))

    def mass(self, low: float, high: float) -> float:
        """Probability of low <= log_snr <= high, from the CDF.

        Raises:
            ValueError: If low > high or one is NaN.
        """
        if not low <= high:
            raise ValueError(f"mass needs low <= high, not {low} and {high}")
        t, rest = self._place(torch.tensor([low, high], dtype=torch.float64))
        mirrored = _mirrored(self.density)
        if mirrored is not None and float(t[0]) > 0.5:
            first, last = rest.flip(0).clamp(0, 1).tolist()
            return mirrored.mass(first, last)
        first, last = t.clamp(0, 1).tolist()
        return self.density.mass(first, last)

    def quantile(self, u: Tensor) -> Tensor:
        """The log-SNR below which a share u lies, any shape, float64; NaN for u outside [0, 1]."""
        u = u.double()
        t, mirrored = self.density.quantile(u), _mirrored(self.density)
        rest = 1 - t
        if mirrored is not None:
            late = t > 0.5
            # 1 - u has the digits that u has; what is gained is that of 1 - t.
            rest = torch.where(late, mirrored.quantile(1 - u), rest)
        return self.interpolant._log_snr(t, rest) + self.shift

    def weight(self, log_snr: Tensor) -> Tensor:
        """What the loss weighs the squared error of the data prediction with.

        Predictions and weightings differ in this function alone: the error of each is that of the data
        prediction times a known factor (`predictions.error_factor`; the score's loss is the noise's).

        Args:
            log_snr: Any shape.

        Returns:
            The shape of `log_snr`, float64; 0 where the path does not go, inf where the factor has a pole.
        """
        t = self.time(log_snr)
        inside = t.clamp(0, 1)
        if self.weighting is not None:
            weight = self.weighting.on_data(self.interpolant, inside)
        else:
            scored: Prediction = "noise" if self.prediction == "score" else self.prediction
            weight = error_factor(scored, self.interpolant, inside)
        return torch.where((t < 0) | (t > 1), 0.0, weight.double())

    def emphasis(self, log_snr: Tensor) -> Tensor:
        """What the objective weighs the data error with: the target's pdf times `weight`; as `weight`."""
        p = self._over_log_snr(self.target or self.density, log_snr)
        return torch.where(p == 0, 0.0, p * self.weight(log_snr))

    def emphasis_bands(self, edges: Sequence[float] = LOG_SNR_EDGES) -> Tensor:
        """Integral of `emphasis` over each band of log-SNR.

        The whole integral is infinite for many objectives, because the weight grows where the error
        vanishes; that is why a range is needed.

        Args:
            edges: n + 1 finite ends in rising order.

        Returns:
            (n,) float64.
        """
        ends = torch.tensor(edges, dtype=torch.float64)
        width = ends.diff()[:, None, None] / _PANELS
        nodes, weights = _gauss_legendre(_NODES)
        starts = ends[:-1, None, None] + torch.arange(_PANELS, dtype=torch.float64)[:, None] * width
        return (self.emphasis(starts + nodes * width) * weights * width).sum((1, 2))

    def normalised_emphasis(self, log_snr: Tensor) -> Tensor:
        """`emphasis` with area 1 from the first to the last of `LOG_SNR_EDGES`; 0 if nothing lies there."""
        area = self.emphasis_bands().sum()
        return self.emphasis(log_snr) / torch.where(area > 0, area, math.inf)

    def closed_form(self) -> str | None:
        """What the distribution of log-SNR is called, with its parameters, where it has a name."""
        density, path, middle = self.density, self.interpolant, self.shift
        # Shifts move the log-SNR of the linear path, and nothing else.
        if isinstance(self.interpolant, ShiftedPath) and isinstance(self.interpolant.base, Linear):
            path, middle = self.interpolant.base, middle - 2 * math.log(self.interpolant.shift)
        if isinstance(self.density, Shifted) and isinstance(path, Linear):
            density, middle = self.density.base, middle - 2 * math.log(self.density.shift)
        if (
            isinstance(density, EDM)
            and path == density.interpolant
            and isinstance(path, Linear | Trigonometric)
        ):
            return _normal(middle - 2 * density.mean, 2 * density.std)
        linear = isinstance(path, Linear)
        if linear and isinstance(density, LogitNormal):
            return _normal(middle + 2 * density.mean, 2 * density.std)
        if linear and isinstance(density, Uniform):
            return f"logistic with mean {middle:.6g} and scale 2"
        if isinstance(density, CosMap if linear else Uniform) and isinstance(path, Linear | Trigonometric):
            return f"hyperbolic secant, sech((log_snr - {middle:.6g}) / 2) / (2 pi)"
        return None

    def _over_log_snr(self, density: Density, log_snr: Tensor) -> Tensor:
        t, rest = self._place(log_snr)
        p = density.pdf(t.clamp(0, 1))
        mirrored = _mirrored(density)
        if mirrored is not None:
            p = torch.where(t > 0.5, mirrored.pdf(rest.clamp(0, 1)), p)
        inside = (t >= 0) & (rest >= 0) & log_snr.isfinite()
        # In between any time will do, so that no formula meets one that the path does not have.
        slope = self.interpolant._d_log_snr(torch.where(inside, t, 0.5), torch.where(inside, rest, 0.5))
        return torch.where(inside & (slope > 0), p / slope, 0.0)

    def _place(self, log_snr: Tensor) -> tuple[Tensor, Tensor]:
        """t and 1 - t of a log-SNR, each with all its digits."""
        wanted = log_snr.double() - self.shift
        t = self.interpolant.time(wanted)
        rest = 1 - t
        late = (t > 0.5) & (t <= 1) & wanted.isfinite()
        # Newton's method for log(1 - t), in which log-SNR is nearly a line where it has a pole at t = 1.
        trial = torch.where(late, rest.clamp_min(_NEAREST), 0.5)
        for _ in range(_POLISH_STEPS):
            whole = 1 - trial
            slope = trial * self.interpolant._d_log_snr(whole, trial)
            off = self.interpolant._log_snr(whole, trial) - wanted
            steep = late & (slope > _STEEP)
            step = torch.where(steep, off / slope, 0.0)
            trial = trial * step.exp()
            if bool((step.abs() < _SETTLED).all()):
                break
        return t, torch.where(steep, trial, rest)


def tenths(density: Density) -> list[float]:
    """Mass of a density in each tenth of t."""
    return [density.mass(k / 10, (k + 1) / 10) for k in range(10)]


def _normal(mean: float, std: float) -> str:
    return f"normal with mean {mean:.6g} and standard deviation {std:.6g}"


def _mirrored(density: Density) -> Density | None:
    """The density of 1 - t, which has digits near t = 1 that the density of t cannot have."""
    if isinstance(density, Uniform | CosMap | Mode):
        return density
    if isinstance(density, LogitNormal):
        return LogitNormal(-density.mean, density.std)
    if isinstance(density, EDM) and isinstance(density.interpolant, Linear):
        return LogitNormal(density.mean, density.std)
    if isinstance(density, Beta):
        return Beta(density.b, density.a)
    if isinstance(density, Tabulated):
        return Tabulated(1 - density.grid.flip(0), density.values.flip(0))
    if isinstance(density, Blend):
        first, second = _mirrored(density.first), _mirrored(density.second)
        return None if first is None or second is None else Blend(first, second, density.share)
    base = _mirrored(density.base) if isinstance(density, Mixture | Truncated | Shifted | Power) else None
    if base is None:
        return None
    if isinstance(density, Mixture):
        return Mixture(base, density.floor)
    if isinstance(density, Truncated):
        return Truncated(base, 1 - density.high, 1 - density.low)
    if isinstance(density, Power):
        return Power(base, density.exponent)
    return Shifted(base, 1 / density.shift) if isinstance(density, Shifted) else None


def _gauss_legendre(count: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights on [0, 1], (count,) each (Golub and Welsch, Math. Comp. 23, 1969)."""
    k = torch.arange(1, count, dtype=torch.float64)
    nodes, vectors = torch.linalg.eigh(torch.diag(k / (4 * k**2 - 1).sqrt(), -1))
    return (1 + nodes) / 2, vectors[0] ** 2
