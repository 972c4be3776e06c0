"""Proposals: target density, drawing density and spacing of the times of one optimizer step."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np
import torch
from torch import Tensor

from flowtempo.densities import Density
from flowtempo.densities.base import open_interval
from flowtempo.errors import UserError
from flowtempo.randomness import permutation_rows, uniform_rows
from flowtempo.timesteps.drawing import times_and_weights, weights

Spacing = Literal["independent", "stratified"]

_STREAM = "time"
_LEAST, _GREATEST = open_interval(torch.tensor([0.0, 1.0])).tolist()
_BANDS = 10
# Steps that are drawn at a time, and how many times that may be.
_AHEAD, _MOST_AHEAD = 16, 1 << 15
_TESTS: dict[str, Callable[[Tensor], Tensor]] = {
    "t": lambda t: t,
    "t^2": lambda t: t**2,
    "cos(2 pi t)": lambda t: torch.cos(2 * math.pi * t),
}


@dataclass(frozen=True)
class Times:
    """Times of a batch with their importance weights.

    The mean over the batch of weight x loss, divided by the batch size and never by the sum of the weights,
    estimates the target's objective without bias.

    Attributes:
        t: (B,) float32 in the open interval (0, 1).
        weight: (B,) float32, target density over drawing density at t.
    """

    t: Tensor
    weight: Tensor

    def __post_init__(self) -> None:
        if self.t.ndim != 1 or self.t.shape != self.weight.shape:
            raise ValueError(
                f"t and weight must both be (B,), not {tuple(self.t.shape)} and {tuple(self.weight.shape)}"
            )

    def __len__(self) -> int:
        return len(self.t)

    def __getitem__(self, part: slice) -> Times:
        """Return the part of the global batch that belongs to a rank or a micro-step."""
        return Times(self.t[part], self.weight[part])


@dataclass(frozen=True)
class WeightCheck:
    """What a proposal's weights integrate to, by quadrature.

    Attributes:
        mean: E[weight] under the drawing density; 1 when unbiased.
        second_moment: E[weight^2]; its inverse is the share of the batch that an equally weighted batch
            would need.
        integrals: For each test function its weighted mean under the drawing density and its mean under the
            target; equal when unbiased.
    """

    mean: float
    second_moment: float
    integrals: dict[str, tuple[float, float]]

    @property
    def error(self) -> float:
        """Largest deviation from an unbiased estimate."""
        return max(abs(self.mean - 1), *(abs(got - true) for got, true in self.integrals.values()))


class Proposing(Protocol):
    """What gives a proposal for each step of a run: one that stays, or one that changes."""

    def at(self, step: int) -> Proposal:
        """The proposal of 0-based optimizer step `step`; steps come in order."""

    def describe(self) -> dict[str, Any]:
        """What a run's header prints: at least what `Proposal.describe` returns."""


@dataclass(frozen=True)
class Proposal:
    """Where t is drawn, and with which spacing.

    `density=None` draws from the target: the objective is an average over the target and every weight is
    exactly 1. With another density the objective stays the target's, by importance weights, and only the
    variance of its estimate changes.

    Attributes:
        target: What the objective is averaged over.
        density: What t is drawn from; None means the target.
        spacing: "independent", or "stratified": one point in each of B equal strata of probability over the
            global batch (Cochran, "Sampling Techniques", chapter 5), permuted so that a rank or a micro-step
            does not get one end of the axis.
        steady: Whether more steps will draw from the same densities, which then prepares for them.

    Raises:
        UserError: If the spacing is unknown, or the density leaves out times that the target needs.
    """

    target: Density
    density: Density | None = None
    spacing: Spacing = "independent"
    steady: bool = True

    def __post_init__(self) -> None:
        if self.spacing not in get_args(Spacing):
            raise UserError(f"unknown spacing {self.spacing!r}: use one of {', '.join(get_args(Spacing))}")
        for lo, hi in self.density.gaps() if self.density is not None else []:
            missed = self.target.mass(lo, hi)
            if missed > 0:
                raise UserError(
                    f"density {self.density} never draws t in [{lo:g}, {hi:g}], where target {self.target}"
                    f" has {missed:.3g} of its mass: give the density a floor with mixture(..., 0.05)"
                )

    def at(self, step: int) -> Proposal:
        """The proposal of a step: itself, always (see `AdaptiveProposal` and `CurriculumProposal`)."""
        return self

    def draw(self, batch_size: int, *, step: int, seed: int, device: str | torch.device = "cpu") -> Times:
        """Draw the times of the global batch of one optimizer step.

        Every rank draws the same vector and takes its slice. The result depends on the arguments alone.

        Args:
            batch_size: Ranks x micro-steps x samples, at least 1.
            step: Optimizer step.
            seed: The run's seed.
            device: Where the result goes; it is computed on the CPU.

        Raises:
            ValueError: If the batch size is below 1, or step or seed is negative.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size = {batch_size} must be at least 1")
        times = None
        if self.steady and 0 <= step < 1 << 63:
            rows = max(1, min(_AHEAD, _MOST_AHEAD // batch_size))
            block = _ahead(self, batch_size, seed, step // rows, rows)
            # Each is handed out once, so that whoever changes it changes nobody else's.
            times, block[step % rows] = block[step % rows], None
        if times is None:
            times = _drawn(self, batch_size, seed, range(step, step + 1))[0]
        if times.t.device != torch.device(device):
            # Not a copy to wait for.
            t, weight = (part.to(device, non_blocking=True) for part in (times.t, times.weight))
            return Times(t, weight)
        return times

    def check(self, points: int = 1 << 16) -> WeightCheck:
        """Integrate the weights and weighted test functions by the midpoint rule in probability.

        Where a density jumps, the rule is off by up to the largest weight over `points`.
        """
        u = (torch.arange(points, dtype=torch.float64) + 0.5) / points
        drawn, true = (self.density or self.target).draw(u, torch.float64), self.target.draw(u, torch.float64)
        weight = self._weight(drawn)
        return WeightCheck(
            mean=float(weight.mean()),
            second_moment=float((weight**2).mean()),
            integrals={
                name: (float((weight * test(drawn)).mean()), float(test(true).mean()))
                for name, test in _TESTS.items()
            },
        )

    def describe(self) -> dict[str, Any]:
        """Return what a run's header prints.

        Returns:
            "target", "density", "spacing" in text form; "bands", a list of {"low", "high", "target",
            "density"} with the mass of both in ten equal bands of t; "max_weight", the largest weight on a
            fine grid (inf where the density falls to zero and the target does not).
        """
        density = self.density or self.target
        edges = [k / _BANDS for k in range(_BANDS + 1)]
        return {
            "target": str(self.target),
            "density": str(density),
            "spacing": self.spacing,
            "bands": [
                {"low": lo, "high": hi, "target": self.target.mass(lo, hi), "density": density.mass(lo, hi)}
                for lo, hi in itertools.pairwise(edges)
            ],
            "max_weight": self._max_weight(),
        }

    def _max_weight(self) -> float:
        if self.density is None:
            return 1.0
        ends = torch.logspace(-9, -3, 200, dtype=torch.float64)
        grid = torch.cat([torch.linspace(0, 1, 10001, dtype=torch.float64), ends, 1 - ends])
        # 0 / 0 is no weight: neither density draws there.
        return float(self._weight(grid).nan_to_num(nan=0.0, posinf=math.inf).max())

    def _weight(self, t: Tensor) -> Tensor:
        if self.density is None:
            return torch.ones_like(t)
        return weights(self.target, self.density, t)


@functools.lru_cache(maxsize=4)
def _ahead(proposal: Proposal, batch_size: int, seed: int, block: int, rows: int) -> list[Times | None]:
    """A block of steps: most of what a draw costs is the same for one step and for many."""
    return [*_drawn(proposal, batch_size, seed, range(block * rows, (block + 1) * rows))]


def _drawn(proposal: Proposal, batch_size: int, seed: int, steps: range) -> list[Times]:
    """The times of each step."""
    u = uniform_rows(seed, _STREAM, steps, batch_size)
    if proposal.spacing == "stratified":
        u += np.arange(batch_size)
        u /= batch_size
    # Weights come from the float64 times: a float32 one may round out of a truncated support.
    values = times_and_weights(proposal.target, proposal.density, u.ravel(), steady=proposal.steady)
    if proposal.spacing == "stratified":
        order = permutation_rows(seed, _STREAM, steps, batch_size)
        order += np.arange(len(steps))[:, None] * batch_size
        values = values.take(order.ravel(), axis=1)
    both = np.ones((2, u.size), dtype=np.float32)
    both[: len(values)] = values
    both[0].clip(_LEAST, _GREATEST, out=both[0])
    t, weight = (part.unbind() for part in torch.from_numpy(both).view(2, *u.shape).unbind())
    return [Times(*pair) for pair in zip(t, weight, strict=True)]
