"""What is exported: a density, whether it keeps the objective by weights, and what it was designed for."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike, fspath

from flowtempo.densities import Density, Tabulated, parse
from flowtempo.design import Design
from flowtempo.errors import UserError
from flowtempo.files import read_json
from flowtempo.interpolants import Interpolant
from flowtempo.interpolants import interpolant as interpolant_named
from flowtempo.predictions import Prediction
from flowtempo.timesteps import Proposal, Spacing


@dataclass(frozen=True)
class Subject:
    """A density to export.

    Attributes:
        name: As it was given: a path, or the density's text form.
        density: Where times are drawn.
        target: What the objective is averaged over, if importance weights keep it; None if the density
            itself is the objective's.
        interpolant: The path that it was designed for; None if it says nothing.
        prediction: The network's target that it was designed for; None if it says nothing.
        rule: The design's rule, for messages; None if there is none.
    """

    name: str
    density: Density
    target: Density | None = None
    interpolant: Interpolant | None = None
    prediction: Prediction | None = None
    rule: str | None = None

    def proposal(self, spacing: Spacing = "independent") -> Proposal:
        """How to draw from it, with the weights that keep the objective if it is kept."""
        if self.target is None:
            return Proposal(self.density, spacing=spacing)
        return Proposal(self.target, self.density, spacing)

    def python(self) -> str:
        """The Python expression that makes its proposal; Neyman's rule is for stratified draws."""
        spacing = ", 'stratified'" if self.rule == "neyman" else ""
        return f"load_proposal({self.name!r}{spacing})"

    def need_density_only(self, trainer: str, instead: str) -> None:
        """Refuse a density that needs weights where there is no place for them.

        Raises:
            UserError: Names the trainer and says what to do instead.
        """
        if self.target is not None:
            raise UserError(
                f"{self.name} keeps the objective by importance weights (rule {self.rule}), which {trainer}"
                f" cannot express: {instead}"
            )

    def need(self, trainer: str, paths: tuple[type[Interpolant], ...], predictions: tuple[str, ...]) -> None:
        """Refuse a path or a prediction that a trainer does not have.

        Args:
            trainer: Its name, for the message.
            paths: The paths it has.
            predictions: The predictions it has.

        Raises:
            UserError: Names what is missing.
        """
        if self.interpolant is not None and not isinstance(self.interpolant, paths):
            known = ", ".join(path.name for path in paths)
            raise UserError(
                f"{self.name} was designed on the interpolant {self.interpolant}, which {trainer} does not"
                f" have ({known}): design again with --interpolant {paths[0].name}"
            )
        if self.prediction is not None and self.prediction not in predictions:
            raise UserError(
                f"{self.name} was designed for the prediction {self.prediction}, which {trainer} does not"
                f" have ({', '.join(predictions)}): design again with --prediction {predictions[0]}"
            )


def read_subject(what: str | PathLike[str]) -> Subject:
    """Read what is to be exported.

    Args:
        what: `density.json` as `flowtempo design` writes it, a JSON file with a table, or a text form such as
            `logit_normal(-0.75, 1)`.

    Raises:
        UserError: If it is none of these.
    """
    name = fspath(what)
    if not name.strip().endswith(".json"):
        return Subject(name, parse(name))
    name = name.strip()
    content = read_json(name)
    if not (isinstance(content, dict) and "rule" in content):
        return Subject(name, Tabulated.load(name))
    design = Design.load(name)
    return Subject(
        name,
        design.density,
        None if design.moves_objective else design.target,
        interpolant_named(design.interpolant),
        design.prediction,
        design.rule,
    )


def load_proposal(what: str | PathLike[str], spacing: Spacing = "independent") -> Proposal:
    """Read a density and how to draw from it; a design that keeps the objective comes with its weights.

    Args:
        what: As for `read_subject`.
        spacing: `independent`, or `stratified` over the batch of all processes.

    Raises:
        UserError: If it cannot be read, or the spacing is unknown.
    """
    return read_subject(what).proposal(spacing)
