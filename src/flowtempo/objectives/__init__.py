"""What is trained: prediction, loss terms and their sum, weighting, targets over several samples."""

from flowtempo.objectives.losses import direction, mse, weighted
from flowtempo.objectives.objective import Losses, Objective
from flowtempo.objectives.targets import Banks, MultiSample, multi_sample
from flowtempo.objectives.uncertainty import LearnedUncertainty
from flowtempo.objectives.weightings import WEIGHTINGS, Weighting, weighting

__all__ = [
    "WEIGHTINGS",
    "Banks",
    "LearnedUncertainty",
    "Losses",
    "MultiSample",
    "Objective",
    "Weighting",
    "direction",
    "mse",
    "multi_sample",
    "weighted",
    "weighting",
]
