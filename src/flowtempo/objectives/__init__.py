"""What is trained: prediction, loss terms and their sum, one value per sample."""

from flowtempo.objectives.losses import direction, mse, weighted
from flowtempo.objectives.objective import Losses, Objective

__all__ = ["Losses", "Objective", "direction", "mse", "weighted"]
