"""Densities that change over a run, as a function of the share of its steps that is done."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, final

from flowtempo.densities import FORMS as DENSITY_FORMS
from flowtempo.densities import Density, Mixture, Normal, Uniform
from flowtempo.errors import UserError
from flowtempo.forms import Forms, number
from flowtempo.timesteps.proposal import Proposal, Spacing


class Curriculum(ABC):
    """A density for each part of a run."""

    name: ClassVar[str]
    steady: ClassVar[bool]
    """Whether many steps in a row draw from one density."""

    @abstractmethod
    def density(self, done: float) -> Density:
        """The density when a share `done` of the steps is done, 0 <= done < 1."""

    @abstractmethod
    def __str__(self) -> str: ...


@final
@dataclass(frozen=True)
class Switch(Curriculum):
    """One density first, another from a share of the steps on, such as tilted to noise and then uniform.

    Attributes:
        first: Density at the beginning.
        second: Density afterwards.
        at: Share of the steps after which it changes, above 0 and below 1.

    Raises:
        UserError: If the share is out of range, or both densities are the same.
    """

    name: ClassVar[str] = "switch"
    steady: ClassVar[bool] = True

    first: Density
    second: Density
    at: float

    def __post_init__(self) -> None:
        if not 0 < self.at < 1:
            raise UserError(f"switch: at = {self.at} must be above 0 and below 1, a share of the steps")
        if self.first == self.second:
            raise UserError(f"switch: both densities are {self.first}: a switch has no effect")

    def density(self, done: float) -> Density:
        """The first or the second."""
        return self.first if done < self.at else self.second

    def __str__(self) -> str:
        return f"switch({self.first}, {self.second}, {number(self.at)})"


@final
@dataclass(frozen=True)
class Clts(Curriculum):
    """From uniform times to times around one that matters: lam N(mean, std) + (1 - lam) U, lam rising.

    The curriculum of Xu et al. (arXiv 2404.07946), for which no public code of theirs was found; the width is
    not verified. Here lam rises linearly from 0 to `most` over a share of the steps and stays there, so that
    no time is left out.

    Attributes:
        mean: Centre in t; step 300 of 1000 there is t = 0.7.
        std: Width in t, above 0.
        over: Share of the steps over which lam rises, above 0 and at most 1.
        most: Final lam, above 0 and at most 0.99.

    Raises:
        UserError: If a number is out of range.
    """

    name: ClassVar[str] = "clts"
    steady: ClassVar[bool] = False

    mean: float = 0.7
    std: float = 0.2
    over: float = 0.5
    most: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.over <= 1:
            raise UserError(f"clts: over = {self.over} must be above 0 and at most 1, a share of the steps")
        if not 0 < self.most <= 0.99:
            raise UserError(f"clts: most = {self.most} must be above 0 and at most 0.99")
        Normal(self.mean, self.std)

    def density(self, done: float) -> Density:
        """The mixture at this share of the steps."""
        share = self.most * min(1.0, done / self.over)
        return Mixture(Normal(self.mean, self.std), 1 - share) if share > 0 else Uniform()

    def __str__(self) -> str:
        numbers = ", ".join(number(value) for value in (self.mean, self.std, self.over, self.most))
        return f"clts({numbers})"


CURRICULA: dict[str, Callable[..., Curriculum]] = {"switch": Switch, "clts": Clts}
"""Names that `curriculum` knows and what they build."""

FORMS: Forms[Curriculum] = Forms(
    "curriculum",
    CURRICULA,
    "'switch(logit_normal(-0.75, 1), uniform, 0.3)'",
    {"first": DENSITY_FORMS.read, "second": DENSITY_FORMS.read},
)


def curriculum(text: str) -> Curriculum:
    """Read a curriculum from its text form; `curriculum(str(c)) == c`.

    Raises:
        UserError: If the text has another form, a name is unknown, or an argument is wrong.
    """
    return FORMS.parse(text)


class CurriculumProposal:
    """A proposal for each step of a run of known length.

    Args:
        target: What the objective is averaged over, unless it moves.
        curriculum: The densities.
        steps: Length of the run.
        spacing: As in `Proposal`.
        moves_objective: Draw without importance weights: the objective follows the curriculum.

    Raises:
        UserError: If the spacing is unknown, or one of the densities leaves out times that the target needs.
    """

    def __init__(
        self,
        target: Density,
        curriculum: Curriculum,
        steps: int,
        spacing: Spacing = "independent",
        *,
        moves_objective: bool = True,
    ) -> None:
        self.target = target
        self.curriculum = curriculum
        self.steps = steps
        self.spacing = spacing
        self.moves_objective = moves_objective
        for step in (steps - 1, 0):
            self._proposal = self.at(step)

    def at(self, step: int) -> Proposal:
        """The proposal of 0-based step `step`."""
        density = self.curriculum.density(min(step, self.steps - 1) / self.steps)
        steady = self.curriculum.steady
        if self.moves_objective:
            self._proposal = Proposal(density, None, self.spacing, steady=steady)
        else:
            self._proposal = Proposal(self.target, density, self.spacing, steady=steady)
        return self._proposal

    def describe(self) -> dict[str, Any]:
        """`Proposal.describe` of the last step asked for, with "curriculum" and "moves_objective"."""
        return {
            **self._proposal.describe(),
            "curriculum": str(self.curriculum),
            "moves_objective": self.moves_objective,
        }
