"""Figures of a probe: a model's gradients beside the target variance and beside its loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from torch import Tensor

from flowtempo.design import variance_curve
from flowtempo.errors import UserError
from flowtempo.interpolants import Interpolant, interpolant
from flowtempo.predictions import PREDICTIONS, Prediction
from flowtempo.report import style
from flowtempo.report.figures.variance import log_snr_axis, time_label
from flowtempo.variance import Bracket, VarianceProfile
from flowtempo.variance.compare import spearman
from flowtempo.variance.probe import Probe

Over = Literal["t", "log_snr"]
OVER: tuple[Over, ...] = get_args(Over)
# Groups of parameters that get a line of their own.
_GROUPS = 6


@dataclass(frozen=True)
class Line:
    """One curve of a probe's figure, relative to a mean over t."""

    label: str
    mean: Tensor
    stderr: Tensor
    index: int


def path_of(probe: Probe) -> tuple[Interpolant, Prediction]:
    """The interpolant and the prediction type that the model was probed with.

    Raises:
        UserError: If the probe does not say, or names unknown ones.
    """
    told = probe.profiles["loss"].model
    if "interpolant" not in told or "prediction" not in told:
        raise UserError("the probe does not say on which interpolant and prediction it was measured")
    prediction = told["prediction"]
    if prediction not in PREDICTIONS:
        raise UserError(f"unknown prediction {prediction!r}: use one of {', '.join(PREDICTIONS)}")
    return interpolant(str(told["interpolant"])), cast(Prediction, prediction)


def times(probe: Probe) -> Tensor:
    """The times of the probe's grid, (T,)."""
    return path_of(probe)[0].time(probe.profiles["loss"].log_snr)


def gradient_lines(probe: Probe, bracket: Bracket | None = None) -> list[Line]:
    """E|g|^2, the variance of g and |E g|^2 over the mean of the first; V(t) of both edges over its own mean.

    The error bands hold the curves' errors and not those of the means that they are divided by.
    """
    curves = probe.profiles
    t = times(probe)
    moment, norm = curves["gradient_second_moment"], curves["gradient_norm"]
    unit = _mean(t, moment.mean)
    lines = [
        _relative("E|g|²", moment, unit, 0),
        _relative("E|g − E g|²", curves["gradient_variance"], unit, 1),
        Line("|E g|²", norm.mean.square() / unit, 2 * norm.mean * norm.stderr / unit, 2),
    ]
    if bracket is not None:
        path, prediction = path_of(probe)
        for index, (edge, profile) in enumerate((("upper", bracket.upper), ("lower", bracket.lower)), 3):
            curve = variance_curve(profile, path, prediction, t)
            unit = _mean(t, curve.mean)
            lines.append(Line(f"V(t), {edge} edge", curve.mean / unit, curve.stderr / unit, index))
    return lines


def loss_lines(probe: Probe) -> list[Line]:
    """E|g|^2, the loss and its second moment, each over its mean over t."""
    curves, t = probe.profiles, times(probe)
    named: tuple[tuple[str, VarianceProfile, int], ...] = (
        ("E|g|²", curves["gradient_second_moment"], 0),
        ("loss", curves["loss"], 3),
        ("loss²", curves["loss_second_moment"], 4),
    )
    return [_relative(label, curve, _mean(t, curve.mean), index) for label, curve, index in named]


def group_lines(probe: Probe) -> list[Line]:
    """E|g|^2 of the groups of parameters, the largest first; what is beyond six is added up."""
    moments = {name: curves["gradient_second_moment"] for name, curves in probe.groups.items()}
    t = times(probe)
    order = sorted(moments, key=lambda name: -_mean(t, moments[name].mean))
    shown = order if len(order) <= _GROUPS else order[: _GROUPS - 1]
    lines = [Line(name, moments[name].mean, moments[name].stderr, i) for i, name in enumerate(shown)]
    if rest := order[len(shown) :]:
        total = torch.stack([moments[name].mean for name in rest]).sum(0)
        # Groups share images, so their errors are added as if fully correlated.
        error = torch.stack([moments[name].stderr for name in rest]).sum(0)
        lines.append(Line(f"{len(rest)} other groups", total, error, len(shown)))
    return lines


def agreement(probe: Probe, bracket: Bracket | None) -> str:
    """How alike the orders of the curves over t are, in a sentence."""
    t, moment = times(probe), probe.profiles["gradient_second_moment"].mean
    told = [f"{spearman(moment, probe.profiles['loss'].mean):.2f} with the loss"]
    if bracket is not None:
        curve = variance_curve(bracket.upper, *path_of(probe), t).mean
        told.append(f"{spearman(moment, curve):.2f} with V(t) of the upper edge")
    return style.minus(f"Rank correlation of E|g|² over the times: {', '.join(told)}.")


def gradient_label(bracket: Bracket | None) -> str:
    """What `gradient_lines` are relative to."""
    return "relative to mean E|g|²" + ("" if bracket is None else " (V: to its own)")


def gradients(probe: Probe, bracket: Bracket | None = None, over: Over = "t") -> Figure:
    """The gradient's curves beside the target variance."""
    figure = style.new_figure()
    draw(figure, probe, gradient_lines(probe, bracket), gradient_label(bracket), over)
    return figure


def gradients_and_loss(probe: Probe, over: Over = "t") -> Figure:
    """The gradient's second moment beside the loss."""
    figure = style.new_figure()
    draw(figure, probe, loss_lines(probe), "relative to own mean over t", over)
    return figure


def gradients_by_group(probe: Probe, over: Over = "t") -> Figure:
    """The gradient's second moment in groups of parameters."""
    figure = style.new_figure()
    draw(figure, probe, group_lines(probe), "E|g|² of the group", over)
    return figure


def draw(figure: FigureBase, probe: Probe, lines: Sequence[Line], label: str, over: Over) -> Axes:
    """Curves over t or log-SNR in a (sub)figure, with their key above."""
    axes = panel(figure.subplots(), probe, lines, over)
    axes.set_ylabel(label)
    style.legend(figure, axes)
    return axes


def panel(axes: Axes, probe: Probe, lines: Sequence[Line], over: Over) -> Axes:
    """Curves over t or log-SNR."""
    path, _ = path_of(probe)
    grid = probe.profiles["loss"].log_snr
    x = path.time(grid) if over == "t" else grid
    for line in lines:
        style.band(axes, x, line.mean, line.stderr, line.index, line.label)
    values = torch.cat([line.mean for line in lines])
    # What falls far below the rest, such as a collapsed edge, leaves the picture at the bottom.
    shown = values[values > values.max() / 1000].tolist()
    style.scale_to(axes, shown)
    if axes.get_yscale() == "log":
        axes.set_ylim(min(shown) / 2, max(shown) * 2)
    if over == "t":
        axes.set(xlabel=time_label(path), xlim=(0, 1))
        log_snr_axis(axes, path)
    else:
        axes.set_xlabel("log-SNR")
    return axes


def _relative(label: str, curve: VarianceProfile, unit: float, index: int) -> Line:
    return Line(label, curve.mean / unit, curve.stderr / unit, index)


def _mean(t: Tensor, curve: Tensor) -> float:
    """The mean over t between the first and the last time; 1 for a curve of zeros, which stays one."""
    area = float(torch.trapezoid(curve, t) / (t[-1] - t[0])) if len(t) > 1 else float(curve[0])
    return area or 1.0
