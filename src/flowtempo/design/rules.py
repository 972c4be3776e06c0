"""Rules that turn a curve over t into a density."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import get_args

import torch
from torch import Tensor

from flowtempo.densities import Density, Tabulated, Truncated, Uniform
from flowtempo.design.bootstrap import Band, band_of, resampled, thinned
from flowtempo.design.curve import curve_over_t, time_grid
from flowtempo.design.fit import LogitNormalFit, fit_errors, nearest_logit_normal
from flowtempo.design.record import Collapsed, Design
from flowtempo.design.source import Choice, Edge, Rule, Source, collapsing, curve_for, rules_for, setting
from flowtempo.errors import UserError
from flowtempo.interpolants import Interpolant
from flowtempo.predictions import Prediction
from flowtempo.variance import VarianceProfile
from flowtempo.variance.verdict import collapse

_RESAMPLES, _FEWEST_RESAMPLES = 200, 40

_Made = tuple[Tabulated, LogitNormalFit, Band | None]


def design(
    source: Source,
    interpolant: Interpolant | None = None,
    *,
    rule: Rule = "paper",
    edge: Edge | None = None,
    by_class: bool = False,
    group: str | None = None,
    floor: float = 0.05,
    prediction: Prediction | None = None,
    target: Density | None = None,
    low: float = 0.0,
    high: float = 1.0,
    resamples: int = _RESAMPLES,
    seed: int = 0,
) -> Design:
    """Turn what was measured into a density.

    With V(t) the variance of one sample's gradient and M(t) its second moment:

    - `paper`: density proportional to V. It minimises the largest V / density (authors' reply to the reviews
      of VR-Sampling) and becomes the target, so the objective moves.
    - `importance`: proportional to target x sqrt(M), which minimises the variance of the weighted loss'
      gradient for independent draws. The objective is kept.
    - `neyman`: proportional to target x sqrt(V), which is optimal for stratified draws (Neyman allocation;
      Cochran, "Sampling Techniques", chapter 5). The objective is kept.

    A probe has both of a model; they hold for its interpolant and prediction. From a bracket, or one
    profile of the posterior variance, the variance of the training target stands in for both V and M: it is
    the second moment of a fitted model's error.

    Args:
        source: A bracket, a probe, or one profile of what the rule takes.
        interpolant: The path; the probe's own by default, linear where the data alone was measured.
        rule: One of the three.
        edge: Edge of a bracket to design from, "upper" by default; nothing else has one.
        by_class: Whether to take the class-conditional part of a bracket.
        group: A probe's group of parameters; the whole model by default.
        floor: Share of the uniform density on [low, high] that is mixed in, 0 to 1.
        prediction: The network's target; the probe's own by default, velocity where the data alone was
            measured.
        target: What the objective is averaged over, uniform by default and cut to [low, high]; not for
            `paper`, which defines it.
        low: Lowest time.
        high: Highest time. The velocity of the variance-preserving path is infinite at t = 1 and its
            variance not integrable: end below, for example at 0.999.
        resamples: Bootstrap resamples for the confidence band and the standard errors of the fits, 40 or
            more; 0 for none.
        seed: Seed of the resamples.

    Raises:
        UserError: If an argument is out of range or without effect, the curve is infinite in [low, high], or
            the source does not fit the rule, the interpolant or the prediction.
    """
    if rule not in get_args(Rule):
        raise UserError(f"unknown rule {rule!r}: use one of {', '.join(get_args(Rule))}")
    if not 0 <= floor <= 1:
        raise UserError(f"floor = {floor} is a share: use 0 to 1")
    if not 0 <= low < high <= 1:
        raise UserError(f"low = {low} and high = {high}: use 0 <= low < high <= 1")
    if resamples and resamples < _FEWEST_RESAMPLES:
        raise UserError(f"resamples = {resamples}: use {_FEWEST_RESAMPLES} or more, or 0 for none")
    if rule == "paper" and target is not None:
        raise UserError(
            "target has no effect with rule paper, which makes the density the target: leave it out"
        )
    choice = Choice(edge, by_class, group).of(source)
    profile = curve_for(source, rule, choice)
    path, predicted = setting(profile, interpolant, prediction)
    kept = target or Uniform()
    if (low, high) != (0.0, 1.0):
        kept = Truncated(kept, low, high)
    maker = _Maker(path, predicted, kept, floor, time_grid(low, high), resamples, seed)
    table, fit, band = maker.make(profile, rule)
    alternatives = {
        other: maker.make(curve_for(source, other, choice), other)[1]
        for other in rules_for(source)
        if other != rule and bool(curve_for(source, other, choice).mean.any())
    }
    return Design(
        density=table,
        target=table if rule == "paper" else kept,
        rule=rule,
        floor=floor,
        interpolant=str(path),
        prediction=predicted,
        quantity=profile.quantity,
        edge=choice.edge,
        group=choice.group,
        fit=fit,
        profile_hash=profile.digest,
        alternatives=alternatives,
        band=band,
        collapsed=_collapsed(collapsing(source, choice), path, table),
    )


@dataclass(frozen=True, eq=False)
class _Maker:
    """Makes densities from profiles, and says how sure they are; what rules share is made once."""

    path: Interpolant
    prediction: Prediction
    target: Density
    floor: float
    t: Tensor
    resamples: int
    seed: int
    _curves: dict[VarianceProfile, tuple[Tensor, Tensor | None]] = field(default_factory=dict)
    _made: dict[tuple[VarianceProfile, bool], _Made] = field(default_factory=dict)

    def make(self, profile: VarianceProfile, rule: Rule) -> _Made:
        """The density of a profile under a rule, its fit and its band."""
        key = profile, rule == "paper"
        if key not in self._made:
            self._made[key] = self._make(*self._over_t(profile), rule)
        return self._made[key]

    def _make(self, curve: Tensor, resampled_curves: Tensor | None, rule: Rule) -> _Made:
        infinite = ~torch.isfinite(curve)
        if bool(infinite.any()):
            raise UserError(
                f"the variance of the {self.prediction} target on the {self.path} path is infinite at "
                f"t = {float(self.t[infinite][0]):g}: give --low and --high that leave it out, for example "
                "--high 0.999"
            )
        pdf = self._pdf(curve, rule)
        if not bool(torch.isfinite(pdf).all()):
            raise UserError(
                "the variance curve is zero everywhere in [low, high]: there is nothing to design from"
            )
        table = Tabulated(self.t, pdf)
        fit = nearest_logit_normal(table)
        if resampled_curves is None:
            return table, fit, None
        others = self._pdf(resampled_curves, rule)
        # A curve so uncertain that a resample is zero everywhere: there is no density to count.
        others = others[torch.isfinite(others).all(-1)]
        points = thinned(self.t)
        cdf = torch.nn.functional.pad(torch.cumulative_trapezoid(others, self.t), (1, 0))[:, points]
        mean_stderr, std_stderr = fit_errors(fit, self.t[points], cdf)
        fit = replace(fit, mean_stderr=mean_stderr, std_stderr=std_stderr)
        return table, fit, band_of(self.t[points], others[:, points])

    def _over_t(self, profile: VarianceProfile) -> tuple[Tensor, Tensor | None]:
        """The curve over t (T,), and what it might have been on other data (R, T)."""
        if profile not in self._curves:
            # Each is treated as if it had been measured itself; its own blocks are not needed.
            alone = replace(profile, ess=None, without=None)
            rows = resampled(profile, self.resamples, self.seed) if self.resamples else None
            profiles = [alone, *([] if rows is None else [replace(alone, mean=row) for row in rows])]
            first, *others = (
                curve_over_t(each, self.path, self.prediction, self.t).mean for each in profiles
            )
            self._curves[profile] = first, torch.stack(others) if others else None
        return self._curves[profile]

    def _pdf(self, curve: Tensor, rule: Rule) -> Tensor:
        """The density of curves (..., T); NaN where a curve is zero everywhere."""
        values = curve if rule == "paper" else self.target.pdf(self.t) * curve.sqrt()
        area = torch.trapezoid(values, self.t)[..., None]
        return (1 - self.floor) * values / area + self.floor / (self.t[-1] - self.t[0])


def _collapsed(estimate: VarianceProfile | None, path: Interpolant, density: Density) -> Collapsed | None:
    start = None if estimate is None else collapse(estimate)
    if start is None:
        return None
    begin = float(path.time(torch.tensor(start, dtype=torch.float64)).clamp(density.low, density.high))
    return Collapsed(begin, density.high, density.mass(begin, density.high))
