"""One function per figure: records in, a matplotlib figure out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase

from flowtempo.densities import Density, LogitNormal, Uniform
from flowtempo.design import Design, variance_curve
from flowtempo.errors import UserError
from flowtempo.interpolants import Interpolant, Linear
from flowtempo.predictions import Prediction
from flowtempo.report import style
from flowtempo.report.records import Run
from flowtempo.variance import Bracket

REFERENCES: tuple[tuple[str, Density], ...] = (("uniform", Uniform()), ("LN(0, 1)", LogitNormal(0.0, 1.0)))
_T_TICKS = (0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999)
_POINTS = 801
_LOG_SNR_TICKS = (-6.0, -3.0, -1.0, 0.0, 1.0, 3.0, 6.0)


def posterior_variance(bracket: Bracket, interpolant: Interpolant) -> Figure:
    """Both edges of the posterior variance over log-SNR, with bands of two standard errors."""
    figure = style.new_figure()
    _draw_posterior_variance(figure, bracket, interpolant)
    return figure


def _draw_posterior_variance(figure: FigureBase, bracket: Bracket, interpolant: Interpolant) -> None:
    axes = figure.subplots()
    for index, candidate in enumerate(each for each in bracket.candidates if each.bound == "upper"):
        dash = style.DASHES[(index + 2) % len(style.DASHES)]
        label = candidate.method.replace("_", " ")
        axes.plot(
            candidate.log_snr, candidate.mean, color=style.MUTED, linewidth=1, linestyle=dash, label=label
        )
    for index, (edge, profile) in enumerate((("lower", bracket.lower), ("upper", bracket.upper))):
        _band(axes, profile.log_snr, profile.mean, profile.stderr, index, f"{edge} edge")
    grid = bracket.upper.log_snr
    margin = 0.0 if len(grid) > 1 else 1.0
    ends = (float(grid[0]) - margin, float(grid[-1]) + margin)
    axes.set(xlabel="log-SNR", ylabel="posterior variance", xlim=ends)
    axes.set_ylim(bottom=0)
    style.plain_numbers(axes)
    ticks = interpolant.log_snr(torch.tensor(_T_TICKS, dtype=torch.float64)).tolist()
    style.top_axis(axes, _time_label(interpolant), ticks, [f"{t:g}" for t in _T_TICKS])
    style.legend(figure, axes)


def target_variance(bracket: Bracket, interpolant: Interpolant, prediction: Prediction) -> Figure:
    """V(t), the variance of the regression target given x_t, from both edges."""
    figure = style.new_figure()
    _draw_target_variance(figure, bracket, interpolant, prediction)
    return figure


def _draw_target_variance(
    figure: FigureBase, bracket: Bracket, interpolant: Interpolant, prediction: Prediction
) -> None:
    axes = figure.subplots()
    t = torch.linspace(0.0, 1.0, _POINTS, dtype=torch.float64)
    curves = [
        variance_curve(profile, interpolant, prediction, t) for profile in (bracket.lower, bracket.upper)
    ]
    for index, (edge, curve) in enumerate(zip(("lower", "upper"), curves, strict=True)):
        _band(axes, t, curve.mean, curve.stderr, index, f"{edge} edge")
    axes.set(xlabel=_time_label(interpolant), ylabel=f"variance of the {prediction} target", xlim=(0, 1))
    usual = curves[1].mean.quantile(torch.tensor([0.05, 0.95], dtype=torch.float64)).tolist()
    if math.isfinite(usual[1]) and 0 < 100 * usual[0] < usual[1]:
        style.scale_to(axes, usual)
        axes.set_ylim(usual[0] / 10, usual[1] * 10)
    else:
        style.plain_numbers(axes)
        axes.set_ylim(0, 1.2 * max(_ceiling(curve.mean) for curve in curves))
    ticks = interpolant.time(torch.tensor(_LOG_SNR_TICKS, dtype=torch.float64)).tolist()
    style.top_axis(axes, "log-SNR", ticks, [_minus(f"{value:g}") for value in _LOG_SNR_TICKS])
    style.legend(figure, axes)


def densities(designs: Sequence[tuple[str, Design]], other_edge: Design | None = None) -> Figure:
    """Designed densities over t and their nearest logit-normals, against uniform and LN(0, 1).

    Args:
        designs: By name.
        other_edge: What the first design would be, had it been made from the bracket's other edge.
    """
    figure = style.new_figure()
    axes = figure.subplots()
    t = torch.linspace(0.0, 1.0, _POINTS, dtype=torch.float64)
    tops = []
    for index, (name, design) in enumerate(designs):
        colour = style.SERIES[index % len(style.SERIES)]
        fit = LogitNormal(design.fit.mean, design.fit.std)
        label = _minus(f"nearest: LN({fit.mean:.2f}, {fit.std:.2f})")
        axes.plot(t, design.density.pdf(t), color=colour, linewidth=2.2, label=name)
        axes.plot(t, fit.pdf(t), color=colour, linewidth=1.3, linestyle=style.DASHES[1], label=label)
        tops += [_ceiling(design.density.pdf(t)), _ceiling(fit.pdf(t))]
    if other_edge is not None:
        pdf, label = other_edge.density.pdf(t), f"from the {other_edge.edge} edge"
        axes.plot(t, pdf, color=style.SERIES[0], linewidth=1.3, linestyle=style.DASHES[3], label=label)
        tops.append(_ceiling(pdf))
    for (label, density), dash in zip(REFERENCES, (style.DASHES[0], style.DASHES[2]), strict=True):
        axes.plot(t, density.pdf(t), color=style.MUTED, linewidth=1.3, linestyle=dash, label=label)
    axes.set(xlabel="t (0 is noise, 1 is data)", ylabel="probability density", xlim=(0, 1))
    axes.set_ylim(0, max(tops, default=2.0))
    style.plain_numbers(axes)
    style.legend(figure, axes)
    return figure


def loss_by_band(arms: Sequence[Run]) -> Figure:
    """The last reference loss in each interval of t; with several arms also against the first of them."""
    finals = [(index, arm.name, arm.final_reference()) for index, arm in enumerate(arms)]
    banded = [(index, name, loss.bands) for index, name, loss in finals if loss and loss.bands]
    edges = [np.array([*(band.low for band in bands), bands[-1].high]) for _, _, bands in banded]
    values = [np.array([band.loss for band in bands]) for _, _, bands in banded]
    compared = len(banded) > 1 and all(np.array_equal(edge, edges[0]) for edge in edges)
    figure = style.new_figure(height=style.HEIGHT * (1.3 if compared else 1))
    panels = figure.subplots(2 if compared else 1, sharex=True, squeeze=False)[:, 0]
    for (index, name, _), edge, value in zip(banded, edges, values, strict=True):
        panels[0].stairs(value, edge, baseline=None, label=name, **_line(index))
        if compared:
            with np.errstate(divide="ignore", invalid="ignore"):
                change = 100 * (value / values[0] - 1)
            panels[1].stairs(change, edge, baseline=None, **_line(index))
    panels[0].set(ylabel="reference loss", xlim=(0, 1))
    style.scale_to(panels[0], np.concatenate(values).tolist())
    if compared:
        panels[1].set_ylabel("change in %")
        style.plain_numbers(panels[1])
    panels[-1].set_xlabel("t (0 is noise, 1 is data)")
    style.legend(figure, panels[0])
    return figure


def loss_over_steps(arms: Sequence[Run]) -> Figure:
    """The reference loss of every arm: averaged weights as lines, raw weights thin and dotted.

    The loss before the first step is the same for arms of one seed and would only stretch the axis.
    """
    figure = style.new_figure()
    axes = figure.subplots()
    begun = any(record.step > 0 for arm in arms for record in arm.reference)
    shown: list[float] = []
    for index, arm in enumerate(arms):
        tracks = sorted({record.track for record in arm.reference})
        for track in tracks:
            records = [r for r in arm.reference if r.track == track and (r.step > 0 or not begun)]
            shown += [record.loss for record in records]
            look = _line(index)
            if track == "raw" and len(tracks) > 1:
                look |= {"linestyle": ":", "linewidth": 1.0}
            else:
                look |= {"label": arm.name, "marker": _marker(index), "markevery": max(1, len(records) // 8)}
            axes.plot([record.step for record in records], [record.loss for record in records], **look)
    axes.set(xlabel="optimizer step", ylabel="reference loss")
    style.scale_to(axes, shown)
    style.legend(figure, axes)
    return figure


def frechet_over_steps(arms: Sequence[Run]) -> Figure:
    """The Frechet distance of every evaluated arm, with bars of two standard errors, side by side."""
    figure = style.new_figure()
    axes = figure.subplots()
    steps = [record.step for arm in arms for record in arm.evaluations]
    apart = 0.012 * (max(steps) - min(steps))
    for index, arm in enumerate(arms):
        if arm.evaluations:
            axes.errorbar(
                [record.step + apart * (index - (len(arms) - 1) / 2) for record in arm.evaluations],
                [record.frechet for record in arm.evaluations],
                yerr=[2 * record.stderr for record in arm.evaluations],
                label=arm.name,
                marker=_marker(index),
                **_line(index),
            )
    axes.set(xlabel="optimizer step", ylabel="Frechet distance")
    style.scale_to(axes, [record.frechet for arm in arms for record in arm.evaluations])
    style.legend(figure, axes)
    return figure


def save_profile_png(
    profile: Path,
    output: Path,
    *,
    interpolant: Interpolant | None = None,
    prediction: Prediction = "velocity",
) -> None:
    """Draw a `profile.json` into one PNG: posterior variance over log-SNR, target variance over t.

    Args:
        profile: What `flowtempo measure` wrote.
        output: The PNG.
        interpolant: What t means; linear by default.
        prediction: The regression target of the right panel.

    Raises:
        UserError: The profile cannot be read; names the file.
    """
    bracket, interpolant = Bracket.load(profile), interpolant or Linear()
    with style.styled():
        figure = style.new_figure(2 * style.WIDTH, style.HEIGHT + 0.3)
        halves: Any = figure.subfigures(1, 2)
        _draw_posterior_variance(halves[0], bracket, interpolant)
        _draw_target_variance(halves[1], bracket, interpolant, prediction)
        try:
            with np.errstate(all="ignore"):
                style.to_png(figure, output)
        except (ValueError, ArithmeticError) as error:
            raise UserError(f"{profile}: cannot be drawn, its values are too extreme") from error


def save_density_png(design: Path, output: Path) -> None:
    """Draw a `density.json` into a PNG, against uniform, LN(0, 1) and its nearest logit-normal.

    Raises:
        UserError: The density cannot be read; names the file.
    """
    loaded = Design.load(design)
    with style.styled():
        style.to_png(densities([(f"designed ({loaded.rule})", loaded)]), output)


def _line(index: int) -> dict[str, Any]:
    """Colour and dash of an arm: repeated colours get another dash."""
    count = len(style.SERIES)
    return {
        "color": style.SERIES[index % count],
        "linestyle": style.DASHES[(index + index // count) % len(style.DASHES)],
    }


def _marker(index: int) -> str:
    return style.MARKERS[index % len(style.MARKERS)]


def _band(
    axes: Axes, x: torch.Tensor, mean: torch.Tensor, stderr: torch.Tensor, index: int, label: str
) -> None:
    look = _line(index)
    axes.plot(x, mean, label=label, marker="o" if len(x) == 1 else None, **look)
    axes.fill_between(x, mean - 2 * stderr, mean + 2 * stderr, color=look["color"], alpha=0.2, linewidth=0)


def _ceiling(values: torch.Tensor) -> float:
    """A limit of the y axis that shows a curve whole, or cuts a pole that would flatten the rest."""
    finite = values[torch.isfinite(values)]
    if not len(finite):
        return 1.0
    peak, typical = float(finite.max()), float(finite.quantile(0.9))
    return 1.05 * (peak if peak < 8 * typical else 4 * typical) or 1.0


def _time_label(interpolant: Interpolant) -> str:
    return f"t on the {interpolant.name.replace('_', ' ')} path"


def _minus(text: str) -> str:
    return text.replace("-", "−")
