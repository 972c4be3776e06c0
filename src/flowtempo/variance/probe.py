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
from flowtempo.variance.estimate import Jackknifed
from flowtempo.variance.gradient_moments import Moments
from flowtempo.variance.gradient_sampling import Losses, Sampling, evaluating
from flowtempo.variance.gradients import SampleGradients
from flowtempo.variance.profile import POSTERIOR, Quantity, VarianceProfile
from flowtempo.variance.share import Share

GRADIENTS: tuple[Quantity, ...] = ("gradient_second_moment", "gradient_variance", "gradient_norm")
LOSSES: tuple[Quantity, ...] = ("loss", "loss_second_moment")

_TIMES = 33
MIN_SAMPLES = 8


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
    batch: Callable[[Tensor], tuple[Tensor, Tensor | None]],
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
    """Measure the gradients, losses and denoising error of a model at given times.

    The loss is `objective`'s, unweighted: a density and weights say what is made of the curves. Every time
    sees the same images with the same noise, so that curves are smoother than their standard errors. The
    model runs in evaluation mode (no dropout; batch normalisation by its running statistics) in its own
    precision, and is left as it was. Images and noise are kept in memory.

    Standard errors are for the mean over images and noise, by the jackknife over blocks of samples: 16, or
    `count` / 4 if that is less, but 8. The summed gradients of all blocks are kept for one time; models for
    which they pass 4 GiB get fewer blocks, down to 4, whose standard errors are themselves less certain: see
    `counts["blocks"]`. The error of `gradient_norm` is that of its square, carried over to the root.

    Args:
        model: forward(x_t, t, y), such as those of `flowtempo.models`.
        objective: Interpolant, prediction type and loss.
        batch: Images, (n, ...), and labels, (n,) or None, of indices in 0 .. count - 1.
        count: Number of images, at least 8.
        t: Times strictly inside (0, 1), (L,), strictly increasing; `probe_times(33)` by default.
        parameters: Chooses parameters by name; all that require a gradient by default.
        group: Names the group of a parameter; by default the first part of its name, with the second if
            that is a number, as in "blocks.0".
        batch_size: Samples per pass, which never reaches over a block.
        seed: Seed of the noise.
        share: This process's part of the work: the times, in turns. Any number of processes gives the same
            result, in every process.
        progress: Called with the fraction done.
        data: Description of the images to keep in the profiles.
        setting: What else to say of the model (run, step, track, ...).

    Raises:
        UserError: If an argument has a wrong value, losses or gradients are not finite, or the model has no
            per-sample gradients (see `SampleGradients`).
    """
    share = share or Share()
    t = probe_times(_TIMES) if t is None else t.detach().cpu().double()
    log_snr = _check_times(t, objective)
    if count < MIN_SAMPLES or batch_size < 1:
        raise UserError(f"{count} images in batches of {batch_size}: use at least {MIN_SAMPLES} and 1")
    with evaluating(model):
        takes = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
        engine = SampleGradients(model, Losses(objective, takes), parameters)
        named = {name: (group or first_number)(name) for name in engine.parameters}
        names = list(dict.fromkeys(named.values()))
        numbers = {name: names.index(named[name]) for name in named}
        samples = Sampling.load(batch, count, seed=seed, batch_size=batch_size, engine=engine)
        moments = Moments.empty(samples.sizes, len(t), Losses.columns, len(names))
        mine = [k for k in range(len(t)) if share.has(k)]
        for done, k in enumerate(mine):
            for part in samples.measure(float(t[k]), k, numbers, moments):
                if progress is not None:
                    progress((done + part) / len(mine))
    # Each time is one process's, the others add exact zeros.
    tables = (moments.values, moments.squares, moments.products)
    moments = Moments(moments.sizes, *(share.sum(table) for table in tables))
    _check_finite(moments, t)
    labelled = samples.y is not None
    model_says = {
        "interpolant": str(objective.interpolant),
        "prediction": objective.prediction,
        "direction": objective.direction,
        **(setting or {}),
    }

    def profile(
        quantity: Quantity, curve: Jackknifed, stderr: Tensor, model: dict[str, Any]
    ) -> VarianceProfile:
        own = quantity in POSTERIOR
        return VarianceProfile(
            quantity=quantity,
            method="denoiser" if own else "probe",
            bound="upper" if own else "estimate",
            log_snr=log_snr,
            mean=curve.mean.clamp(min=0),
            stderr=stderr,
            dim=samples.x1[0].numel(),
            second_moment=float(samples.x1.double().square().mean()),
            counts={"samples": count, "blocks": len(samples.sizes)},
            data=dict(data or {}),
            model=model,
            without=curve.without,
        )

    def gradients(number: int | None) -> dict[Quantity, VarianceProfile]:
        held = [p.numel() for name, p in engine.parameters.items() if number in (None, numbers[name])]
        says = {**model_says, "parameters": sum(held), "group": "all" if number is None else names[number]}
        curves = moments.gradients(number).items()
        return {quantity: profile(quantity, curve, error, says) for quantity, (curve, error) in curves}

    whole = gradients(None)
    says = whole["gradient_norm"].model
    for which, quantity in enumerate(LOSSES):
        curve = moments.value(which)
        whole[quantity] = profile(quantity, curve, curve.stderr, says)
    error = moments.value(2)
    kind: Quantity = "class_posterior_variance" if labelled else "posterior_variance"
    denoiser = profile(kind, error, error.stderr, {})
    return Probe(whole, {name: gradients(number) for number, name in enumerate(names)}, denoiser)


def first_number(name: str) -> str:
    """The first part of a parameter's name, with the second if that is a number."""
    first, second = [*name.split("."), ""][:2]
    return f"{first}.{second}" if second.isdigit() else first


def _check_times(t: Tensor, objective: Objective) -> Tensor:
    """The log-SNR at the times."""
    if t.ndim != 1 or len(t) == 0 or not bool((t.diff() > 0).all()):
        raise UserError("t must be a list of times that increases strictly")
    if not bool(((t > 0) & (t < 1)).all()):
        raise UserError(f"t goes from {float(t[0])} to {float(t[-1])}: use times strictly between 0 and 1")
    log_snr = objective.interpolant.log_snr(t)
    if not bool(torch.isfinite(log_snr).all()):
        raise UserError(f"t goes from {float(t[0])} to {float(t[-1])}, where the log-SNR is infinite")
    return log_snr


def _check_finite(moments: Moments, t: Tensor) -> None:
    for name, table in (
        ("loss", moments.values),
        ("gradient", moments.squares),
        ("gradient", moments.products),
    ):
        good = torch.isfinite(table).flatten(1).all(1)
        if not bool(good.all()):
            raise UserError(
                f"the {name} is not finite at t = {float(t[~good][0]):.4g}: the model has diverged, or"
                " the times reach too close to the end"
            )


def _check_curves(name: str, curves: dict[Quantity, VarianceProfile], wanted: tuple[Quantity, ...]) -> None:
    if set(curves) != set(wanted) or any(curve.quantity != key for key, curve in curves.items()):
        raise UserError(f"{name} must hold exactly {', '.join(wanted)}")


def _to_list(curves: dict[Quantity, VarianceProfile]) -> list[dict[str, Any]]:
    return [curve.to_dict() for curve in curves.values()]


def _from_list(content: object, where: str) -> dict[Quantity, VarianceProfile]:
    if not isinstance(content, list):
        raise UserError(f"{where} must be a list, not {type(content).__name__}")
    curves = [VarianceProfile.from_dict(item, f"{where}[{index}]") for index, item in enumerate(content)]
    found: dict[Quantity, VarianceProfile] = {}
    for curve in curves:
        if curve.quantity in found:
            raise UserError(f"{where} names {curve.quantity} twice")
        found[curve.quantity] = curve
    return found
