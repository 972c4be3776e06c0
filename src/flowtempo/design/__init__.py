"""From a measured profile to a timestep density, and to the logit-normal nearest to it."""

from flowtempo.design.bootstrap import Band
from flowtempo.design.curve import Curve, curve_over_t, variance_curve
from flowtempo.design.distance import Distance, distance
from flowtempo.design.fit import LogitNormalFit, nearest_logit_normal, nearest_member
from flowtempo.design.record import Collapsed, Design
from flowtempo.design.rules import design
from flowtempo.design.source import Edge, Rule, Source, load_source

__all__ = [
    "Band",
    "Collapsed",
    "Curve",
    "Design",
    "Distance",
    "Edge",
    "LogitNormalFit",
    "Rule",
    "Source",
    "curve_over_t",
    "design",
    "distance",
    "load_source",
    "nearest_logit_normal",
    "nearest_member",
    "variance_curve",
]
