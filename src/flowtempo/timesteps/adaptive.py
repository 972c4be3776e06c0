"""Proposals that follow what training measures, as a function of the state and the step.

An adaptive proposal draws from the target reweighted by equal parts of its probability: within part b of B
the density is the target's times h_b. Importance sampling has the least variance with h_b in proportion to
the root of the second moment of what is averaged, given that t lies in the part (of the loss: Nichol and
Dhariwal, "Improved DDPM", arXiv 2102.09672, section 4; of the gradient, which is what training averages:
VR-Sampling).

A batch is prepared while the one before is used, so what step k measured is first used for step k + `DELAY`.
What is not yet in use belongs to the state: a resumed run draws the same times.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from flowtempo.densities import Density
from flowtempo.errors import UserError
from flowtempo.forms import Forms, number
from flowtempo.timesteps.proposal import Proposal, Spacing
from flowtempo.timesteps.reweighted import Reweighted

DELAY = 2
"""Steps from measuring to drawing."""


@dataclass(frozen=True)
class Adaptation(ABC):
    """What an adaptive proposal follows, and how fast.

    Attributes:
        bins: B, the parts of equal probability under the target.
        floor: Share of the target itself in the density, above 0 and at most 1: weights are at most
            1 / floor.
        decay: What old values count after being told something new, at least 0 and below 1.

    Raises:
        UserError: If a number is out of range.
    """

    name: ClassVar[str]
    quantity: ClassVar[str]
    """What it is told: "loss" after each step, or "gradient" after each probe."""

    bins: int
    floor: float
    decay: float

    def __post_init__(self) -> None:
        if not 2 <= self.bins <= 10_000 or self.bins != int(self.bins):
            raise UserError(f"{self.name}: bins = {number(self.bins)} must be a whole number, 2 to 10000")
        object.__setattr__(self, "bins", int(self.bins))
        if not 0 < self.floor <= 1:
            raise UserError(f"{self.name}: floor = {self.floor} must be above 0 and at most 1")
        if not 0 <= self.decay < 1:
            raise UserError(f"{self.name}: decay = {self.decay} must be at least 0 and below 1")

    def follow(self, state: Tensor, told: Tensor) -> Tensor:
        """The state after being told something new: old counts and sums decay, new ones are added.

        Args:
            state: (2, B) float64, counts and sums.
            told: The same of a step or a probe.
        """
        return self.decay * state + told

    @abstractmethod
    def second_moment(self, state: Tensor) -> Tensor:
        """The second moment in each part, (B,) float64, at any scale; zeros if nothing is known."""

    def __str__(self) -> str:
        return f"{self.name}({', '.join(number(value) for value in vars(self).values())})"


@final
@dataclass(frozen=True)
class LossSecondMoment(Adaptation):
    """Times in proportion to the root of the mean squared loss, from the losses of training.

    Losses count with the objective's weighting and without importance weights (Nichol and Dhariwal, arXiv
    2102.09672, section 4, with parts in place of steps and a prior, so that it works from the first step).

    Attributes:
        bins: Parts of equal probability under the target.
        floor: Share of the target itself, above 0 and at most 1.
        decay: What old losses count after one more step, at least 0 and below 1.
        prior: Losses of average size that each part is taken to have seen, above 0.
    """

    name: ClassVar[str] = "loss_second_moment"
    quantity: ClassVar[str] = "loss"

    bins: int = 32
    floor: float = 0.1
    decay: float = 0.998
    prior: float = 16.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.prior < math.inf:
            raise UserError(f"{self.name}: prior = {self.prior} must be a finite number above 0")

    def second_moment(self, state: Tensor) -> Tensor:
        """Means with the prior's losses at the mean over the parts that have been seen."""
        counts, sums = state
        _, overall = _means(state)
        moment: Tensor = (sums + self.prior * overall) / (counts + self.prior)
        return moment


@final
@dataclass(frozen=True)
class GradientSecondMoment(Adaptation):
    """Times in proportion to the root of the measured gradient's second moment: VR-Sampling online.

    It is told by the probes of training (`train --probe_every`), and until the first of them draws from the
    target. With stratified spacing the variance given t takes the place of the second moment (Neyman).

    Attributes:
        bins: Parts of equal probability under the target.
        floor: Share of the target itself, above 0 and at most 1.
        decay: What older probes count in the mean, at least 0 and below 1: 0 takes the last alone.
    """

    name: ClassVar[str] = "gradient_second_moment"
    quantity: ClassVar[str] = "gradient"

    bins: int = 32
    floor: float = 0.1
    decay: float = 0.0

    def second_moment(self, state: Tensor) -> Tensor:
        """Means over the probes; a part that no probe speaks of has the mean of the others."""
        means, overall = _means(state)
        return torch.where(state[0] > 0, means, overall)


ADAPTATIONS: dict[str, Callable[..., Adaptation]] = {
    kind.name: kind for kind in (LossSecondMoment, GradientSecondMoment)
}
"""Names that `adaptation` knows and what they build."""

FORMS: Forms[Adaptation] = Forms(
    "adaptation", ADAPTATIONS, "'loss_second_moment' or 'loss_second_moment(64, 0.2)'"
)


def adaptation(text: str) -> Adaptation:
    """Read an adaptation from its text form; `adaptation(str(a)) == a`.

    Raises:
        UserError: If the text has another form, a name is unknown, or an argument is wrong.
    """
    return FORMS.parse(text)


def _means(state: Tensor) -> tuple[Tensor, Tensor]:
    """The mean square in each part, 0 where nothing was seen, and the mean over the parts that were."""
    counts, sums = state
    seen = counts > 0
    means = torch.where(seen, sums / torch.where(seen, counts, 1), 0)
    return means, means.sum() / seen.sum().clamp_min(1)


class AdaptiveProposal:
    """A proposal for each step, from what the steps before have measured.

    Args:
        target: What the objective is averaged over.
        adaptation: What it follows.
        spacing: As in `Proposal`.
        moves_objective: Draw without importance weights: the objective becomes an average over the density.

    Raises:
        UserError: If the spacing is unknown.
    """

    def __init__(
        self,
        target: Density,
        adaptation: Adaptation,
        spacing: Spacing = "independent",
        *,
        moves_objective: bool = False,
    ) -> None:
        self.target = target
        self.adaptation = adaptation
        self.spacing = spacing
        self.moves_objective = moves_objective
        self._state = torch.zeros(2, adaptation.bins, dtype=torch.float64)
        self._pending: list[tuple[int, Tensor]] = []
        self._proposal: Proposal | None = None
        Proposal(target, None, spacing)

    def moments(self, t: Tensor, values: Tensor) -> Tensor:
        """Counts and sums of squares in each part, to be added over processes and given to `update`.

        Nothing here waits for the device. Values that are not finite are left out.

        Args:
            t: (n,) times.
            values: (n,) losses or norms of gradients.

        Returns:
            (2, B) float64 on the device of `values`.
        """
        bins = self.adaptation.bins
        part = (self.target.cdf(t) * bins).long().clamp(0, bins - 1).to(values.device)
        squares = values.detach().double().square()
        finite = squares.isfinite()
        told = torch.stack([finite.double(), torch.where(finite, squares, 0)])
        return torch.zeros(2, bins, dtype=torch.float64, device=values.device).index_add_(1, part, told)

    def update(self, step: int, told: Tensor) -> None:
        """Tell what 0-based step `step` measured, or a probe after it.

        Args:
            step: Steps come in order.
            told: (2, B), what `moments` gave, the same on every process.

        Raises:
            ValueError: If the shape differs, or the step is earlier than the last.
        """
        if told.shape != self._state.shape:
            raise ValueError(f"expected counts and sums {tuple(self._state.shape)}, got {tuple(told.shape)}")
        if self._pending and step < self._pending[-1][0]:
            raise ValueError(f"step {step} comes after step {self._pending[-1][0]}")
        self._pending.append((step, told))

    def at(self, step: int) -> Proposal:
        """The proposal of 0-based step `step`; steps come in order."""
        while self._pending and self._pending[0][0] <= step - DELAY:
            told = self._pending.pop(0)[1].double().cpu()
            # Sums of squares may be infinite although every square is finite.
            self._state = self.adaptation.follow(self._state, torch.where(told.isfinite(), told, 0))
            self._proposal = None
        if self._proposal is None:
            self._proposal = self._build()
        return self._proposal

    def _build(self) -> Proposal:
        moment = self.adaptation.second_moment(self._state)
        root = moment.sqrt()
        total = float(root.sum())
        if not 0 < total < math.inf:
            return Proposal(self.target, None, self.spacing)
        floor = self.adaptation.floor
        shares = (1 - floor) * root / total + floor / len(root)
        density = Reweighted(self.target, shares, f"{self.adaptation} of {self.target}")
        if self.moves_objective:
            return Proposal(density, None, self.spacing, steady=False)
        return Proposal(self.target, density, self.spacing, steady=False)

    def describe(self) -> dict[str, Any]:
        """`Proposal.describe` of the last step asked for, with "adaptive" and "moves_objective"."""
        proposal = self._proposal or self._build()
        return {
            **proposal.describe(),
            "adaptive": str(self.adaptation),
            "moves_objective": self.moves_objective,
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything that `load_state_dict` needs: tensors and whole numbers."""
        return {
            "state": self._state.clone(),
            "pending": [{"step": step, "told": told.double().cpu()} for step, told in self._pending],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`.

        Raises:
            ValueError: It is not what `state_dict` gave for the same adaptation.
            KeyError: A part of it is missing.
        """
        loaded = state["state"]
        pending = [(int(each["step"]), each["told"]) for each in state["pending"]]
        for told in (loaded, *(told for _, told in pending)):
            if told.shape != self._state.shape or told.dtype != torch.float64:
                raise ValueError(f"expected {tuple(self._state.shape)} float64, got {tuple(told.shape)}")
        self._state = loaded.clone()
        self._pending = pending
        self._proposal = None
