"""Interpolants x_t = alpha(t) x1 + sigma(t) x0 between noise x0 (t = 0) and data x1 (t = 1)."""

from flowtempo.interpolants.base import Interpolant, per_sample
from flowtempo.interpolants.diffusion import VariancePreserving
from flowtempo.interpolants.flow import Linear, Trigonometric
from flowtempo.interpolants.text import FORMS, INTERPOLANTS, interpolant

__all__ = [
    "FORMS",
    "INTERPOLANTS",
    "Interpolant",
    "Linear",
    "Trigonometric",
    "VariancePreserving",
    "interpolant",
    "per_sample",
]
