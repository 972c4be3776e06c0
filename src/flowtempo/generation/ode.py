"""Solvers for dx/dt = field(x, t), from noise to data."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from flowtempo.errors import UserError

Field = Callable[[Tensor, Tensor], Tensor]
SolverName = Literal["euler", "heun", "dopri5"]

DEFAULT_STEPS = 50
# SiT's (Ma et al., 2024).
DEFAULT_ATOL = 1e-6
DEFAULT_RTOL = 1e-3


@dataclass(frozen=True)
class Solution:
    """Where the integration arrived.

    Attributes:
        x: The state at the end.
        nfe: How often the field was evaluated.
    """

    x: Tensor
    nfe: int


@dataclass(frozen=True)
class Solver:
    """An ODE solver and its settings; those that are left out take their defaults.

    Args:
        name: "euler" (order 1, one evaluation per step), "heun" (order 2, two) or "dopri5" (order 5,
            adaptive, by torchdiffeq).
        steps: Equal intervals of a fixed-step solver, 50 by default.
        atol: Absolute tolerance of dopri5, 1e-6 by default.
        rtol: Relative tolerance of dopri5, 1e-3 by default.

    Raises:
        UserError: An unknown name, a value out of range, or a setting without effect on this solver.
    """

    name: SolverName = "heun"
    steps: int | None = None
    atol: float | None = None
    rtol: float | None = None

    def __post_init__(self) -> None:
        if self.name not in get_args(SolverName):
            raise UserError(f"unknown solver {self.name!r}; known solvers: {', '.join(get_args(SolverName))}")
        if self.name == "dopri5":
            if self.steps is not None:
                raise UserError("dopri5 chooses its own steps: set atol and rtol, and leave steps out")
            object.__setattr__(self, "atol", DEFAULT_ATOL if self.atol is None else self.atol)
            object.__setattr__(self, "rtol", DEFAULT_RTOL if self.rtol is None else self.rtol)
        else:
            if self.atol is not None or self.rtol is not None:
                raise UserError(f"atol and rtol have no effect on {self.name}: set steps, or use dopri5")
            object.__setattr__(self, "steps", DEFAULT_STEPS if self.steps is None else self.steps)
        for key in ("steps", "atol", "rtol"):
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise UserError(f"{key} is {value}: it must be positive")

    def solve(self, field: Field, x: Tensor, start: float, end: float) -> Solution:
        """Integrate from `start` to `end`.

        Args:
            field: (x (B, ...), t (B,)) -> dx/dt, the shape of x.
            x: (B, ...) at `start`. Times are given in its dtype.
            start: First time.
            end: Last time.
        """
        if self.name == "dopri5":
            return self._adaptive(field, x, start, end)
        assert self.steps is not None
        stage = _euler_step if self.name == "euler" else _heun_step
        grid = torch.linspace(start, end, self.steps + 1, dtype=torch.float64).tolist()
        for left, right in itertools.pairwise(grid):
            x = stage(field, x, left, right)
        return Solution(x, self.steps * (1 if self.name == "euler" else 2))

    def _adaptive(self, field: Field, x: Tensor, start: float, end: float) -> Solution:
        from torchdiffeq import odeint

        calls = 0

        def counted(t: Tensor, state: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return field(state, t.to(state.dtype).expand(len(state)))

        times = torch.tensor([start, end], dtype=torch.float64, device=x.device)
        # Without a forced step at the end the last one overshoots it, out of [0, 1] where no network was
        # trained, and the result is read off an interpolation that the tolerance does not cover.
        options = {"step_t": times[1:]}
        try:
            path = odeint(counted, x, times, method="dopri5", atol=self.atol, rtol=self.rtol, options=options)
        except AssertionError as error:
            raise UserError(
                f"dopri5 cannot go on after {calls} evaluations ({error}): the model's output is not finite "
                "or changes too fast; loosen atol and rtol, or use heun"
            ) from error
        return Solution(path[-1], calls)


def _euler_step(field: Field, x: Tensor, left: float, right: float) -> Tensor:
    return x + (right - left) * field(x, _times(x, left))


def _heun_step(field: Field, x: Tensor, left: float, right: float) -> Tensor:
    first = field(x, _times(x, left))
    second = field(x + (right - left) * first, _times(x, right))
    return x + (right - left) / 2 * (first + second)


def _times(x: Tensor, t: float) -> Tensor:
    return torch.full((len(x),), t, dtype=x.dtype, device=x.device)
