"""The densities that trainers' flags can name, and the nearest of them to a given one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flowtempo.densities import Beta, Density, LogitNormal, Mode, Shifted, Uniform
from flowtempo.design import Distance, distance, nearest_logit_normal, nearest_member

_GREATEST_MODE = 1.7519
_LEAST_BETA, _GREATEST_BETA = 0.1, 500.0
# Farther in Wasserstein-1 than this is nearer only by rounding; the simpler family, which comes first, wins.
_SAME = 1e-4


@dataclass(frozen=True)
class Family:
    """Densities that some flags of a trainer name.

    Attributes:
        flags: The flags, with `{}` for each number.
        numbers: The numbers of the member nearest to a density.
        member: Numbers to a density, in flowtempo's time.
    """

    flags: str
    numbers: Callable[[Density], Sequence[float]]
    member: Callable[..., Density]


@dataclass(frozen=True)
class Fit:
    """A family's member and how far it is from the density that it stands for.

    Attributes:
        flags: What to type.
        density: What the trainer then draws, in flowtempo's time.
        distance: How far that is from the density that was asked for.
    """

    flags: str
    density: Density
    distance: Distance


def fits(families: Sequence[Family], density: Density) -> list[Fit]:
    """The nearest member of each family, the best first; their numbers are those that are printed."""
    found = []
    for family in families:
        numbers = [_rounded(value) for value in family.numbers(density)]
        member = family.member(*numbers)
        flags = family.flags.format(*(f"{value:.5g}" for value in numbers))
        found.append(Fit(flags, member, distance(density, member)))
    return sorted(found, key=lambda fit: round(fit.distance.wasserstein / _SAME))


def moved(density: Density, shift: float) -> Density:
    """The density after a shift, which may be none (1)."""
    return density if shift == 1 else Shifted(density, shift)


def no_numbers(density: Density) -> Sequence[float]:
    """For a family of one density."""
    return ()


def logit_normal_numbers(density: Density) -> tuple[float, float]:
    """Mean and std of the nearest logit-normal."""
    if isinstance(density, LogitNormal):
        return density.mean, density.std
    fit = nearest_logit_normal(density)
    return fit.mean, fit.std


def scale_and_shift(density: Density) -> Sequence[float]:
    """The nearest logit-normal as a scale of a normal number and a shift of the noise level after it."""
    mean, std = logit_normal_numbers(density)
    return std, math.exp(-mean)


def scaled_and_shifted(scale: float, shift: float) -> Density:
    """sigmoid(scale z) as a noise level, then shifted: a logit-normal."""
    return LogitNormal(-math.log(shift), scale)


def mode_numbers(shift: float = 1.0) -> Callable[[Density], Sequence[float]]:
    """The scale of the nearest mode density, with a shift that is given."""

    def numbers(density: Density) -> Sequence[float]:
        (point,) = nearest_member(density, lambda scale: moved(Mode(_mode_scale(scale)), shift), [0.0])
        return (_mode_scale(point),)

    return numbers


def shifted_mode_numbers(density: Density) -> Sequence[float]:
    """Scale and shift of the nearest shifted mode density."""
    scale, log_shift = nearest_member(
        density, lambda scale, log_shift: moved(Mode(_mode_scale(scale)), math.exp(log_shift)), [0.0, 0.0]
    )
    return _mode_scale(scale), math.exp(log_shift)


def shifted_mode(scale: float, shift: float) -> Density:
    """A mode density, shifted."""
    return moved(Mode(scale), shift)


def shifted_uniform_numbers(density: Density) -> Sequence[float]:
    """The shift of the nearest shifted uniform density."""
    (log_shift,) = nearest_member(density, lambda point: moved(Uniform(), math.exp(point)), [0.0])
    return (math.exp(log_shift),)


def shifted_uniform(shift: float) -> Density:
    """The uniform density, shifted."""
    return moved(Uniform(), shift)


def noise_beta_numbers(density: Density) -> Sequence[float]:
    """The two exponents of the nearest beta density of the noise level."""
    log_a, log_b = nearest_member(
        density, lambda log_a, log_b: Beta(_exponent(log_a), _exponent(log_b)), [0.0, 0.0]
    )
    return _exponent(log_b), _exponent(log_a)


def noise_beta(alpha: float, beta: float) -> Density:
    """A beta density of the noise level 1 - t: in t the exponents change places."""
    return Beta(beta, alpha)


def _mode_scale(point: float) -> float:
    return min(max(point, -1.0), _GREATEST_MODE)


def _exponent(point: float) -> float:
    return min(max(math.exp(point), _LEAST_BETA), _GREATEST_BETA)


def _rounded(value: float) -> float:
    """As a flag is written: five digits; what is 0 but for the search is 0."""
    return 0.0 if abs(value) < 1e-6 else float(f"{value:.5g}")
