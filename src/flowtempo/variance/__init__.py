"""Variance over the noise axis: brackets of the posterior variance, and gradients and losses of a model."""

from flowtempo.variance.bracket import Bracket, measure
from flowtempo.variance.combine import average, pool
from flowtempo.variance.compare import Comparison, compare, rank_correlation
from flowtempo.variance.denoiser import with_denoiser
from flowtempo.variance.groups import measure_by_class, measure_groups
from flowtempo.variance.linear import spectral
from flowtempo.variance.posterior import in_sample, leave_one_out
from flowtempo.variance.probe import Probe, probe
from flowtempo.variance.profile import VarianceProfile
from flowtempo.variance.share import Share
from flowtempo.variance.verdict import verdict

__all__ = [
    "Bracket",
    "Comparison",
    "Probe",
    "Share",
    "VarianceProfile",
    "average",
    "compare",
    "in_sample",
    "leave_one_out",
    "measure",
    "measure_by_class",
    "measure_groups",
    "pool",
    "probe",
    "rank_correlation",
    "spectral",
    "verdict",
    "with_denoiser",
]
