"""What a density can be designed from, and which of its curves a rule takes."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike, fspath
from typing import Literal, get_args

from flowtempo.errors import UserError
from flowtempo.files import read_json
from flowtempo.interpolants import Interpolant, Linear, interpolant
from flowtempo.predictions import Prediction, check_prediction
from flowtempo.variance import Bracket, VarianceProfile
from flowtempo.variance.probe import GRADIENTS, LOSSES, Probe
from flowtempo.variance.profile import POSTERIOR, Quantity

Rule = Literal["paper", "importance", "neyman"]
Edge = Literal["upper", "lower"]
Source = Bracket | VarianceProfile | Probe

TAKES: dict[Rule, Quantity] = {
    "paper": "gradient_variance",
    "importance": "gradient_second_moment",
    "neyman": "gradient_variance",
}
"""The measured quantity of each rule; a posterior variance stands in for any of them."""

_KINDS: dict[str, type[Bracket] | type[VarianceProfile] | type[Probe]] = {
    "bracket": Bracket,
    "profile": VarianceProfile,
    "probe": Probe,
}


def load_source(path: str | PathLike[str]) -> Source:
    """Read a bracket (`flowtempo measure`), a probe (`flowtempo probe`) or a single profile.

    Raises:
        UserError: If the file is missing, not sound, or of another kind.
    """
    name = fspath(path)
    content = read_json(name)
    kind = content.get("kind") if isinstance(content, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        found = f"is a {kind}" if isinstance(kind, str) else "has no kind"
        raise UserError(f"{name}: {found}: a density is designed from a {', a '.join(_KINDS)}")
    return _KINDS[kind].load(name)


@dataclass(frozen=True)
class Choice:
    """Which part of a source is asked for.

    Attributes:
        edge: Edge of a bracket; None for the upper one, and for other sources.
        by_class: Whether the bracket with the label known is meant.
        group: A probe's group of parameters; None for the whole model.
    """

    edge: Edge | None = None
    by_class: bool = False
    group: str | None = None

    def of(self, source: Source) -> Choice:
        """This choice with defaults filled in.

        Raises:
            UserError: If a part is unknown, or the source has no such part.
        """
        if self.edge is not None and self.edge not in get_args(Edge):
            raise UserError(f"unknown edge {self.edge!r}: use one of {', '.join(get_args(Edge))}")
        if isinstance(source, Bracket):
            if self.group is not None:
                raise UserError(
                    f"group = {self.group} has no effect on a bracket: give a probe, or leave it out"
                )
            if self.by_class and source.by_class is None:
                raise UserError(
                    "the bracket has no class-conditional part: measure with labels, or leave by_class out"
                )
            return Choice(self.edge or "upper", self.by_class)
        kind = "a probe" if isinstance(source, Probe) else "a single profile"
        for name, value in (("edge", self.edge), ("by_class", self.by_class or None)):
            if value is not None:
                raise UserError(f"{name} = {value} has no effect on {kind}: give a bracket, or leave it out")
        if self.group is not None:
            if not isinstance(source, Probe):
                raise UserError(
                    f"group = {self.group} has no effect on {kind}: give a probe, or leave it out"
                )
            if self.group not in source.groups:
                known = ", ".join(source.groups) or "none, the probe was made without groups"
                raise UserError(f"unknown group {self.group!r}; known: {known}")
        return self


def rules_for(source: Source) -> tuple[Rule, ...]:
    """The rules that can be designed from a source."""
    known: tuple[Rule, ...] = get_args(Rule)
    if not isinstance(source, VarianceProfile) or source.quantity in POSTERIOR:
        return known
    return tuple(rule for rule in known if TAKES[rule] == source.quantity)


def curve_for(source: Source, rule: Rule, choice: Choice) -> VarianceProfile:
    """The curve of a source that a rule takes.

    Args:
        source: The source.
        rule: The rule.
        choice: The part, as `Choice.of` gives it.

    Raises:
        UserError: If a single profile does not fit the rule.
    """
    if isinstance(source, Bracket):
        part = source.by_class if choice.by_class and source.by_class is not None else source
        return part.upper if choice.edge == "upper" else part.lower
    if isinstance(source, Probe):
        curves = source.profiles if choice.group is None else source.groups[choice.group]
        return curves[TAKES[rule]]
    if source.quantity in LOSSES:
        raise UserError(
            f"no density is designed from a {source.quantity}: the size of a loss is not the variance of its"
            " gradient, and the two can differ in shape; take the gradients of `flowtempo probe`"
        )
    if source.quantity in GRADIENTS and TAKES[rule] != source.quantity:
        fits = ", ".join(rules_for(source)) or "no rule"
        raise UserError(
            f"rule {rule} takes the {TAKES[rule]}, but this is a {source.quantity} ({fits} takes it)"
        )
    return source


def collapsing(source: Source, choice: Choice) -> VarianceProfile | None:
    """The posterior estimate that may have collapsed in what a design is made from, if there is one."""
    if isinstance(source, Bracket):
        part = source.by_class if choice.by_class and source.by_class is not None else source
        return part.lower
    return source if isinstance(source, VarianceProfile) else None


def setting(
    profile: VarianceProfile, path: Interpolant | None, prediction: Prediction | None
) -> tuple[Interpolant, Prediction]:
    """The interpolant and prediction of a design: those asked for, those measured on, or linear and velocity.

    Raises:
        UserError: If a model's quantity is asked for under another interpolant or prediction than its own.
    """
    if prediction is not None:
        check_prediction(prediction)
    if profile.quantity in POSTERIOR:
        return path or Linear(), prediction or "velocity"
    own_path, own_prediction = profile.model.get("interpolant"), profile.model.get("prediction")
    if not isinstance(own_path, str) or not isinstance(own_prediction, str):
        raise UserError(
            f"the {profile.quantity} does not say which interpolant and prediction it was measured on: "
            "'interpolant' and 'prediction' are missing in its 'model'"
        )
    wanted = own_path if path is None else str(path), prediction or own_prediction
    if wanted != (own_path, own_prediction):
        raise UserError(
            f"measured for {own_prediction} on {own_path}, but {wanted[1]} on {wanted[0]} is asked "
            "for: gradients hold for their own only; leave both out, or probe such a model"
        )
    check_prediction(own_prediction)
    chosen: Prediction = own_prediction  # type: ignore[assignment]  # checked just above
    return path or interpolant(own_path), chosen
