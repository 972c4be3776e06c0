"""Densities of t on [0, 1]: pdf, CDF, quantile and mass, and the text form that configurations use."""

from flowtempo.densities.base import Density
from flowtempo.densities.beta import Beta
from flowtempo.densities.closed import CosMap, LogitNormal, Mode, Uniform
from flowtempo.densities.composed import Blend, Mixture, Truncated
from flowtempo.densities.normal import Normal
from flowtempo.densities.power import Power
from flowtempo.densities.shifted import Shifted
from flowtempo.densities.sigma import EDM
from flowtempo.densities.steps import Piecewise, Speed
from flowtempo.densities.table import Tabulated
from flowtempo.densities.text import DENSITIES, FORMS, parse

__all__ = [
    "DENSITIES",
    "EDM",
    "FORMS",
    "Beta",
    "Blend",
    "CosMap",
    "Density",
    "LogitNormal",
    "Mixture",
    "Mode",
    "Normal",
    "Piecewise",
    "Power",
    "Shifted",
    "Speed",
    "Tabulated",
    "Truncated",
    "Uniform",
    "parse",
]
