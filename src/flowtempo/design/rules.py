"""Rules that turn a variance curve into a density, and the record of a design."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from os import PathLike, fspath
from typing import Any, Literal, get_args

import torch

from flowtempo.densities import Density, Tabulated, Truncated, Uniform, parse
from flowtempo.design.curve import Curve, time_grid, variance_curve
from flowtempo.design.fit import LogitNormalFit, nearest_logit_normal
from flowtempo.errors import UserError
from flowtempo.interpolants import Interpolant
from flowtempo.predictions import PREDICTIONS, Prediction
from flowtempo.variance import Bracket, VarianceProfile, document

Rule = Literal["paper", "importance", "neyman"]
Edge = Literal["upper", "lower"]


@dataclass(frozen=True, eq=False)
class Design:
    """A density, what it was made from, and how to use it.

    Attributes:
        density: The table, the uniform floor included.
        target: The density that the objective is averaged over: `density` itself under the rule `paper`
            (the objective moves), another under `importance` and `neyman` (the objective is kept by weights).
        rule: How the curve became a density.
        floor: Share of the uniform density in it.
        interpolant: Name of the path.
        prediction: The network's target.
        edge: Edge of the bracket, or None for a single profile.
        fit: The nearest logit-normal.
        profile_hash: SHA-256 of the profile's content.
    """

    density: Tabulated
    target: Density
    rule: Rule
    floor: float
    interpolant: str
    prediction: Prediction
    edge: Edge | None
    fit: LogitNormalFit
    profile_hash: str

    @property
    def moves_objective(self) -> bool:
        """Whether the density is the target (`paper`) or only a proposal."""
        return self.rule == "paper"

    def save(self, path: str | PathLike[str]) -> None:
        """Write `density.json`.

        Raises:
            UserError: If the file cannot be written.
        """
        content: dict[str, Any] = {
            "table": {"t": self.density.grid.tolist(), "pdf": self.density.values.tolist()},
            "fit": asdict(self.fit),
            "rule": self.rule,
            "target": None if self.moves_objective else str(self.target),
            "floor": self.floor,
            "interpolant": self.interpolant,
            "prediction": self.prediction,
            "edge": self.edge,
            "profile_hash": self.profile_hash,
        }
        document.save(path, "density", content)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Design:
        """Read what `save` wrote.

        Raises:
            UserError: If the file is missing or not a sound design.
        """
        name = fspath(path)
        reader = document.Reader(document.load(path, "density"), name)
        fit = document.Reader(reader.mapping("fit"), f"{name}: fit")
        table = document.Reader(reader.mapping("table"), f"{name}: table")
        density = Tabulated(table.numbers("t"), table.numbers("pdf"), path=name)
        target = reader.value("target")
        loaded = cls(
            density,
            density if target is None else parse(str(target)),
            _choice(reader, name, "rule", get_args(Rule)),
            reader.number("floor"),
            reader.text("interpolant"),
            _choice(reader, name, "prediction", PREDICTIONS),
            _choice(reader, name, "edge", (*get_args(Edge), None)),
            LogitNormalFit(fit.number("mean"), fit.number("std"), fit.number("distance")),
            reader.text("profile_hash"),
        )
        for each in (reader, fit, table):
            each.end()
        return loaded


def design(
    profile: Bracket | VarianceProfile,
    interpolant: Interpolant,
    *,
    rule: Rule = "paper",
    edge: Edge | None = None,
    floor: float = 0.05,
    prediction: Prediction = "velocity",
    target: Density | None = None,
    low: float = 0.0,
    high: float = 1.0,
) -> Design:
    """Turn a profile into a density.

    With V(t) the variance of the training target:

    - `paper`: density proportional to V. It minimises the largest V / density (authors' reply to the reviews
      of VR-Sampling) and becomes the target, so the objective moves.
    - `importance`: proportional to target x sqrt(V), which minimises the variance of the weighted loss for
      independent draws; the second moment of a fitted model's error is V. The objective is kept.
    - `neyman`: proportional to target x sqrt(V) with V read as the variance given t, which is optimal for
      stratified draws (Neyman allocation; Cochran, "Sampling Techniques", chapter 5). A target-variance
      curve is both, so the two rules differ only once gradients are measured.

    Args:
        profile: A bracket or one profile.
        interpolant: The path.
        rule: One of the three.
        edge: Edge of a bracket to design from, "upper" by default; one profile has none.
        floor: Share of the uniform density on [low, high] that is mixed in, 0 to 1.
        prediction: The network's target.
        target: What the objective is averaged over, uniform by default and cut to [low, high]; not for
            `paper`, which defines it.
        low: Lowest time.
        high: Highest time. The velocity of the variance-preserving path is infinite at t = 1 and its
            variance not integrable: end below, for example at 0.999.

    Raises:
        UserError: If an argument is out of range or without effect, or the curve is infinite in [low, high].
    """
    if rule not in get_args(Rule):
        raise UserError(f"unknown rule {rule!r}: use one of {', '.join(get_args(Rule))}")
    if edge is not None and edge not in get_args(Edge):
        raise UserError(f"unknown edge {edge!r}: use one of {', '.join(get_args(Edge))}")
    if not 0 <= floor <= 1:
        raise UserError(f"floor = {floor} is a share: use 0 to 1")
    if not 0 <= low < high <= 1:
        raise UserError(f"low = {low} and high = {high}: use 0 <= low < high <= 1")
    if rule == "paper" and target is not None:
        raise UserError(
            "target has no effect with rule paper, which makes the density the target: leave it out"
        )
    if isinstance(profile, Bracket):
        edge = edge or "upper"
        profile = profile.upper if edge == "upper" else profile.lower
    elif edge is not None:
        raise UserError(f"edge = {edge} has no effect on a single profile: give a bracket, or leave it out")
    target = target or Uniform()
    if (low, high) != (0.0, 1.0) and rule != "paper":
        target = Truncated(target, low, high)
    curve = variance_curve(profile, interpolant, prediction, time_grid(low, high))
    table = _tabulate(curve, rule, target, floor, interpolant.name)
    return Design(
        table,
        table if rule == "paper" else target,
        rule,
        floor,
        interpolant.name,
        prediction,
        edge,
        nearest_logit_normal(table),
        profile.digest,
    )


def _tabulate(curve: Curve, rule: Rule, target: Density, floor: float, name: str) -> Tabulated:
    infinite = ~torch.isfinite(curve.mean)
    if bool(infinite.any()):
        raise UserError(
            f"the target variance of {name} is infinite at t = {float(curve.t[infinite][0]):g}: "
            "give low and high that leave it out, for example high = 0.999"
        )
    values = curve.mean if rule == "paper" else target.pdf(curve.t) * curve.mean.sqrt()
    area = torch.trapezoid(values, curve.t)
    if not float(area) > 0:
        raise UserError(
            "the variance curve is zero everywhere in [low, high]: there is nothing to design from"
        )
    width = float(curve.t[-1] - curve.t[0])
    return Tabulated(curve.t, (1 - floor) * values / area + floor / width)


def _choice(reader: document.Reader, name: str, key: str, known: tuple[Any, ...]) -> Any:
    value = reader.value(key)
    if value not in known:
        raise UserError(f"{name}: {key!r} is {value!r}; known: {', '.join(map(str, known))}")
    return value
