"""From a variance profile to a timestep density, and to the logit-normal nearest to it."""

from flowtempo.design.curve import Curve, variance_curve
from flowtempo.design.fit import LogitNormalFit, nearest_logit_normal
from flowtempo.design.rules import Design, Edge, Rule, design

__all__ = [
    "Curve",
    "Design",
    "Edge",
    "LogitNormalFit",
    "Rule",
    "design",
    "nearest_logit_normal",
    "variance_curve",
]
