"""Densities of t on [0, 1]: pdf, CDF, quantile and mass, and the text form that configurations use."""

from flowtempo.densities.base import Density
from flowtempo.densities.closed import LogitNormal, Uniform
from flowtempo.densities.composed import Mixture, Truncated
from flowtempo.densities.table import Tabulated
from flowtempo.densities.text import DENSITIES, parse

__all__ = [
    "DENSITIES",
    "Density",
    "LogitNormal",
    "Mixture",
    "Tabulated",
    "Truncated",
    "Uniform",
    "parse",
]
