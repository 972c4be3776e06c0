"""Variance over the noise axis: posterior Monte Carlo, the linear bound, and the bracket of both."""

from flowtempo.variance.bracket import Bracket, measure
from flowtempo.variance.linear import spectral
from flowtempo.variance.posterior import in_sample, leave_one_out
from flowtempo.variance.profile import VarianceProfile

__all__ = ["Bracket", "VarianceProfile", "in_sample", "leave_one_out", "measure", "spectral"]
