"""`flowtempo design`: profile.json or probe.json -> density.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from flowtempo.cli.console import BANDS, check_paths, say, say_next, table
from flowtempo.densities import LogitNormal, parse
from flowtempo.design import Design, Edge, LogitNormalFit, Rule, load_source
from flowtempo.design import design as design_density
from flowtempo.interpolants import interpolant as interpolant_named
from flowtempo.predictions import Prediction
from flowtempo.training import TrainConfig
from flowtempo.variance.profile import POSTERIOR

EXAMPLES = """
  flowtempo design profile.json
  flowtempo design profile.json --rule neyman --output kept.json --plot kept.png
  flowtempo design profile.json --interpolant trigonometric --edge lower
  flowtempo design profile.json --by_class
  flowtempo design probe.json --rule importance
  flowtempo design probe.json --rule neyman --group blocks.0
"""


def design(
    profile: str,
    output: str = "density.json",
    plot: str | None = None,
    rule: Rule = "paper",
    edge: Edge | None = None,
    by_class: bool = False,
    group: str | None = None,
    interpolant: str | None = None,
    prediction: Prediction | None = None,
    floor: float = 0.05,
    target: str | None = None,
    low: float = 0.0,
    high: float = 1.0,
) -> None:
    """Turn what was measured into a timestep density.

    Args:
        profile: What `flowtempo measure` or `flowtempo probe` wrote, or a single profile.
        output: Where the density goes.
        plot: Also draw it into this PNG.
        rule: `paper` is proportional to the variance and moves the objective; `importance` (independent
            draws) and `neyman` (stratified draws) keep it.
        edge: Which edge of a bracket to design from; null is upper.
        by_class: Design from the class-conditional part of a bracket, for a model that is given labels.
        group: Design from one group of a probe's parameters; null is the whole model.
        interpolant: linear, trigonometric, variance_preserving or another path, as text; null is the
            probe's own, or linear.
        prediction: What the network's output stands for; null is the probe's own, or velocity.
        floor: Share of the uniform density that is mixed in.
        target: For `importance` and `neyman`: the objective's density; null is uniform.
        low: Lowest time.
        high: Highest time; needed below 1 where the variance is infinite at t = 1: the score's, and the
            velocity's on the variance-preserving path.
    """
    check_paths(profile=profile, output=output, plot=plot)
    designed = design_density(
        load_source(profile),
        None if interpolant is None else interpolant_named(interpolant),
        rule=rule,
        edge=edge,
        by_class=by_class,
        group=group,
        floor=floor,
        prediction=prediction,
        target=None if target is None else parse(target),
        low=low,
        high=high,
    )
    designed.save(output)
    print_design(designed)
    say(f"density: {output}")
    if plot is not None:
        from flowtempo.report import save_density_png

        save_density_png(Path(output), Path(plot))
        say(f"plot: {plot}")
    words = [f"--timesteps.{'target' if designed.moves_objective else 'density'}", output]
    defaults = TrainConfig().objective
    if rule == "neyman":
        words += ["--timesteps.spacing", "stratified"]
    if target is not None:
        words += ["--timesteps.target", target]
    if designed.interpolant != defaults.interpolant:
        words += ["--objective.interpolant", designed.interpolant]
    if designed.prediction != defaults.prediction:
        words += ["--objective.prediction", designed.prediction]
    say_next("train", "RECIPE", "--run", "runs/designed", *words)


def print_design(designed: Design) -> None:
    """Print the rule, the mass per tenth of t, the nearest logit-normals, and what rests on a collapse."""
    effect = "moves the objective" if designed.moves_objective else f"keeps the objective ({designed.target})"
    used_for = f"{designed.prediction} on the {designed.interpolant} interpolant"
    say(f"designed from {_source(designed)} for {used_for}")
    say(f"rule {designed.rule}, floor {designed.floor:g}: {effect}")
    fit = LogitNormal(designed.fit.mean, designed.fit.std)
    tenths = [(k / 10, (k + 1) / 10) for k in range(10)]
    table(
        "% of the mass per band of t (0 is noise, 1 is data)",
        ["", *BANDS],
        [
            [name, *(f"{100 * drawn.mass(lo, hi):.1f}" for lo, hi in tenths)]
            for name, drawn in (("designed", designed.density), ("nearest", fit))
        ],
    )
    fits = {**designed.alternatives, designed.rule: designed.fit}
    table(
        "nearest logit-normal by rule (t = 1 is data; where t = 1 is noise the mean is of the other sign)",
        ["", "mean", "std", "away in t"],
        [[_names(rules, designed.rule), *_numbers(fits[rules[0]])] for rules in _alike(fits)],
    )
    if (line := _collapse_line(designed)) is not None:
        say(line)


def _alike(fits: Mapping[Rule, LogitNormalFit]) -> list[list[Rule]]:
    """Rules in their usual order, those with the same density together: the bracket has no batch variance
    beside the second moment, so that `importance` and `neyman` coincide."""
    groups: dict[LogitNormalFit, list[Rule]] = {}
    for rule in get_args(Rule):
        if rule in fits:
            groups.setdefault(fits[rule], []).append(rule)
    return list(groups.values())


def _names(rules: Sequence[Rule], chosen: str) -> str:
    return ", ".join(f"{rule} (this one)" if rule == chosen else rule for rule in rules)


def _source(designed: Design) -> str:
    if designed.quantity not in POSTERIOR:
        part = "" if designed.group is None else f" of the parameters {designed.group}"
        return f"the measured {designed.quantity.replace('_', ' ')}{part}"
    given = " given the class" if designed.quantity == "class_posterior_variance" else ""
    return f"{'the profile' if designed.edge is None else f'the {designed.edge} edge'}{given}"


def _numbers(fit: LogitNormalFit) -> list[str]:
    mean, std = f"{fit.mean:.3f}", f"{fit.std:.3f}"
    if fit.mean_stderr is not None and fit.std_stderr is not None:
        mean, std = f"{mean} ± {fit.mean_stderr:.3f}", f"{std} ± {fit.std_stderr:.3f}"
    return [mean, std, f"{fit.distance:.4f}"]


def _collapse_line(designed: Design) -> str | None:
    collapsed = designed.collapsed
    if collapsed is None:
        return None
    share = f"{100 * collapsed.mass:.0f}% of the mass lies at t > {collapsed.from_t:.2g}"
    if designed.edge == "upper":
        return (
            f"{share}, where the published estimate has collapsed and only the upper edge speaks; "
            "`flowtempo probe` a model to know more"
        )
    instead = "use the upper edge" if designed.edge == "lower" else "measure a bracket"
    return (
        f"{share}, where the estimate that the density was designed from has collapsed on single data points "
        f"and says nothing; {instead}, or `flowtempo probe` a model"
    )
