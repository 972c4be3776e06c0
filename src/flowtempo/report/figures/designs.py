"""Figures of designs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.figure import Figure

from flowtempo.densities import Density, LogitNormal, Uniform
from flowtempo.design import Design
from flowtempo.report import style

REFERENCES: tuple[tuple[str, Density], ...] = (("uniform", Uniform()), ("LN(0, 1)", LogitNormal(0.0, 1.0)))
_POINTS = 801


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
        label = style.minus(f"nearest: LN({fit.mean:.2f}, {fit.std:.2f})")
        axes.plot(t, design.density.pdf(t), color=colour, linewidth=2.2, label=name)
        if design.band is not None:
            low, high = torch.as_tensor(design.band.low), torch.as_tensor(design.band.high)
            label_band = f"{100 * design.band.level:g}% band" if len(designs) == 1 else None
            axes.fill_between(
                torch.as_tensor(design.band.t),
                low,
                high,
                color=colour,
                alpha=0.2,
                linewidth=0,
                label=label_band,
            )
            tops.append(style.ceiling(high))
        axes.plot(t, fit.pdf(t), color=colour, linewidth=1.3, linestyle=style.DASHES[1], label=label)
        tops += [style.ceiling(design.density.pdf(t)), style.ceiling(fit.pdf(t))]
    if other_edge is not None:
        pdf, label = other_edge.density.pdf(t), f"from the {other_edge.edge} edge"
        axes.plot(t, pdf, color=style.SERIES[0], linewidth=1.3, linestyle=style.DASHES[3], label=label)
        tops.append(style.ceiling(pdf))
    for (label, density), dash in zip(REFERENCES, (style.DASHES[0], style.DASHES[2]), strict=True):
        axes.plot(t, density.pdf(t), color=style.MUTED, linewidth=1.3, linestyle=dash, label=label)
    axes.set(xlabel="t (0 is noise, 1 is data)", ylabel="probability density", xlim=(0, 1))
    axes.set_ylim(0, max(tops, default=2.0))
    style.plain_numbers(axes)
    style.legend(figure, axes)
    return figure
