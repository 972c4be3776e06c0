"""Figures of runs: losses by band and over steps, Frechet distances."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from flowtempo.report import style
from flowtempo.report.records import Run


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
        panels[0].stairs(value, edge, baseline=None, label=name, **style.line(index))
        if compared:
            with np.errstate(divide="ignore", invalid="ignore"):
                change = 100 * (value / values[0] - 1)
            panels[1].stairs(change, edge, baseline=None, **style.line(index))
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
            look = style.line(index)
            if track == "raw" and len(tracks) > 1:
                look |= {"linestyle": ":", "linewidth": 1.0}
            else:
                look |= {
                    "label": arm.name,
                    "marker": style.marker(index),
                    "markevery": max(1, len(records) // 8),
                }
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
                marker=style.marker(index),
                **style.line(index),
            )
    axes.set(xlabel="optimizer step", ylabel="Frechet distance")
    style.scale_to(axes, [record.frechet for arm in arms for record in arm.evaluations])
    style.legend(figure, axes)
    return figure
