"""`flowtempo design`: profile.json -> density.json."""

from __future__ import annotations

from pathlib import Path

from flowtempo.cli.console import BANDS, check_distinct, say, table
from flowtempo.densities import LogitNormal, parse
from flowtempo.design import Design, Edge, Rule
from flowtempo.design import design as design_density
from flowtempo.interpolants import interpolant as interpolant_named
from flowtempo.predictions import Prediction
from flowtempo.training import TrainConfig
from flowtempo.variance import Bracket

EXAMPLES = """
  flowtempo design profile.json
  flowtempo design profile.json --rule neyman --output kept.json --plot kept.png
  flowtempo design profile.json --interpolant trigonometric --edge lower
"""


def design(
    profile: str,
    output: str = "density.json",
    plot: str | None = None,
    rule: Rule = "paper",
    edge: Edge = "upper",
    interpolant: str = "linear",
    prediction: Prediction = "velocity",
    floor: float = 0.05,
    target: str | None = None,
    low: float | None = None,
    high: float | None = None,
) -> None:
    """Turn a measured profile into a timestep density.

    Args:
        profile: What `flowtempo measure` wrote.
        output: Where the density goes.
        plot: Also draw it into this PNG.
        rule: `paper` is proportional to the target variance and moves the objective; `importance`
            (independent draws) and `neyman` (stratified draws) keep it.
        edge: Which edge of the bracket to design from.
        interpolant: linear, trigonometric or variance_preserving.
        prediction: What the network's output stands for.
        floor: Share of the uniform density that is mixed in.
        target: For `importance` and `neyman`: the objective's density; null is uniform.
        low: Lowest time.
        high: Highest time; needed below 1 where the variance is infinite at t = 1: the score's, and the
            velocity's on the variance-preserving path.
    """
    check_distinct(profile=profile, output=output, plot=plot)
    loaded = Bracket.load(profile)
    path = interpolant_named(interpolant)
    bounds = {key: value for key, value in (("low", low), ("high", high)) if value is not None}
    designed = design_density(
        loaded,
        path,
        rule=rule,
        edge=edge,
        floor=floor,
        prediction=prediction,
        target=None if target is None else parse(target),
        **bounds,
    )
    designed.save(output)
    print_design(designed)
    say(f"density: {output}")
    if plot is not None:
        from flowtempo.report import save_density_png

        save_density_png(Path(output), Path(plot))
        say(f"plot: {plot}")
    words = [f"--timesteps.{'target' if designed.moves_objective else 'density'} {output}"]
    defaults = TrainConfig().objective
    if rule == "neyman":
        words.append("--timesteps.spacing stratified")
    if target is not None:
        words.append(f"--timesteps.target '{target}'")
    if interpolant != defaults.interpolant:
        words.append(f"--objective.interpolant {interpolant}")
    if prediction != defaults.prediction:
        words.append(f"--objective.prediction {prediction}")
    say(f"next: flowtempo train RECIPE --run runs/designed {' '.join(words)}")


def print_design(designed: Design) -> None:
    """Print the rule, the mass per tenth of t, and the nearest logit-normal with its distance."""
    effect = "moves the objective" if designed.moves_objective else f"keeps the objective ({designed.target})"
    source = "the profile" if designed.edge is None else f"the {designed.edge} edge"
    say(f"designed from {source} for {designed.prediction} on the {designed.interpolant} interpolant")
    say(f"rule {designed.rule}, floor {designed.floor:g}: {effect}")
    density = designed.density
    fit = LogitNormal(designed.fit.mean, designed.fit.std)
    tenths = [(k / 10, (k + 1) / 10) for k in range(10)]
    table(
        "% of the mass per band of t (0 is noise, 1 is data)",
        ["", *BANDS],
        [
            [name, *(f"{100 * drawn.mass(lo, hi):.1f}" for lo, hi in tenths)]
            for name, drawn in (("designed", density), ("nearest", fit))
        ],
    )
    say(
        f"nearest logit-normal: mean {designed.fit.mean:.3f}, std {designed.fit.std:.3f} "
        f"({designed.fit.distance:.4f} away in t); mean {-designed.fit.mean:.3f} where t = 1 is noise"
    )
