"""Figure of densities over log-SNR: where they look, what their losses weigh, and what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from flowtempo.design import variance_curve
from flowtempo.design.snr import LOG_SNR_EDGES, SnrPdf
from flowtempo.report import style
from flowtempo.variance import Bracket

_POINTS = 801
_KEY_COLUMNS = 3
# Beyond these log-SNRs nothing is drawn, whatever a density does there.
_FARTHEST = 20.0
_T_TICKS = (0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999)


def snr_pdfs(
    subjects: Sequence[tuple[str, SnrPdf]], bracket: Bracket | None = None, std: float = 1.0
) -> Figure:
    """Densities over log-SNR, and beside them what each objective weighs the data error with there.

    Args:
        subjects: By name; all are drawn over each other.
        bracket: A measurement to show beside them: its edges over log-SNR, and the variance of each
            objective's target over t from the upper edge.
        std: Standard deviation of the measured data.
    """
    figure = style.new_figure(2 * style.WIDTH, (1 if bracket is None else 2) * style.HEIGHT)
    panels: Any = figure.subplots(1 if bracket is None else 2, 2, squeeze=False)
    log_snr = _grid([snr for _, snr in subjects])
    left, right = panels[0]
    tops = []
    for index, (name, snr) in enumerate(subjects):
        look = style.line(index)
        left.plot(log_snr, snr.pdf(log_snr), label=name, **look)
        emphasis = snr.normalised_emphasis(log_snr)
        right.plot(log_snr, emphasis, **look)
        tops.append(float(emphasis[(log_snr >= LOG_SNR_EDGES[0]) & (log_snr <= LOG_SNR_EDGES[-1])].max()))
    for axes in (left, right):
        axes.set(xlabel="log-SNR of the input", xlim=(float(log_snr[0]), float(log_snr[-1])))
        style.plain_numbers(axes)
        axes.set_ylim(bottom=0)
    left.set_ylabel("probability density")
    right.set_ylabel("density × weight on the data error")
    right.set_ylim(0, 1.05 * max(tops) or 1)
    _time_axis(left, [snr for _, snr in subjects])
    if bracket is not None:
        _measured(panels[1][0], bracket, std, log_snr)
        _target_variances(panels[1][1], subjects, bracket)
    style.legend(figure, left, columns=_KEY_COLUMNS)
    return figure


def _grid(subjects: Sequence[SnrPdf]) -> Tensor:
    """Log-SNRs that show all but a thousandth of each density at either end."""
    ends = torch.stack([snr.quantile(torch.tensor([0.001, 0.999], dtype=torch.float64)) for snr in subjects])
    low = min(float(ends[:, 0].min()), LOG_SNR_EDGES[0])
    high = max(float(ends[:, 1].max()), LOG_SNR_EDGES[-1])
    return torch.linspace(max(low, -_FARTHEST), min(high, _FARTHEST), _POINTS, dtype=torch.float64)


def _time_axis(axes: Axes, subjects: Sequence[SnrPdf]) -> None:
    """A scale of t along the top, where it means the same for all."""
    first = subjects[0]
    if any((snr.interpolant, snr.std) != (first.interpolant, first.std) for snr in subjects):
        return
    ticks = first.interpolant.log_snr(torch.tensor(_T_TICKS, dtype=torch.float64)) + first.shift
    low, high = axes.get_xlim()
    shown = [
        (tick, f"{t:g}") for tick, t in zip(ticks.tolist(), _T_TICKS, strict=True) if low <= tick <= high
    ]
    label = f"t on the {str(first.interpolant).replace('_', '-')} path"
    style.top_axis(axes, label, [tick for tick, _ in shown], [t for _, t in shown])


def _measured(axes: Axes, bracket: Bracket, std: float, log_snr: Tensor) -> None:
    # The data's own log-SNR counts its standard deviation, as that of the densities does.
    shift = 2 * math.log(std)
    for index, (edge, profile) in enumerate((("lower", bracket.lower), ("upper", bracket.upper))):
        mean, stderr = profile.mean / std**2, profile.stderr / std**2
        style.band(axes, profile.log_snr + shift, mean, stderr, index, f"{edge} edge")
    axes.set(xlabel="log-SNR of the measured data", xlim=(float(log_snr[0]), float(log_snr[-1])))
    axes.set_ylabel("posterior variance / std²")
    axes.set_ylim(bottom=0)
    style.plain_numbers(axes)
    axes.legend()


def _target_variances(axes: Axes, subjects: Sequence[tuple[str, SnrPdf]], bracket: Bracket) -> None:
    t = torch.linspace(0, 1, _POINTS, dtype=torch.float64)
    tops = []
    for index, (_, snr) in enumerate(subjects):
        curve = variance_curve(bracket.upper, snr.interpolant, snr.prediction, t).mean
        axes.plot(t, curve, **style.line(index))
        tops.append(style.ceiling(curve))
    axes.set(xlabel="t (0 is noise, 1 is data)", xlim=(0, 1), ylabel="target variance, upper edge")
    axes.set_ylim(0, max(tops) or 1)
    style.plain_numbers(axes)
