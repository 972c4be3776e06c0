"""Inverting a CDF that has no inverse in closed form."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_EPS = torch.finfo(torch.float64).eps
_MOST_STEPS = 100

Function = Callable[[Tensor], Tensor]


def invert(
    function: Function,
    slope: Function,
    value: Tensor,
    low: Tensor,
    high: Tensor,
    precision: float = 64 * _EPS,
) -> Tensor:
    """Solve function(x) = value for a rising function, to the rounding of the function or of x.

    Newton steps, and a bisection wherever one would leave the bracket or does not halve the last. On a GPU
    nothing waits for the device: all steps are made.

    Args:
        function: Rising, elementwise, float64.
        slope: Its derivative.
        value: What it should be, any shape, not negative.
        low: Where it is at most `value`, the shape of `value`.
        high: Where it is at least `value`.
        precision: Rounding of the function beside `value`.

    Returns:
        x, the shape of `value`; elements do not depend on each other.
    """
    # A root at the lower end is found at once: steps would only approach it.
    x = torch.where(value == 0, low, (low + high) / 2)
    last = high - low
    for _ in range(_MOST_STEPS):
        excess = function(x) - value
        low, high = torch.where(excess < 0, x, low), torch.where(excess < 0, high, x)
        step = excess / slope(x)
        settled = (excess.abs() <= precision * value) | (
            torch.minimum(step.abs(), high - low) <= _EPS * x.abs()
        )
        settled |= value == 0
        if value.device.type == "cpu" and bool(settled.all()):
            break
        newton = x - step
        good = (newton >= low) & (newton <= high) & (step.abs() < last / 2)
        moved = torch.where(settled, x, torch.where(good, newton, (low + high) / 2))
        last, x = (moved - x).abs(), moved
    return x


def with_slope(value: Tensor, slope: Tensor, x: Tensor) -> Tensor:
    """`value` with `slope` as its derivative by x: steps of an iteration are not differentiated."""
    if not x.requires_grad:
        return value
    return value.detach() + slope.detach() * (x - x.detach())
