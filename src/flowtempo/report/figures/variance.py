"""Figures of a bracket: over log-SNR, and as the target variance over t of each path."""

from __future__ import annotations

import math

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase

from flowtempo.design import variance_curve
from flowtempo.interpolants import Interpolant
from flowtempo.predictions import Prediction
from flowtempo.report import style
from flowtempo.variance import Bracket
from flowtempo.variance.verdict import collapse

_T_TICKS = (0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999)
_LOG_SNR_TICKS = (-6.0, -3.0, -1.0, 0.0, 1.0, 3.0, 6.0)
_POINTS = 801
# The class-conditional edges are drawn in one colour of their own.
_BY_CLASS = 2


def posterior_variance(bracket: Bracket, interpolant: Interpolant) -> Figure:
    """Both edges of the posterior variance over log-SNR, with bands of two standard errors."""
    figure = style.new_figure()
    draw_posterior_variance(figure, bracket, interpolant)
    return figure


def draw_posterior_variance(figure: FigureBase, bracket: Bracket, interpolant: Interpolant) -> None:
    """The content of `posterior_variance` in a (sub)figure."""
    axes = figure.subplots()
    for index, candidate in enumerate(each for each in bracket.candidates if each.bound == "upper"):
        dash = style.DASHES[(index + 2) % len(style.DASHES)]
        label = candidate.method.replace("_", " ")
        axes.plot(
            candidate.log_snr, candidate.mean, color=style.MUTED, linewidth=1, linestyle=dash, label=label
        )
    for index, (edge, profile) in enumerate((("lower", bracket.lower), ("upper", bracket.upper))):
        style.band(axes, profile.log_snr, profile.mean, profile.stderr, index, f"{edge} edge")
    if bracket.by_class is not None:
        for edge, profile in (("lower", bracket.by_class.lower), ("upper", bracket.by_class.upper)):
            dash = style.DASHES[edge == "upper"]
            label = f"{edge} edge, class known"
            style.band(axes, profile.log_snr, profile.mean, profile.stderr, _BY_CLASS, label, linestyle=dash)
    _over_log_snr(figure, axes, bracket, interpolant)
    axes.set_ylabel("posterior variance (data units²)")
    axes.set_ylim(bottom=0)


def explained_variance(bracket: Bracket, interpolant: Interpolant) -> Figure:
    """S = E|E[x1 | x_t]|²/d over log-SNR: what is left of E|x1|²/d after the posterior variance."""
    figure = style.new_figure()
    draw_explained_variance(figure, bracket, interpolant)
    return figure


def draw_explained_variance(figure: FigureBase, bracket: Bracket, interpolant: Interpolant) -> None:
    """The content of `explained_variance` in a (sub)figure."""
    axes = figure.subplots()
    total = bracket.upper.second_moment
    axes.axhline(total, color=style.MUTED, linewidth=1, linestyle=style.DASHES[2], label="E|x1|²/d")
    for index, (edge, profile) in enumerate((("lower", bracket.lower), ("upper", bracket.upper))):
        explained = profile.second_moment - profile.mean
        style.band(axes, profile.log_snr, explained, profile.stderr, index, f"from the {edge} edge")
    if bracket.by_class is not None:
        profile = bracket.by_class.upper
        explained = profile.second_moment - profile.mean
        style.band(axes, profile.log_snr, explained, profile.stderr, _BY_CLASS, "upper edge, class known")
    _over_log_snr(figure, axes, bracket, interpolant)
    axes.set_ylabel("S = E|E[x1 | x_t]|²/d (data units²)")


def _over_log_snr(figure: FigureBase, axes: Axes, bracket: Bracket, interpolant: Interpolant) -> None:
    grid = bracket.upper.log_snr
    margin = 0.0 if len(grid) > 1 else 1.0
    ends = (float(grid[0]) - margin, float(grid[-1]) + margin)
    start = collapse(bracket.lower)
    if start is not None:
        axes.axvspan(start, ends[1], color=style.MUTED, alpha=0.12, linewidth=0, label="lower edge collapsed")
    axes.set(xlabel="log-SNR", xlim=ends)
    style.plain_numbers(axes)
    # A path that starts late does not reach some of the times.
    times = [t for t in _T_TICKS if ends[0] <= _log_snr(interpolant, t) <= ends[1]]
    ticks = [_log_snr(interpolant, t) for t in times]
    style.top_axis(axes, time_label(interpolant), ticks, [f"{t:g}" for t in times])
    style.legend(figure, axes)


def target_variance(bracket: Bracket, interpolant: Interpolant, prediction: Prediction) -> Figure:
    """V(t), the variance of the regression target given x_t, from both edges."""
    figure = style.new_figure()
    draw_target_variance(figure, bracket, interpolant, prediction)
    return figure


def draw_target_variance(
    figure: FigureBase, bracket: Bracket, interpolant: Interpolant, prediction: Prediction
) -> None:
    """The content of `target_variance` in a (sub)figure."""
    axes = figure.subplots()
    t = torch.linspace(0.0, 1.0, _POINTS, dtype=torch.float64)
    curves = [
        variance_curve(profile, interpolant, prediction, t) for profile in (bracket.lower, bracket.upper)
    ]
    for index, (edge, curve) in enumerate(zip(("lower", "upper"), curves, strict=True)):
        style.band(axes, t, curve.mean, curve.stderr, index, f"{edge} edge")
    if bracket.by_class is not None:
        known = variance_curve(bracket.by_class.upper, interpolant, prediction, t)
        style.band(axes, t, known.mean, known.stderr, _BY_CLASS, "upper edge, class known")
    axes.set(xlabel=time_label(interpolant), ylabel=f"variance of the {prediction} target", xlim=(0, 1))
    usual = curves[1].mean.quantile(torch.tensor([0.05, 0.95], dtype=torch.float64)).tolist()
    if math.isfinite(usual[1]) and 0 < 100 * usual[0] < usual[1]:
        style.scale_to(axes, usual)
        axes.set_ylim(usual[0] / 10, usual[1] * 10)
    else:
        style.plain_numbers(axes)
        axes.set_ylim(0, 1.2 * max(style.ceiling(curve.mean) for curve in curves))
    log_snr_axis(axes, interpolant)
    style.legend(figure, axes)


def log_snr_axis(axes: Axes, interpolant: Interpolant) -> None:
    """A scale of log-SNR along the top of axes over t."""
    ticks = interpolant.time(torch.tensor(_LOG_SNR_TICKS, dtype=torch.float64)).tolist()
    style.top_axis(axes, "log-SNR", ticks, [style.minus(f"{value:g}") for value in _LOG_SNR_TICKS])


def time_label(interpolant: Interpolant) -> str:
    """Label of an axis of t."""
    return f"t on the {str(interpolant).replace('_', '-')} path"


def _log_snr(interpolant: Interpolant, t: float) -> float:
    return float(interpolant.log_snr(torch.tensor(t, dtype=torch.float64)))
