"""Interpolants x_t = alpha(t) x1 + sigma(t) x0 between noise x0 (t = 0) and data x1 (t = 1)."""

from flowtempo.interpolants.base import Interpolant, per_sample
from flowtempo.interpolants.chen import Chen, ChenCosine, ChenSigmoid
from flowtempo.interpolants.cosine import InterpolatedCosine, ShiftedCosine
from flowtempo.interpolants.diffusion import VarianceExploding, VariancePreserving
from flowtempo.interpolants.discrete import (
    DdpmCosine,
    DdpmLinear,
    DdpmScaledLinear,
    Discrete,
    ZeroTerminalSnr,
)
from flowtempo.interpolants.flow import Linear, LinearVP, Polynomial, Trigonometric
from flowtempo.interpolants.shifts import (
    Shifted,
    flux_shift,
    lightningdit_shift,
    sd3_shift,
    shift,
    token_count,
)
from flowtempo.interpolants.text import FORMS, INTERPOLANTS, STANDARD, interpolant

__all__ = [
    "FORMS",
    "INTERPOLANTS",
    "STANDARD",
    "Chen",
    "ChenCosine",
    "ChenSigmoid",
    "DdpmCosine",
    "DdpmLinear",
    "DdpmScaledLinear",
    "Discrete",
    "Interpolant",
    "InterpolatedCosine",
    "Linear",
    "LinearVP",
    "Polynomial",
    "Shifted",
    "ShiftedCosine",
    "Trigonometric",
    "VarianceExploding",
    "VariancePreserving",
    "ZeroTerminalSnr",
    "flux_shift",
    "interpolant",
    "lightningdit_shift",
    "per_sample",
    "sd3_shift",
    "shift",
    "token_count",
]
