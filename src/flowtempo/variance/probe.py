"""What a model's gradients and losses are at each time: measured on the model itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any

import torch
from torch import Tensor, nn

from flowtempo.errors import UserError
from flowtempo.objectives import Objective
from flowtempo.variance import document
from flowtempo.variance.profile import POSTERIOR, Quantity, VarianceProfile
from flowtempo.variance.share import Share

GRADIENTS: tuple[Quantity, ...] = ("gradient_second_moment", "gradient_variance", "gradient_norm")
LOSSES: tuple[Quantity, ...] = ("loss", "loss_second_moment")

Batches = Callable[[Tensor], tuple[Tensor, Tensor | None]]
"""Images and labels (or None) of some indices, (n,) int64."""


@dataclass(frozen=True, eq=False)
class Probe:
    """Gradients, losses and denoising error of one model over the noise axis.

    Attributes:
        profiles: The curves of the whole model: `GRADIENTS` and `LOSSES`, on one grid.
        groups: The `GRADIENTS` of each group of parameters. Second moments, variances and squared norms of
            the groups add up to the whole model's.
        denoiser: The error of the model's data prediction, |x1 - D(x_t)|^2 / d, an upper bound for the
            posterior variance (given the label if the model was given labels). It is one only if the model
            was not trained on the images that were probed, which whoever uses it must know.

    Raises:
        UserError: If curves are missing, or on different grids.
    """

    profiles: dict[Quantity, VarianceProfile]
    groups: dict[str, dict[Quantity, VarianceProfile]] = field(default_factory=dict)
    denoiser: VarianceProfile | None = None

    def __post_init__(self) -> None:
        _check_curves("profiles", self.profiles, GRADIENTS + LOSSES)
        for name, curves in self.groups.items():
            _check_curves(f"group {name!r}", curves, GRADIENTS)
        if self.denoiser is not None and self.denoiser.quantity not in POSTERIOR:
            raise UserError(f"denoiser is a {self.denoiser.quantity}, not one of {', '.join(POSTERIOR)}")
        grids = [
            curve.log_snr for curves in (self.profiles, *self.groups.values()) for curve in curves.values()
        ]
        grids += [] if self.denoiser is None else [self.denoiser.log_snr]
        if not all(torch.equal(grid, grids[0]) for grid in grids):
            raise UserError("the curves of a probe must be on one log-SNR grid")

    def to_dict(self) -> dict[str, Any]:
        """Return what `from_dict` reads; lists and plain numbers only."""
        return {
            "profiles": _to_list(self.profiles),
            "groups": {name: _to_list(curves) for name, curves in self.groups.items()},
            "denoiser": None if self.denoiser is None else self.denoiser.to_dict(),
        }

    @classmethod
    def from_dict(cls, content: object, where: str = "probe") -> Probe:
        """Build a probe from `to_dict`'s result.

        Raises:
            UserError: If a key is missing, unknown or has a wrong value.
        """
        reader = document.Reader(content, where)
        profiles = _from_list(reader.value("profiles"), f"{where}: profiles")
        groups = {
            name: _from_list(curves, f"{where}: groups: {name}")
            for name, curves in reader.mapping("groups").items()
        }
        denoiser = reader.value("denoiser")
        reader.end()
        try:
            return cls(
                profiles,
                groups,
                None if denoiser is None else VarianceProfile.from_dict(denoiser, f"{where}: denoiser"),
            )
        except UserError as error:
            text = str(error)
            raise UserError(text if text.startswith(where) else f"{where}: {text}") from error

    def save(self, path: str | PathLike[str]) -> None:
        """Write the probe as JSON.

        Raises:
            UserError: If the file cannot be written.
        """
        document.save(path, "probe", self.to_dict())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Probe:
        """Read what `save` wrote; every number comes back exactly.

        Raises:
            UserError: If the file is missing or not a sound probe.
        """
        return cls.from_dict(document.load(path, "probe"), fspath(path))


def probe_times(count: int) -> Tensor:
    """Times t = sin^2(pi/2 (k + 1/2) / n), dense at both ends and inside (0, 1), (count,) float64.

    Raises:
        UserError: If `count` is below 1.
    """
    if count < 1:
        raise UserError(f"{count} probe times: use at least 1")
    return torch.sin(torch.pi / 2 * (torch.arange(count, dtype=torch.float64) + 0.5) / count) ** 2


def probe(
    model: nn.Module,
    objective: Objective,
    batch: Batches,
    count: int,
    *,
    t: Tensor | None = None,
    parameters: Callable[[str], bool] | None = None,
    group: Callable[[str], str] | None = None,
    batch_size: int = 32,
    seed: int = 0,
    share: Share | None = None,
    progress: Callable[[float], None] | None = None,
    data: dict[str, Any] | None = None,
    setting: dict[str, Any] | None = None,
) -> Probe:
    """Measure the gradients and losses of a model."""
    raise NotImplementedError


def _check_curves(name: str, curves: dict[Quantity, VarianceProfile], wanted: tuple[Quantity, ...]) -> None:
    if set(curves) != set(wanted) or any(curve.quantity != key for key, curve in curves.items()):
        raise UserError(f"{name} must hold exactly {', '.join(wanted)}")


def _to_list(curves: dict[Quantity, VarianceProfile]) -> list[dict[str, Any]]:
    return [curve.to_dict() for curve in curves.values()]


def _from_list(content: object, where: str) -> dict[Quantity, VarianceProfile]:
    if not isinstance(content, list):
        raise UserError(f"{where} must be a list, not {type(content).__name__}")
    curves = [VarianceProfile.from_dict(item, f"{where}[{index}]") for index, item in enumerate(content)]
    return {curve.quantity: curve for curve in curves}
