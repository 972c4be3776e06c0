"""One function per figure: records in, a matplotlib figure out."""

from flowtempo.report.figures.designs import REFERENCES, densities
from flowtempo.report.figures.probes import gradients, gradients_and_loss, gradients_by_group
from flowtempo.report.figures.training import frechet_over_steps, loss_by_band, loss_over_steps
from flowtempo.report.figures.variance import explained_variance, posterior_variance, target_variance

__all__ = [
    "REFERENCES",
    "densities",
    "explained_variance",
    "frechet_over_steps",
    "gradients",
    "gradients_and_loss",
    "gradients_by_group",
    "loss_by_band",
    "loss_over_steps",
    "posterior_variance",
    "target_variance",
]
