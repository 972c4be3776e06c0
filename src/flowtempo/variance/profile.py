"""Curves over log-SNR with their errors and their origin."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field, fields, replace
from os import PathLike, fspath
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from flowtempo.errors import UserError
from flowtempo.variance import document

Quantity = Literal[
    "posterior_variance",
    "class_posterior_variance",
    "gradient_second_moment",
    "gradient_variance",
    "gradient_norm",
    "loss",
    "loss_second_moment",
]
POSTERIOR: tuple[Quantity, ...] = ("posterior_variance", "class_posterior_variance")
"""Quantities of the data alone; the others are of a model under an interpolant and a prediction type."""

COLLAPSE = 2.0
"""A posterior that rests on fewer effective points than this has collapsed."""

Bound = Literal["lower", "upper", "estimate"]


@dataclass(frozen=True, eq=False)
class VarianceProfile:
    """A variance, or what it is compared with, over the noise axis.

    - `posterior_variance`: G = E|x1 - E[x1 | x_t]|^2 / d, in the squared units of the data: the error of the
      best denoiser. It depends on the log-SNR alone and not on the interpolant.
    - `class_posterior_variance`: the same with the label known, E|x1 - E[x1 | x_t, y]|^2 / d.
    - `gradient_second_moment`, `gradient_variance`: E|g|^2 and E|g - E g|^2 of the gradient g of one sample's
      loss by the parameters of a model. A batch of n has the variance E|g - E g|^2 / n.
    - `gradient_norm`: |E g|, the length of the mean gradient.
    - `loss`, `loss_second_moment`: E l and E l^2 of one sample's loss l.

    Attributes:
        quantity: What was measured.
        method: How.
        bound: Which side of the quantity the expectation of `mean` lies on.
        log_snr: Grid of 2 log(alpha / sigma), (L,) float64, strictly increasing.
        mean: (L,) float64, not negative.
        stderr: Standard error of `mean`, (L,) float64.
        dim: d, the numbers in one data point.
        second_moment: E|x1|^2 / d of the data.
        counts: Points, queries, noises, ... that went in.
        data: Where the data came from (name, fingerprint, shape, ...); anything JSON can hold.
        model: What a model's quantity was measured on (interpolant, prediction, parameters, group, run, step,
            track, ...); empty for the data's own.
        ess: Effective sample size of the posterior weights, (L,) float64, at least 1; None where the method
            has none.
        without: The curve without each of B blocks of the data, (B, L) float64, from which `stderr` and
            confidence bands of whatever is made from the curve are computed; None where the method has none.

    Raises:
        UserError: If the curves do not have these properties.
    """

    quantity: Quantity
    method: str
    bound: Bound
    log_snr: Tensor
    mean: Tensor
    stderr: Tensor
    dim: int
    second_moment: float
    counts: dict[str, int] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    ess: Tensor | None = None
    without: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("log_snr", "mean", "stderr"):
            curve = torch.as_tensor(getattr(self, name), dtype=torch.float64).detach().cpu()
            if curve.ndim != 1 or len(curve) == 0 or not bool(torch.isfinite(curve).all()):
                raise UserError(f"{name} must be a list of finite numbers")
            object.__setattr__(self, name, curve)
        if not len(self.log_snr) == len(self.mean) == len(self.stderr):
            raise UserError("log_snr, mean and stderr must have one length")
        if not bool((self.log_snr.diff() > 0).all()):
            raise UserError("log_snr must increase strictly")
        if not bool((self.mean >= 0).all() and (self.stderr >= 0).all()):
            raise UserError("mean and stderr must not be negative")
        for name, shape in (("ess", self.mean.shape), ("without", (-1, *self.mean.shape))):
            if getattr(self, name) is None:
                continue
            curve = torch.as_tensor(getattr(self, name), dtype=torch.float64).detach().cpu()
            if curve.shape != torch.Size(len(curve) if n < 0 else n for n in shape) or not bool(
                torch.isfinite(curve).all()
            ):
                raise UserError(f"{name} must be finite numbers of shape {shape}")
            object.__setattr__(self, name, curve)
        if self.quantity in POSTERIOR and self.model:
            raise UserError(f"a {self.quantity} is the data's own and belongs to no model")
        if self.quantity not in get_args(Quantity):
            raise UserError(f"unknown quantity {self.quantity!r}: use one of {', '.join(get_args(Quantity))}")
        if self.bound not in get_args(Bound):
            raise UserError(f"unknown bound {self.bound!r}: use one of {', '.join(get_args(Bound))}")
        if self.dim < 1 or not 0 < self.second_moment < math.inf:
            raise UserError("dim and second_moment must be positive")

    @property
    def collapsed(self) -> tuple[float, float] | None:
        """The log-SNRs at which the posterior rests on fewer than `COLLAPSE` effective points, or None.

        From the least such grid point on to infinity: more signal separates points further.
        """
        if self.ess is None or not bool((self.ess < COLLAPSE).any()):
            return None
        return float(self.log_snr[self.ess < COLLAPSE][0]), math.inf

    @property
    def digest(self) -> str:
        """SHA-256 of the content; designs name the profile that they were made from by it."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def scale(self) -> float:
        """The variance per dimension of the isotropic Gaussian that has this profile's first value."""
        first = float(self.mean[0])
        # A posterior variance is below exp(-log_snr), but an estimate may not be.
        signal = min(math.exp(min(float(self.log_snr[0]), 700.0)) * first, 0.9)
        return first / (1 - signal) if first > 0 else 1.0

    def at(self, log_snr: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard error at any log-SNR.

        What is interpolated linearly, and kept beyond the ends, is the `ratio` of a posterior variance, which
        so goes to a constant at -inf and to 0 as exp(-log_snr) at +inf and is exact for Gaussians; of the
        other quantities it is the curve itself.

        Args:
            log_snr: Any shape; infinities allowed.

        Returns:
            Two float64 tensors of that shape.
        """
        if self.quantity not in POSTERIOR:
            mean, stderr = self._interpolate(log_snr, torch.stack([self.mean, self.stderr]))
            return mean, stderr
        ratio, stderr = self.ratio(log_snr)
        shape = self.scale / (1 + log_snr.double().exp() * self.scale)
        return ratio * shape, stderr * shape

    def ratio(self, log_snr: Tensor) -> tuple[Tensor, Tensor]:
        """The profile over that of an isotropic Gaussian of variance `scale`, and its standard error.

        Args:
            log_snr: Any shape; infinities allowed.

        Returns:
            Two float64 tensors of that shape.
        """
        unit = 1 / self.scale + self.log_snr.exp()
        mean, stderr = self._interpolate(log_snr, torch.stack([self.mean, self.stderr]) * unit)
        return mean, stderr

    def resampled(self, log_snr: Tensor) -> VarianceProfile:
        """The profile on another grid, every curve as `at` gives it; without effective sample sizes.

        Args:
            log_snr: (L',) finite, strictly increasing.
        """
        if torch.equal(self.log_snr, log_snr):
            return self
        mean, stderr = self.at(log_snr)
        without = self.without
        if without is not None and self.quantity in POSTERIOR:
            unit, there = (1 / self.scale + grid.exp() for grid in (self.log_snr, log_snr.double()))
            without = self._interpolate(log_snr, without * unit) / there
        elif without is not None:
            without = self._interpolate(log_snr, without)
        return replace(self, log_snr=log_snr, mean=mean, stderr=stderr, ess=None, without=without)

    def _interpolate(self, log_snr: Tensor, curves: Tensor) -> Tensor:
        """Curves (n, L) at any log-SNR, linearly between grid points and constant beyond, (n, *shape)."""
        grid = self.log_snr
        x = log_snr.double().clamp(float(grid[0]), float(grid[-1]))
        if len(grid) == 1:
            return curves.reshape(len(curves), *[1] * x.ndim).expand(-1, *x.shape)
        cell = (torch.searchsorted(grid, x.contiguous(), right=True) - 1).clamp(0, len(grid) - 2)
        place = (x - grid[cell]) / (grid[cell + 1] - grid[cell])
        return torch.lerp(curves[:, cell], curves[:, cell + 1], place)

    def to_dict(self) -> dict[str, Any]:
        """Return what `from_dict` reads; lists and plain numbers only."""
        content = {item.name: getattr(self, item.name) for item in fields(self)}
        return {key: value.tolist() if isinstance(value, Tensor) else value for key, value in content.items()}

    @classmethod
    def from_dict(cls, content: object, where: str = "profile") -> VarianceProfile:
        """Build a profile from `to_dict`'s result.

        Args:
            content: The result.
            where: What error messages start with.

        Raises:
            UserError: If a key is missing, unknown or has a wrong value.
        """
        reader = document.Reader(content, where)
        quantity: Any = reader.text("quantity")
        bound: Any = reader.text("bound")
        made: dict[str, Any] = {
            "method": reader.text("method"),
            "log_snr": reader.numbers("log_snr"),
            "mean": reader.numbers("mean"),
            "stderr": reader.numbers("stderr"),
            "dim": reader.whole("dim"),
            "second_moment": reader.number("second_moment"),
            "counts": reader.mapping("counts"),
            "data": reader.mapping("data"),
            "model": reader.mapping("model"),
            "ess": reader.optional_numbers("ess"),
            "without": reader.optional_rows("without"),
        }
        reader.end()
        try:
            return cls(quantity=quantity, bound=bound, **made)
        except UserError as error:
            raise UserError(f"{where}: {error}") from error

    def save(self, path: str | PathLike[str]) -> None:
        """Write the profile as JSON.

        Raises:
            UserError: If the file cannot be written.
        """
        document.save(path, "profile", self.to_dict())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> VarianceProfile:
        """Read what `save` wrote; every number comes back exactly.

        Raises:
            UserError: If the file is missing or not a sound profile.
        """
        return cls.from_dict(document.load(path, "profile"), fspath(path))
