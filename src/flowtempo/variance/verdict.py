"""What a bracket says, in words: where it can be used, where not, and what more data would change."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flowtempo.interpolants import Interpolant
from flowtempo.variance.bracket import Bracket
from flowtempo.variance.denoiser import check_order
from flowtempo.variance.profile import COLLAPSE, VarianceProfile

NARROW, OPEN = 1.1, 2.0
"""Upper over lower edge: below the first the bracket is as good as one curve, above the second it is open."""

_MORE = 10
_POINTS = 4001
_STEP, _REACH = 0.005, 60.0


def verdict(bracket: Bracket, interpolant: Interpolant) -> list[str]:
    """Say what a bracket can be used for.

    Args:
        bracket: A bracket.
        interpolant: The path that t is meant on.

    Returns:
        Sentences, the most important first: where the posterior estimate has collapsed and what more points
        would change, where the edges agree and where they are far apart, what the class adds, and whether
        the edges are in the wrong order.
    """
    lines = _collapse_lines(bracket, interpolant)
    ratio = _ratio(bracket.lower, bracket.upper, interpolant)
    name = _path(interpolant)
    if narrow := _spans(ratio < NARROW):
        lines.append(f"The edges agree within 10% for t {narrow} on the {name}.")
    else:
        lines.append(f"The edges agree within 10% nowhere on the {name}.")
    if apart := _spans(ratio > OPEN):
        lines.append(
            f"They are more than a factor of 2 apart for t {apart}: there this data does not say how large"
            " the variance is."
        )
    if bracket.by_class is not None:
        lines.append(_class_line(bracket.upper, bracket.by_class.upper, interpolant))
    if inverted := check_order(bracket):
        shown = ", ".join(_number(value) for value in inverted[:8]) + (", ..." if len(inverted) > 8 else "")
        lines.append(
            "The lower edge is above the upper one by more than 4 standard errors at log-SNR"
            f" {shown}: do not use the bracket there. Points that are not independent draws (near copies,"
            " crops of one image) can do that."
        )
    return lines


def collapse(profile: VarianceProfile) -> float | None:
    """The log-SNR at which the effective sample size falls to `COLLAPSE`.

    Between grid points its logarithm is taken as linear.

    Returns:
        The log-SNR; the first of the grid if it starts collapsed; None if it does not collapse or has no
        effective sample size.
    """
    if profile.ess is None or profile.collapsed is None:
        return None
    place = int((profile.ess < COLLAPSE).double().argmax())
    if place == 0:
        return float(profile.log_snr[0])
    before, after = profile.ess[place - 1 : place + 1].log().tolist()
    low, high = profile.log_snr[place - 1 : place + 1].tolist()
    return float(low + (high - low) * (before - math.log(COLLAPSE)) / (before - after))


def collapse_with(bracket: Bracket, factor: float) -> float | None:
    """Where the posterior estimate would collapse with `factor` times the points, a prediction.

    The noised point holds the weight 1 / (1 + M exp(-i)) among M points, with the information density
    i = log p(x_t | x1) / p(x_t), whose mean is the mutual information I. The weight passes a half, and the
    effective size 2, where I = log M. More points move that to where I has grown by log(factor), and
    dI / d log-SNR = d / 2 exp(log-SNR) G (Guo, Shamai & Verdu, IEEE Trans. Inf. Theory 51, 2005, theorem 1),
    with G from the upper edge. In high dimensions G hardly changes there, so exp(log-SNR) grows like log M
    and the log-SNR like log log M.

    Args:
        bracket: Its lower edge with effective sample sizes.
        factor: Above 0; below 1 for fewer points.

    Returns:
        The log-SNR, or None where nothing collapses or no growth reaches it.
    """
    start = collapse(bracket.lower)
    if start is None:
        return None
    direction = 1.0 if factor >= 1 else -1.0
    x = start + direction * torch.arange(0, _REACH, _STEP, dtype=torch.float64)
    rate = bracket.lower.dim / 2 * x.exp() * bracket.upper.at(x)[0]
    information = torch.cumulative_trapezoid(rate, dx=_STEP)
    wanted = abs(math.log(factor))
    reached = (information >= wanted).nonzero()
    if len(reached) == 0:
        return None
    place = int(reached[0])
    missing = float((information[place] - wanted) / rate[place])
    return float(x[place + 1]) - direction * missing


def _collapse_lines(bracket: Bracket, interpolant: Interpolant) -> list[str]:
    lower = bracket.lower
    if lower.ess is None:
        return []
    points = lower.counts.get("points")
    data = f"With {points:,} points in {lower.dim:,} dimensions" if points else f"In {lower.dim:,} dimensions"
    start = collapse(lower)
    if start is None:
        return [
            f"{data} the posterior estimate rests on at least {float(lower.ess.min()):.2g} effective points"
            " everywhere."
        ]
    use = "use the upper edge, or `flowtempo probe` a model"
    t = _time(interpolant, start)
    if t <= 0:
        return [f"{data} the posterior estimate says nothing at any t on the {_path(interpolant)}: {use}."]
    text = f"{data} the posterior estimate says nothing above t = {_t(t)} (log-SNR {_number(start)})"
    lines = [f"{text} on the {_path(interpolant)}: {use}."]
    later = collapse_with(bracket, _MORE)
    if later is not None:
        lines.append(f"Ten times the points would move that to about t = {_t(_time(interpolant, later))}.")
    return lines


def _class_line(upper: VarianceProfile, by_class: VarianceProfile, interpolant: Interpolant) -> str:
    gain = 1 / _ratio(by_class, upper, interpolant)
    place = int(gain.argmin())
    best = float(gain[place])
    if best > 1 - 0.005:
        return "Knowing the class does not lower the upper edge."
    t = place / (_POINTS - 1)
    return f"Knowing the class lowers the upper edge most at t = {_t(t)}, by {100 * (1 - best):.2g}%."


def _ratio(lower: VarianceProfile, upper: VarianceProfile, interpolant: Interpolant) -> Tensor:
    """Upper over lower on an even grid of t, infinite where the lower one is 0."""
    t = torch.linspace(0, 1, _POINTS, dtype=torch.float64)
    # At the ends both may be 0; they go to the ratio that they have next to it.
    log_snr = interpolant.log_snr(t).clamp(-50, 50)
    return upper.at(log_snr)[0] / lower.at(log_snr)[0]


def _spans(inside: Tensor) -> str:
    """The stretches of t in which a mask over the grid is true, as text."""
    edge = torch.cat([torch.zeros(1), inside.double(), torch.zeros(1)]).diff()
    starts, ends = (edge > 0).nonzero().flatten().tolist(), ((edge < 0).nonzero().flatten() - 1).tolist()
    last = _POINTS - 1
    spans = [
        f"from {_t(start / last)} to {_t(end / last)}"
        for start, end in zip(starts, ends, strict=True)
        if end > start
    ]
    return " and ".join(spans)


def _time(interpolant: Interpolant, log_snr: float) -> float:
    return float(interpolant.time(torch.tensor(log_snr, dtype=torch.float64)).clamp(0, 1))


def _path(interpolant: Interpolant) -> str:
    return f"{str(interpolant).replace('_', '-')} path"


def _t(t: float) -> str:
    """A time to two digits of its distance to the nearer end."""
    near = min(t, 1 - t)
    digits = 2 if near <= 0 else max(2, 1 - math.floor(math.log10(near)))
    text = f"{t:.{min(digits, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _number(value: float) -> str:
    return f"{value:.2g}".replace("-", "−")
